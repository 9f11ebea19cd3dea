//! The worker acknowledges a cancel, and the run finishes.

use serde_json::json;
use uuid::Uuid;

use super::end::{fence_and_end, set_finished};
use super::waits::withdraw_waits;
use super::worker::has_capability;
use super::{Change, Decision, Rows, Transition};
use crate::db_error::DbResult;
use crate::reads::{Hash, RunRow};
use dalsegno_model::audit::{actor, kind};
use dalsegno_model::{Acknowledged, Cause, Digest, NewFinish, RunId, RunOutcome};

/// [`dalsegno_model::Store::acknowledge_cancel`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct AcknowledgeCancel {
    pub capability: Digest,
}

impl Transition for AcknowledgeCancel {
    type Answer = Acknowledged;
    const OPERATION: &'static str = "acknowledging a cancel";

    fn decide(&self, rows: Rows) -> DbResult<Decision<Acknowledged>> {
        let mut change = Change::of(rows);
        let run = change.row();
        if !has_capability(run, &self.capability) {
            // A park sets its id too, so this is the retry of an acknowledgement.
            let is_retry = run.park_id.is_none() && run.last_capability == Some(Hash(self.capability));
            let answer = if is_retry { Acknowledged::Cancelled } else { Acknowledged::Fenced };
            return Ok(change.decide(answer));
        }
        if !change.is_live() {
            return Ok(change.decide(Acknowledged::Finished));
        }
        if run.cancel_requested_at.is_none() {
            return Ok(change.decide(Acknowledged::NotRequested));
        }
        acknowledge(&mut change, self.capability, None)?;
        Ok(change.decide(Acknowledged::Cancelled))
    }

    fn without_run(&self, _: RunId) -> DbResult<Acknowledged> {
        Ok(Acknowledged::Fenced)
    }
}

/// Finishes the run as cancelled, on the word of its worker. `park_id`: the park that acknowledges the cancel.
pub(super) fn acknowledge(change: &mut Change, capability: Digest, park_id: Option<Uuid>) -> DbResult<()> {
    fence_and_end(change, Cause::Cancelled)?;
    let finish = NewFinish {
        outcome: RunOutcome::Cancelled,
        reason: "Cancelled".into(),
        message: String::new(),
        output: None,
    };
    let now = change.now();
    set_finished(change.run(), now, &finish, None);
    set_acknowledged(change.run(), capability, park_id);
    change.notify();
    let RunRow { attempt, epoch, .. } = *change.row();
    change.audit(kind::CANCELLED, actor::WORKER, json!({ "attempt": attempt, "epoch": epoch }));
    withdraw_waits(change);
    Ok(())
}

/// Remembers who ended its own attempt, and by which park, if by one. Then a retry of that call is recognized.
pub(super) fn set_acknowledged(run: &mut RunRow, capability: Digest, park_id: Option<Uuid>) {
    (run.last_capability, run.park_id) = (Some(Hash(capability)), park_id);
}
