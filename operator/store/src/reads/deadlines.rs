//! The deadline rule in SQL, from the table of its clocks.

use dalsegno_model::{
    CLOCKS, Clock, ClockLength, ClockStart, Deadline, Expired, HEARTBEAT_GAP_MS, HEARTBEATS_PER_LEASE,
    ObjectKey, RECONNECT_MS,
};
use serde::Serialize;

use super::EnumText;
use crate::db_error::{DbResult, timestamp};

/// How long outages of the gateways are kept, in milliseconds: the longest progress deadline, and a day.
pub(crate) const OUTAGES_KEPT_MS: i64 = 31 * 86_400_000;

/// How many outages are kept. If there are more, the oldest is deleted and counts against a worker again.
pub(crate) const MAX_OUTAGES: i64 = 1_000;

/// How long a gateway that sends no heartbeat is kept, in milliseconds. No lease that it renewed is valid for so long.
pub(crate) const GATEWAYS_KEPT_MS: i64 = 7 * 86_400_000;

/// How long a gateway may send no heartbeat and still serve workers, in milliseconds: it may be slow to reach the store, or
/// answer its last calls.
pub(crate) const SERVING_GATEWAY_MS: i64 = 15_000;

/// The parts of the SQL that differ between the two databases.
pub(crate) struct ClockSql {
    /// The function that returns the greatest of its arguments.
    pub greatest: &'static str,
    /// The function that returns the least of its arguments.
    pub least: &'static str,
    /// The store's clock.
    pub now: &'static str,
    /// The time since which gateways send heartbeats without a gap.
    pub beat_since: &'static str,
}

impl ClockSql {
    /// SQL for a row of `runs`: the name of the first deadline that has expired, or NULL. It does not check that a
    /// gateway is alive: the statement around it must.
    pub fn first_expired(&self) -> String {
        let arms = CLOCKS.iter().map(|clock| self.arm(clock)).collect::<String>();
        format!("CASE{arms} END")
    }

    fn arm(&self, clock: &Clock) -> String {
        let Self { greatest, least, now, beat_since } = self;
        let states = clock.states.iter().map(|state| literal(*state)).collect::<Vec<_>>().join(", ");
        let starts: Vec<_> = clock.starts.iter().map(|start| column(*start)).collect();
        let is_running =
            starts.iter().map(|start| format!("{start} IS NOT NULL")).collect::<Vec<_>>().join(" OR ");
        // NULL counts as 0: with a NULL argument, SQLite's `max` returns NULL, and PostgreSQL's `greatest` ignores it.
        let latest = starts.iter().map(|start| format!("coalesce({start}, 0), ")).collect::<String>();
        let start = format!("{greatest}({latest}0)");
        let (shortest, length) = (self.shortest(clock.length), self.length(clock.length));
        let outages = self.outage_ms(&start);
        let deadline = literal(clock.deadline);
        // Few rows have passed the shortest length and so reach the queries of outages.
        format!(
            " WHEN attempt_state IN ({states}) AND ({is_running}) AND {start} + {shortest} < {now} \
             AND {beat_since} + {least}({length}, {RECONNECT_MS}) < {now} \
             AND {start} + {length} + {outages} < {now} THEN {deadline}"
        )
    }

    /// How long the gateways were unavailable since `start`, in milliseconds.
    fn outage_ms(&self, start: &str) -> String {
        let greatest = self.greatest;
        format!(
            "(SELECT coalesce(sum(outage.ended_at - {greatest}(outage.began_at, {start})), 0) \
             FROM gateway_outages AS outage WHERE outage.ended_at > {start})"
        )
    }

    /// How long the gateway that last renewed the lease was unavailable since then, in milliseconds.
    fn lease_gateway_outage_ms(&self) -> String {
        let Self { greatest, now, .. } = self;
        format!(
            "coalesce((SELECT CASE \
             WHEN {now} - gateway.beat_last > {HEARTBEAT_GAP_MS} \
             THEN {now} - {greatest}(gateway.beat_last, lease_renewed_at) \
             WHEN gateway.beat_since > lease_renewed_at \
             THEN gateway.beat_since - {greatest}(gateway.gap_from, lease_renewed_at) \
             ELSE 0 END FROM gateways AS gateway WHERE gateway.id = lease_gateway), 0)"
        )
    }

    /// The length of a clock.
    fn length(&self, length: ClockLength) -> String {
        let shortest = self.shortest(length);
        match length {
            ClockLength::Lease => {
                let outage = self.lease_gateway_outage_ms();
                format!("({shortest} + {}({outage}, {shortest} / {HEARTBEATS_PER_LEASE}))", self.least)
            }
            ClockLength::Ms(_)
            | ClockLength::Start
            | ClockLength::Progress
            | ClockLength::Suspend
            | ClockLength::SuspendTwice => shortest,
        }
    }

    /// The length of a clock, if no gateway was unavailable.
    fn shortest(&self, length: ClockLength) -> String {
        match length {
            ClockLength::Ms(ms) => ms.to_string(),
            ClockLength::Lease => format!("{}(lease_ms, heartbeat_ms)", self.greatest),
            ClockLength::Start => "start_ms".into(),
            ClockLength::Progress => "progress_ms".into(),
            ClockLength::Suspend => "suspend_ms".into(),
            ClockLength::SuspendTwice => "(2 * suspend_ms)".into(),
        }
    }
}

fn column(start: ClockStart) -> &'static str {
    match start {
        ClockStart::CancelRequested => "cancel_requested_at",
        ClockStart::CancelTold => "cancel_told_at",
        ClockStart::SuspendRequested => "suspend_requested_at",
        ClockStart::SuspendTold => "suspend_told_at",
        ClockStart::LimitReached => "limit_reached_at",
        ClockStart::ActiveTimeEnd => "(attached_at + limit_active_ms - active_ms)",
        ClockStart::LeaseRenewed => "lease_renewed_at",
        ClockStart::Scheduled => "scheduled_at",
        ClockStart::Attached => "attached_at",
        ClockStart::LastBoundary => "CASE WHEN head_attempt = attempt THEN head_at END",
    }
}

/// The name of a variant, quoted.
fn literal(variant: impl Serialize) -> String {
    format!("'{}'", EnumText(variant).text())
}

/// An expired deadline. `wake_at`: the column of that name.
pub(crate) fn expired_deadline(
    object: ObjectKey,
    attempt: i32,
    (deadline, wake_at): (Deadline, Option<i64>),
) -> DbResult<Expired> {
    let wake_at = wake_at.filter(|_| deadline == Deadline::Wake).map(timestamp).transpose()?;
    Ok(Expired { object, attempt, deadline, wake_at })
}
