//! What happens to a run, told to the person who runs it: one short line for each transition.

use dalsegno_core::settings::Settings;
use dalsegno_protocol::Boundary;
use dalsegno_store::{Attempt, AttemptEnd, AttemptState, Class, RunRecord, Verdict};
use jiff::Timestamp;

/// Knows what was told.
pub struct Teller {
    settings: Settings,
    /// The last attempt whose beginning was told, and the last whose end was.
    begun: i32,
    ended: i32,
    /// The last attempt whose version was warned of.
    warned: i32,
}

impl Teller {
    /// Tells of what comes after this: the row as it was found, if there was one.
    pub fn new(settings: Settings, found: Option<&RunRecord>) -> Self {
        let before = |row: &RunRecord| match row.attempt.state {
            AttemptState::Ended => row.attempt.number,
            _ => row.attempt.number - 1,
        };
        let ended = found.map_or(0, before);
        Self { settings, begun: ended, ended, warned: ended }
    }

    /// What is new in the row, whose next attempt waits until `next`. That the run itself is over is told apart from it.
    pub fn look(&mut self, row: &RunRecord, next: Option<Timestamp>) -> Vec<String> {
        let mut lines = Vec::new();
        let mut over: Vec<&Attempt> =
            row.past.iter().filter(|it| it.number > self.ended && it.end.is_some()).collect();
        over.reverse();
        for attempt in over {
            self.ended = attempt.number;
            lines.extend(attempt.end.as_ref().map(|end| self.end_of(row, attempt, end, next)));
        }
        let attempt = &row.attempt;
        if let Some(identity) = attempt.identity.as_ref().filter(|_| attempt.number > self.warned) {
            self.warned = attempt.number;
            if identity.verdict == Verdict::Allowed {
                lines.push(format!("warning: {}", identity.remark));
            }
        }
        let has_pod = matches!(attempt.state, AttemptState::Created | AttemptState::Attached);
        let runs = has_pod && row.finish.is_none();
        if runs && attempt.number > self.begun {
            self.begun = attempt.number;
            lines.push(match next_turn(row) {
                1 => format!("attempt {} begins at turn 1", attempt.number),
                turn => format!("attempt {} resumes at turn {turn}", attempt.number),
            });
        }
        lines
    }

    fn end_of(
        &self,
        row: &RunRecord,
        attempt: &Attempt,
        end: &AttemptEnd,
        next: Option<Timestamp>,
    ) -> String {
        let turn = attempt.turn_at_end.unwrap_or(attempt.turn_at_start);
        let why = if end.message.is_empty() { end.cause.as_str() } else { &end.message };
        let counters = &row.counters;
        let counted = match end.class {
            Class::Crash | Class::CrashWithoutProgress => format!(
                "charged ({} of {}), {} of {} without progress",
                counters.recovery_attempts - counters.recovery_attempts_base,
                self.settings.max_recovery_attempts,
                counters.attempts_without_progress,
                self.settings.max_attempts_without_progress,
            ),
            Class::Disruption => "a disruption, not charged".to_owned(),
            Class::Neutral => "not charged".to_owned(),
        };
        let then = next.map_or_else(String::new, |at| {
            let seconds = at.duration_since(row.now).as_secs_f64();
            format!("; attempt {} in {seconds:.1} s", row.attempt.number)
        });
        format!("attempt {} ended after turn {turn}: {why}: {counted}{then}", attempt.number)
    }
}

/// The turn that is to be committed next.
pub fn next_turn(row: &RunRecord) -> i32 {
    row.head.as_ref().map_or(1, |head| match head.boundary {
        Boundary::Plan => head.turn,
        Boundary::Result => head.turn + 1,
    })
}
