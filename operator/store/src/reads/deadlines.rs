//! The deadline rule in SQL, from the table of its clocks.

use dalsegno_model::{CLOCKS, Clock, ClockLength, ClockStart};
use serde::Serialize;

use super::EnumText;

/// The parts of the SQL that differ between the two databases.
pub(crate) struct ClockSql {
    /// The function that returns the greatest of its arguments.
    pub greatest: &'static str,
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
        let Self { greatest, now, beat_since } = self;
        let states = clock.states.iter().map(|state| literal(*state)).collect::<Vec<_>>().join(", ");
        let starts: Vec<_> = clock.starts.iter().map(|start| column(*start)).collect();
        let is_running =
            starts.iter().map(|start| format!("{start} IS NOT NULL")).collect::<Vec<_>>().join(" OR ");
        // NULL counts as 0: with a NULL argument, SQLite's `max` returns NULL, and PostgreSQL's `greatest` ignores it.
        let latest = starts.iter().map(|start| format!("coalesce({start}, 0), ")).collect::<String>();
        let (length, deadline) = (self.length(clock.length), literal(clock.deadline));
        format!(
            " WHEN attempt_state IN ({states}) AND ({is_running}) \
             AND {greatest}({latest}{beat_since}) + {length} < {now} THEN {deadline}"
        )
    }

    fn length(&self, length: ClockLength) -> String {
        match length {
            ClockLength::Ms(ms) => ms.to_string(),
            ClockLength::Lease => format!("{}(lease_ms, heartbeat_ms)", self.greatest),
            ClockLength::Start => "start_ms".into(),
            ClockLength::Progress => "progress_ms".into(),
        }
    }
}

fn column(start: ClockStart) -> &'static str {
    match start {
        ClockStart::CancelRequested => "cancel_requested_at",
        ClockStart::CancelTold => "cancel_told_at",
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
