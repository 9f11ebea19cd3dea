//! Whether the aggregated API is registered at the API server.
//!
//! An APIService whose backend is unavailable makes every namespace of the cluster hang in its deletion. So the operator
//! registers it only while a gateway serves it, and withdraws it when the API server has not reached a gateway for a
//! while.
//!
//! # Guarantees
//!
//! - A registration that the API server has found unavailable for [`RegistrationSettings::unavailable_after`] is withdrawn.
//! - A registration that somebody else has made is never changed.
//!
//! # Caveats
//!
//! - If every operator is lost without a signal, nobody withdraws it. docs/guides/kubectl-access.md has the command.

use jiff::{SignedDuration, Timestamp};

/// How many times the first pause the longest one is: 5 minutes become 60.
const LONGEST_PAUSE: i32 = 12;

/// Lengths of the deadlines of the registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegistrationSettings {
    /// How long the API server may not have reached a gateway before the registration is withdrawn.
    pub unavailable_after: SignedDuration,
    /// How long it then stays withdrawn. Each further time it is twice as long, up to 12 times this.
    pub retry_after: SignedDuration,
}

impl Default for RegistrationSettings {
    fn default() -> Self {
        Self { unavailable_after: SignedDuration::from_secs(60), retry_after: SignedDuration::from_mins(5) }
    }
}

/// What was observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedRegistration {
    /// Whether the API shall be registered.
    pub wanted: bool,
    /// The registration, if there is one.
    pub current: Option<CurrentRegistration>,
    /// Whether a gateway serves a certificate that the current bundle of CAs verifies.
    pub served: bool,
}

/// A registration at the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CurrentRegistration {
    /// Whether the operator has made it.
    pub is_ours: bool,
    /// Whether it is being deleted.
    pub is_deleted: bool,
    /// Whether it has the Service and the CAs that it shall have.
    pub is_current: bool,
    /// Whether the API server reaches a gateway.
    pub availability: Availability,
}

/// Whether the API server reaches a gateway, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Availability {
    /// It does.
    Available(Timestamp),
    /// It does not, or has not tried yet.
    Unavailable(Timestamp),
}

/// Withdrawals in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Breaker {
    /// How many.
    pub withdrawals: u32,
    /// Until when nothing is registered.
    pub open_until: Option<Timestamp>,
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registration {
    /// Nothing: it is as it shall be, or something is missing.
    Keep,
    /// Create the registration or bring it up to date.
    Apply,
    /// Delete the registration: it is not wanted.
    Remove,
    /// Delete the registration: the API server does not reach a gateway. People read by the token door meanwhile.
    Withdraw,
    /// Nothing: somebody else has made the registration.
    LeaveForeign,
}

impl ObservedRegistration {
    /// What to do, and the breaker after it.
    pub fn decide(
        &self,
        breaker: Breaker,
        settings: RegistrationSettings,
        now: Timestamp,
    ) -> (Registration, Breaker) {
        match &self.current {
            Some(current) if !current.is_ours => (Registration::LeaveForeign, breaker),
            Some(current) if current.is_deleted => (Registration::Keep, breaker),
            Some(_) if !self.wanted => (Registration::Remove, Breaker::default()),
            Some(current) => current.decide(breaker, settings, now),
            None => {
                let may = self.wanted && self.served && breaker.is_closed(now);
                (if may { Registration::Apply } else { Registration::Keep }, breaker)
            }
        }
    }
}

impl CurrentRegistration {
    fn decide(
        &self,
        breaker: Breaker,
        settings: RegistrationSettings,
        now: Timestamp,
    ) -> (Registration, Breaker) {
        let breaker = match self.availability {
            Availability::Unavailable(since) if now.duration_since(since) >= settings.unavailable_after => {
                return (Registration::Withdraw, breaker.tripped(settings, now));
            }
            Availability::Unavailable(_) => breaker,
            // It has worked for as long as the first pause: a later failure is a new one.
            Availability::Available(since) if now.duration_since(since) >= settings.retry_after => {
                Breaker::default()
            }
            Availability::Available(_) => breaker,
        };
        (if self.is_current { Registration::Keep } else { Registration::Apply }, breaker)
    }
}

impl Breaker {
    fn is_closed(&self, now: Timestamp) -> bool {
        self.open_until.is_none_or(|until| until <= now)
    }

    fn tripped(self, settings: RegistrationSettings, now: Timestamp) -> Self {
        let factor = 1_i32.checked_shl(self.withdrawals.min(8)).unwrap_or(LONGEST_PAUSE).min(LONGEST_PAUSE);
        let pause = settings.retry_after.saturating_mul(factor);
        Self {
            withdrawals: self.withdrawals.saturating_add(1),
            open_until: Some(now.saturating_add(pause).unwrap_or(now)),
        }
    }
}

/// What an operator that stops knows of its release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservedRelease {
    /// Whether its namespace is being deleted, or is gone. `None`: it could not be read.
    pub namespace_ends: Option<bool>,
    /// Replicas that its Deployment shall have; `Some(None)`: it is gone. `None`: it could not be read.
    pub replicas: Option<Option<i32>>,
}

