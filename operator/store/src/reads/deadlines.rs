//! The deadline rule in SQL, from the table of its clocks.

use dalsegno_model::{CLOCKS, Clock, ClockLength, ClockStart};
use serde::Serialize;

use super::EnumText;

/// How a database writes it.
pub(crate) struct ClockSql {
    /// The function that returns the greatest of its arguments.
    pub greatest: &'static str,
    /// The store's clock.
    pub now: &'static str,
    /// Since when the gateways beat.
    pub beat_since: &'static str,
}

impl ClockSql {
    /// The name of the first deadline of a row of `runs` that has expired, or null. Whether the gateways beat is for the
    /// statement to ask.
    pub fn first_expired(&self) -> String {
        let arms = CLOCKS.iter().map(|clock| self.arm(clock)).collect::<String>();
        format!("CASE{arms} END")
    }

    fn arm(&self, clock: &Clock) -> String {
        let Self { greatest, now, beat_since } = self;
        let states = clock.states.iter().map(|state| literal(*state)).collect::<Vec<_>>().join(", ");
        let starts: Vec<_> = clock.starts.iter().map(|start| column(*start)).collect();
        let runs = starts.iter().map(|start| format!("{start} IS NOT NULL")).collect::<Vec<_>>().join(" OR ");
        // A NULL is older than any time: the two databases differ in what is the greatest beside it.
        let latest = starts.iter().map(|start| format!("coalesce({start}, 0), ")).collect::<String>();
        let (length, deadline) = (self.length(clock.length), literal(clock.deadline));
        format!(
            " WHEN attempt_state IN ({states}) AND ({runs}) \
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
