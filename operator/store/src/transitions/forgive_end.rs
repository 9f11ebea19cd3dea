//! The charge for an attempt that has ended is taken back: its node turned out to be lost.

use serde_json::json;

use super::{Change, Decision, Rows, Transition, text};
use crate::db_error::DbResult;
use crate::reads::EnumText;
use crate::texts::EndMessage;
use dalsegno_format::seal::PayloadCipher;
use dalsegno_model::audit::{actor, kind};
use dalsegno_model::{Cause, Class, Counters, Forgiveness, RunRecord};

/// [`dalsegno_model::Store::forgive_end`].
#[derive(Clone, Debug)]
pub(crate) struct ForgiveEnd {
    pub attempt: i32,
    pub cause: Cause,
    /// What is now known of the end, as it is stored.
    pub message: EndMessage,
}

impl ForgiveEnd {
    /// Seals the message.
    pub fn of(forgiveness: &Forgiveness, cipher: Option<&PayloadCipher>) -> Self {
        let Forgiveness { attempt, cause, message } = forgiveness;
        Self { attempt: *attempt, cause: *cause, message: EndMessage::of(message, *attempt, cipher) }
    }
}

impl Transition for ForgiveEnd {
    type Answer = RunRecord;
    const OPERATION: &'static str = "taking back the charge of an attempt";

    fn decide(&self, rows: Rows) -> DbResult<Decision<RunRecord>> {
        let Self { attempt: number, cause, message } = self;
        let mut change = Change::of(rows);
        // A granted budget has forgiven the attempts before it already.
        if !change.is_live() || *number <= change.row().reset_attempt {
            return change.with_record();
        }
        // Progress of the attempt or of a later one has set the counters in a row to 0.
        let attempts = change.attempts();
        let progress = attempts.iter().any(|it| it.number >= *number && it.progress == Some(true));
        let Some(attempt) = attempts.iter_mut().find(|it| it.number == *number) else {
            return change.with_record();
        };
        if attempt.charged != Some(true) {
            return change.with_record();
        }
        attempt.cause = Some(cause.to_string());
        attempt.class = Some(EnumText(Class::Disruption));
        attempt.charged = Some(false);
        attempt.message = Some(text(&message.stored));
        let run = change.run();
        let counters = run.counters();
        run.set_counters(forgiven(counters, progress));
        let detail = json!({ "attempt": number, "cause": cause });
        change.audit(kind::FORGIVEN, actor::OPERATOR, message.audited(detail));
        change.with_record()
    }
}

/// The counters as if a crash had been a disruption.
fn forgiven(counters: Counters, progress: bool) -> Counters {
    let mut after = counters;
    after.recovery_attempts -= 1;
    after.disruptions += 1;
    if !progress {
        after.attempts_without_progress = (after.attempts_without_progress - 1).max(0);
        after.disruptions_without_progress += 1;
    }
    after
}