impl ObservedRelease {
    /// Whether no operator follows, so that nobody would withdraw the registration later.
    pub fn ends(&self) -> bool {
        self.namespace_ends == Some(true) || self.replicas.is_some_and(|it| it.is_none_or(|it| it == 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: i64 = 60;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap_or_default()
    }

    fn registered(availability: Availability) -> Option<CurrentRegistration> {
        Some(CurrentRegistration { is_ours: true, is_deleted: false, is_current: true, availability })
    }

    fn observed(current: Option<CurrentRegistration>) -> ObservedRegistration {
        ObservedRegistration { wanted: true, current, served: true }
    }

    /// The decision one hour after the times of the observation began.
    #[test]
    fn the_registration_follows_what_is_observed() {
        use Availability::{Available, Unavailable};
        use Registration::{Apply, Keep, LeaveForeign, Remove, Withdraw};

        let now = 60 * MINUTE;
        let ago = |seconds| at(now - seconds);
        let with = |change: fn(&mut CurrentRegistration)| {
            let mut current = registered(Available(at(0)));
            current.as_mut().map(change);
            observed(current)
        };
        let closed = Breaker::default();
        let open = Breaker { withdrawals: 1, open_until: Some(at(now + 1)) };
        let over = Breaker { withdrawals: 1, open_until: Some(at(now)) };
        let cases = [
            ("a gateway serves it", observed(None), closed, Apply),
            ("no gateway serves it", ObservedRegistration { served: false, ..observed(None) }, closed, Keep),
            ("it is off", ObservedRegistration { wanted: false, ..observed(None) }, closed, Keep),
            ("the breaker is open", observed(None), open, Keep),
            ("the pause is over", observed(None), over, Apply),
            ("it works", observed(registered(Available(at(0)))), closed, Keep),
            ("new CAs", with(|it| it.is_current = false), closed, Apply),
            ("it is being deleted", with(|it| it.is_deleted = true), closed, Keep),
            ("somebody else's", with(|it| it.is_ours = false), closed, LeaveForeign),
            ("it was switched off", ObservedRegistration { wanted: false, ..with(|_| ()) }, closed, Remove),
            (
                "somebody else's, and ours is off",
                ObservedRegistration { wanted: false, ..with(|it| it.is_ours = false) },
                closed,
                LeaveForeign,
            ),
            ("unreachable for 59 s", observed(registered(Unavailable(ago(59)))), closed, Keep),
            ("unreachable for 60 s", observed(registered(Unavailable(ago(60)))), closed, Withdraw),
            (
                "unreachable from the control plane alone",
                observed(registered(Unavailable(ago(61)))),
                over,
                Withdraw,
            ),
            ("a clock that is behind", observed(registered(Unavailable(at(now + 30)))), closed, Keep),
        ];
        for (what, observed, breaker, expected) in cases {
            let (decision, _) = observed.decide(breaker, RegistrationSettings::default(), at(now));
            assert_eq!(decision, expected, "{what}");
        }
    }

    #[test]
    fn each_withdrawal_in_a_row_lasts_longer_up_to_an_hour_and_a_good_time_starts_again() {
        let settings = RegistrationSettings::default();
        let (mut breaker, mut now, mut pauses) = (Breaker::default(), at(0), Vec::new());
        for _ in 0..7 {
            let since = now;
            now += settings.unavailable_after;
            let away = observed(registered(Availability::Unavailable(since)));
            let (decision, tripped) = away.decide(breaker, settings, now);
            assert_eq!(decision, Registration::Withdraw);
            breaker = tripped;
            let until = breaker.open_until.unwrap_or(now);
            pauses.push(until.duration_since(now).as_secs() / MINUTE);
            assert_eq!(observed(None).decide(breaker, settings, now).0, Registration::Keep);
            now = until;
            assert_eq!(observed(None).decide(breaker, settings, now).0, Registration::Apply);
        }
        assert_eq!(pauses, [5, 10, 20, 40, 60, 60, 60]);
        let works = observed(registered(Availability::Available(now)));
        let after =
            |minutes: i64| works.decide(breaker, settings, now + SignedDuration::from_mins(minutes)).1;
        assert_eq!(after(4), breaker, "it may fail again at once");
        assert_eq!(after(5), Breaker::default());
    }

    #[test]
    fn an_operator_that_stops_withdraws_only_if_none_follows() {
        for (namespace_ends, replicas, ends) in [
            (Some(false), Some(Some(2)), false),
            (Some(false), Some(Some(0)), true),
            (Some(false), Some(None), true),
            (Some(true), Some(Some(2)), true),
            (Some(true), None, true),
            (None, Some(Some(1)), false),
            (None, Some(None), true),
            (None, None, false),
        ] {
            let release = ObservedRelease { namespace_ends, replicas };
            assert_eq!(release.ends(), ends, "{release:?}");
        }
    }
}
