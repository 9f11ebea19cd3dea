//! A fresh recovery budget is granted.

use serde_json::json;

use super::{Change, Decision, Rows, Transition, asked};
use crate::audit::{actor, kind};
use crate::fault::Work;
use crate::{AskedBy, AttemptState, Counters, RunRecord};

/// [`crate::Store::reset_budget`], by compare and set.
#[derive(Clone, Debug)]
pub(crate) struct ResetBudget {
    /// What the caller has observed; where it stands no more, nothing is granted.
    pub observed: i64,
    pub to: i64,
    pub asked: AskedBy,
}

impl Transition for ResetBudget {
    type Answer = RunRecord;
    const OPERATION: &'static str = "granting a fresh budget";

    fn decide(&self, rows: Rows) -> Work<Decision<RunRecord>> {
        let Self { observed, to, asked: by } = self;
        let mut change = Change::of(rows);
        let is_expected = change.row().observed_reset_generation == *observed;
        if change.is_live() && is_expected && to > observed {
            let run = change.run();
            let counters = run.counters();
            run.set_counters(Counters {
                attempts_without_progress: 0,
                disruptions_without_progress: 0,
                recovery_attempts_base: counters.recovery_attempts,
                disruptions_base: counters.disruptions,
                ..counters
            });
            run.observed_reset_generation = *to;
            // What is forgiven has happened: how the current attempt will end counts again.
            let has_ended = run.attempt_state.0 == AttemptState::Ended;
            run.reset_attempt = if has_ended { run.attempt } else { run.attempt - 1 };
            let detail = json!({ "from": observed, "to": to, "attempt": run.attempt });
            change.audit(kind::RESET, actor::OPERATOR, asked(by, detail));
        }
        change.with_record()
    }
}
