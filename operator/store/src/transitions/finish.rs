//! The worker finishes the run without a new boundary.

use uuid::Uuid;

use super::end::finish_with_audit;
use super::worker::{commit_receipt, has_capability, has_unsettled, is_finish, renew_lease, report_signals};
use super::{Change, Decision, Rows, Transition};
use crate::db_error::DbResult;
use crate::texts::sealed_finish;
use dalsegno_format::seal::{BodyDigest, PayloadCipher};
use dalsegno_model::audit::actor;
use dalsegno_model::{Committed, Digest, FinishCall, NewFinish, RunId};

/// [`dalsegno_model::Store::finish`]. The epoch does not move.
#[derive(Clone, Debug)]
pub(crate) struct Finish {
    pub capability: Digest,
    pub commit_id: Uuid,
    pub digest: BodyDigest,
    pub finish: NewFinish,
}

impl Finish {
    /// Seals the texts of the finish.
    pub fn of(call: &FinishCall, cipher: &PayloadCipher) -> Self {
        let FinishCall { run: _, capability, commit_id, digest, ref finish } = *call;
        Self {
            capability,
            commit_id,
            digest: cipher.body(digest),
            finish: sealed_finish(finish, Some(cipher)),
        }
    }
}

impl Transition for Finish {
    type Answer = Committed;
    const OPERATION: &'static str = "finishing a run";

    fn decide(&self, rows: Rows) -> DbResult<Decision<Committed>> {
        let mut change = Change::of(rows);
        let (now, run) = (change.now(), change.row());
        let is_finish = is_finish(run, self.commit_id, &self.digest);
        let refused = if !has_capability(run, &self.capability) {
            Some(Committed::Fenced { committed: is_finish })
        } else if is_finish {
            report_signals(change.run(), now);
            Some(Committed::Duplicate(commit_receipt(change.row(), now)))
        } else if !change.is_live() {
            Some(Committed::Finished)
        } else if has_unsettled(run) {
            Some(Committed::UnsettledCalls)
        } else if run.own_open_calls > 0 {
            Some(Committed::OpenCalls)
        } else {
            None
        };
        if let Some(answer) = refused {
            return Ok(change.decide(answer));
        }
        renew_lease(change.run(), now);
        report_signals(change.run(), now);
        let by = (self.commit_id, self.digest.stored);
        finish_with_audit(&mut change, &self.finish, Some(by), actor::WORKER);
        change.notify();
        let answer = Committed::Ok(commit_receipt(change.row(), now));
        Ok(change.decide(answer))
    }

    fn without_run(&self, _: RunId) -> DbResult<Committed> {
        Ok(Committed::NotFound)
    }
}
