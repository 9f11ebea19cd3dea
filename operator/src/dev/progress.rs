//! Prints the progress of a run: one line per transition.

use dalsegno_core::settings::Settings;
use dalsegno_core::text::position;
use dalsegno_model::{Attempt, AttemptState, Class, RunRecord, Verdict};
use dalsegno_protocol::Boundary;
use jiff::Timestamp;

/// Why an attempt ended that `--kill-every` has ended.
pub const KILLED: &str = "killed by --kill-every";

/// Turns rows into lines, each transition once.
pub struct ProgressPrinter {
    settings: Settings,
    /// Number of the last attempt whose start was printed.
    started: i32,
    /// Number of the last attempt whose end was printed.
    ended: i32,
    /// Number of the last attempt whose version was checked for a warning.
    warned: i32,
    /// Number of the last attempt of which was printed what it waits for.
    waited: i32,
}

impl ProgressPrinter {
    /// Prints only transitions after this row, which is the run as it was found.
    pub fn new(settings: Settings, found: Option<&RunRecord>) -> Self {
        let last_ended = |row: &RunRecord| match row.attempt.state {
            AttemptState::Ended => row.attempt.number,
            _ => row.attempt.number - 1,
        };
        let ended = found.map_or(0, last_ended);
        Self { settings, started: ended, ended, warned: ended, waited: 0 }
    }

    /// The lines for all transitions since the last row, but not for the end of the run. `next`: start of the next attempt.
    pub fn new_lines(&mut self, row: &RunRecord, next: Option<Timestamp>) -> Vec<String> {
        let mut lines = Vec::new();
        let mut ended: Vec<&Attempt> =
            row.past.iter().filter(|it| it.number > self.ended && it.end.is_some()).collect();
        ended.reverse();
        for attempt in ended {
            self.ended = attempt.number;
            lines.extend(self.end_line(row, attempt, next));
            if attempt.attached_at.is_none() && attempt.end.as_ref().is_some_and(|it| it.message == KILLED) {
                lines.push(format!(
                    "warning: attempt {} had not attached yet when it was killed; choose a longer --kill-every than the \
                     agent needs to start",
                    attempt.number
                ));
            }
        }
        let attempt = &row.attempt;
        if let Some(identity) = attempt.identity.as_ref().filter(|_| attempt.number > self.warned) {
            self.warned = attempt.number;
            if identity.verdict == Verdict::Allowed {
                lines.push(format!("warning: {}", identity.remark));
            }
        }
        if row.park.is_some() && row.finish.is_none() && attempt.number > self.waited {
            self.waited = attempt.number;
            let on = row.parked_on().map(|wait| wait.id.as_str()).collect::<Vec<_>>().join(", ");
            lines.push(format!("the run waits for {on}, without a process"));
        }
        let has_pod = matches!(attempt.state, AttemptState::Created | AttemptState::Attached);
        let runs = has_pod && row.finish.is_none();
        if runs && attempt.number > self.started {
            self.started = attempt.number;
            lines.push(match next_turn(row) {
                1 => format!("attempt {} starts at turn 1", attempt.number),
                turn => format!("attempt {} resumes at turn {turn}", attempt.number),
            });
        }
        lines
    }

    /// The line for the end of an attempt; `None` if it has not ended.
    fn end_line(&self, row: &RunRecord, attempt: &Attempt, next: Option<Timestamp>) -> Option<String> {
        let end = attempt.end.as_ref()?;
        let after = position(attempt.turn_at_end.unwrap_or(attempt.turn_at_start));
        let why = if end.message.is_empty() { end.cause.as_str() } else { &end.message };
        let counters = &row.counters;
        let charge = match end.class {
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
            let seconds = at.duration_since(row.now).as_secs_f64().max(0.0);
            format!("; attempt {} in {seconds:.1} s", row.attempt.number)
        });
        Some(format!("attempt {} ended {after}: {why}: {charge}{then}", attempt.number))
    }
}

/// The turn that the worker commits next.
pub fn next_turn(row: &RunRecord) -> i32 {
    row.head.as_ref().map_or(1, |head| match head.boundary {
        Boundary::Plan => head.turn,
        Boundary::Result => head.turn + 1,
    })
}
