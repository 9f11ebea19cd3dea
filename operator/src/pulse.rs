//! The pulse: one query a second for all runs, for what no watch tells.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use dalsegno_core::decide::RECHECK_INTERVAL;
use dalsegno_store::{Changed, Expired, ObjectKey, Pulse};
use jiff::{SignedDuration, Timestamp};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::pods::RunKey;

/// How often the store is asked.
const PERIOD: Duration = Duration::from_secs(1);
/// Statements that were under way when the last answer was made may show this much later.
const MARGIN: SignedDuration = SignedDuration::from_secs(3);
/// Progress is mirrored at most this often…
const MIRROR: Duration = Duration::from_secs(10);
/// …and at most for this many runs a second.
const MIRRORS_PER_SECOND: i64 = 20;

/// Asks until told to stop. Deadlines that ran out and transitions wake their runs at once, heads that moved wake
/// theirs at the mirror's pace. A deadline that nothing comes of, as while its run is held, wakes it again only slowly.
pub async fn follow(ctx: Arc<Context>, stop: CancellationToken) {
    ctx.metrics.pulse_begins();
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut heard = Heard::default();
    let mut since = Timestamp::now() - MARGIN;
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        match ctx.store.pulse(since).await {
            Ok(pulse) => {
                since = pulse.now - MARGIN;
                ctx.metrics.pulse(true);
                heard.take(&ctx, pulse);
            }
            Err(error) => {
                ctx.metrics.pulse(false);
                tracing::warn!(
                    error = crate::telemetry::chain(&error),
                    "the store could not be asked for its pulse"
                );
            }
        }
    }
}

/// What earlier answers said.
#[derive(Default)]
struct Heard {
    /// When the deadlines that have run out last woke their runs.
    expired: HashMap<Expired, Timestamp>,
    /// The last transition of each run that it was woken for.
    transitions: HashMap<ObjectKey, Timestamp>,
    /// Heads that moved and are not mirrored yet.
    moved: HashSet<ObjectKey>,
    /// When heads were last mirrored.
    mirrored: Option<Instant>,
}

impl Heard {
    fn take(&mut self, ctx: &Context, pulse: Pulse) {
        let Pulse { now, store_id: _, expired, changed, active } = pulse;
        // Whether it is so is judged by the row that is read then: a late heartbeat may stand in it.
        let before = std::mem::take(&mut self.expired);
        for expired in expired {
            let woken =
                before.get(&expired).filter(|at| now.duration_since(**at).unsigned_abs() < RECHECK_INTERVAL);
            if woken.is_none() {
                wake(ctx, &expired.object);
            }
            self.expired.insert(expired, *woken.unwrap_or(&now));
        }
        // Two answers overlap by the margin: a transition that was told before is no news.
        self.transitions.retain(|_, at| now.duration_since(*at) < MARGIN * 4);
        for Changed { object, transition, transition_at } in changed {
            if transition && self.transitions.insert(object.clone(), transition_at) != Some(transition_at) {
                wake(ctx, &object);
            } else {
                self.moved.insert(object);
            }
        }
        ctx.metrics.active(active);
        let pace =
            MIRROR.max(Duration::from_secs(u64::try_from(active / MIRRORS_PER_SECOND).unwrap_or_default()));
        if self.mirrored.is_none_or(|last| last.elapsed() >= pace) {
            self.mirrored = Some(Instant::now());
            for object in self.moved.drain() {
                wake(ctx, &object);
            }
        }
    }
}

fn wake(ctx: &Context, object: &ObjectKey) {
    ctx.look_at(&RunKey { namespace: object.namespace.clone(), name: object.name.clone() });
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a case that cannot go on has failed")]

    use dalsegno_store::Deadline;

    use super::*;
    use crate::world;

    #[tokio::test]
    async fn pulses_are_counted_from_0_on_by_whoever_takes_them_and_by_no_standby() {
        let store = Arc::new(dalsegno_store::sqlite::Sqlite::memory().await.unwrap());
        let (ctx, _) = world::context(store, vec![]);
        assert!(!world::metrics(&ctx.metrics).contains("pulses_total{"));
        let stop = CancellationToken::new();
        stop.cancel();
        follow(ctx.clone(), stop).await;
        let told = world::metrics(&ctx.metrics);
        assert!(told.contains("pulses_total{outcome=\"ok\"} 0\n"), "{told}");
    }

    #[tokio::test]
    async fn a_deadline_that_nothing_comes_of_wakes_its_run_once_and_then_at_the_pace_of_a_held_one() {
        let store = Arc::new(dalsegno_store::sqlite::Sqlite::memory().await.unwrap());
        let (mut ctx, _) = world::context(store, vec![]);
        let (wake, mut wakes) = tokio::sync::mpsc::unbounded_channel();
        Arc::get_mut(&mut ctx).unwrap().wake = wake;
        let mut heard = Heard::default();
        let mut woken = |second: i64, expired: &[(&str, i32, Deadline)]| {
            let expired = expired.iter().map(|(name, attempt, deadline)| Expired {
                object: ObjectKey { namespace: "shop".into(), name: (*name).into(), uid: "uid-1".into() },
                attempt: *attempt,
                deadline: *deadline,
            });
            let now = Timestamp::from_second(second).unwrap();
            let store_id = Default::default();
            heard.take(&ctx, Pulse { now, store_id, expired: expired.collect(), changed: vec![], active: 0 });
            std::iter::from_fn(|| wakes.try_recv().ok()).map(|it| it.name).collect::<Vec<_>>()
        };
        let lease = ("nightly", 1, Deadline::Lease);
        assert_eq!(woken(0, &[lease]), ["nightly"]);
        assert_eq!(woken(1, &[lease, ("other", 1, Deadline::Lease)]), ["other"]);
        assert_eq!(woken(59, &[lease]), [""; 0]);
        assert_eq!(woken(60, &[lease]), ["nightly"]);
        assert_eq!(woken(61, &[("nightly", 1, Deadline::Progress)]), ["nightly"], "another deadline");
        assert_eq!(woken(62, &[("nightly", 2, Deadline::Progress)]), ["nightly"], "another attempt");
        assert_eq!(woken(63, &[]), [""; 0]);
        assert_eq!(
            woken(64, &[("nightly", 2, Deadline::Progress)]),
            ["nightly"],
            "it had not run out between"
        );
    }
}
