//! A user resets the recovery budget.

use serde_json::json;

use super::{Change, Decision, Rows, Transition, with_attribution};
use crate::db_error::DbResult;
use dalsegno_model::audit::{actor, kind};
use dalsegno_model::{AttemptState, BudgetReset, Counters, RunRecord};

/// [`dalsegno_model::Store::reset_budget`].
#[derive(Clone, Debug)]
pub(crate) struct ResetBudget(pub BudgetReset);

impl Transition for ResetBudget {
    type Answer = RunRecord;
    const OPERATION: &'static str = "resetting the recovery budget";

    fn decide(&self, rows: Rows) -> DbResult<Decision<RunRecord>> {
        let Self(BudgetReset { observed, to, requested_by }) = self;
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
            // Only attempts that have ended are forgiven. The end of the current one will count.
            let has_ended = run.attempt_state.0 == AttemptState::Ended;
            run.reset_attempt = if has_ended { run.attempt } else { run.attempt - 1 };
            let detail = json!({ "from": observed, "to": to, "attempt": run.attempt });
            change.audit(kind::RESET, actor::OPERATOR, with_attribution(requested_by, detail));
        }
        change.with_record()
    }
}
