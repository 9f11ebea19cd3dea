//! A person or a worker settles a call whose outcome is unknown: one of an attempt that is over, or one whose claim the
//! current worker has lost.

use dalsegno_protocol::{CallState, Limits, Policy, RawValue};
use serde_json::json;

use super::worker::{has_capability, needs_outcome};
use super::{Change, Decision, Needs, Rows, Transition, text};
use crate::db_error::{DbError, DbResult};
use crate::reads::{CallRow, EnumText, RunRow, decode_payload, encode_payload};
use dalsegno_format::seal::{AadContext, CallDigestsExt as _, PayloadCipher};
use dalsegno_format::size;
use dalsegno_model::audit::{actor, kind};
use dalsegno_model::{AttemptState, Completed, Result, RunId, Settle, SettledBy};

/// [`dalsegno_model::Store::settle`].
#[derive(Clone)]
pub(crate) struct SettleCall {
    by: SettledBy,
    id: String,
    /// The outcome: completed or failed.
    state: CallState,
    result: Option<Box<RawValue>>,
    /// The result as it is stored, and its digest for the audit. Both take time if the result is large, so they are made
    /// before the run is locked.
    encoded: Option<Vec<u8>>,
    digest: Option<String>,
    reason: String,
    audit_id: Option<String>,
    cipher: PayloadCipher,
}

impl SettleCall {
    pub fn of(settle: &Settle, cipher: PayloadCipher) -> Result<Self> {
        let Settle { run: _, ref by, ref id, outcome, ref result, ref reason, ref audit_id } = *settle;
        Ok(Self {
            by: by.clone(),
            id: id.clone(),
            state: outcome.into(),
            encoded: encode_payload(result.as_deref(), AadContext::Result(id), &cipher)?,
            digest: result.as_deref().map(|result| cipher.call_digests(id).render(result.get())),
            result: result.clone(),
            reason: text(reason),
            audit_id: audit_id.as_deref().map(text),
            cipher,
        })
    }

    /// The answer, if the call is not settled by this request.
    fn refuse(&self, run: &RunRow, is_live: bool, call: Option<&CallRow>) -> DbResult<Option<Completed>> {
        if let SettledBy::Worker(capability) = &self.by
            && !has_capability(run, capability)
        {
            return Ok(Some(Completed::Fenced));
        }
        if call.is_some_and(|call| call.public_state() == self.state) && self.is_result(call)? {
            return Ok(Some(Completed::Duplicate));
        }
        let Some(call) = call.filter(|_| is_live) else {
            return Ok(Some(if is_live { Completed::NoSuchCall } else { Completed::Finished }));
        };
        let id = &call.id;
        let conflict = match (call.state.0, &self.by) {
            (CallState::Planned, _) => Some(format!("call {id:?} was never claimed")),
            (CallState::Completed | CallState::Failed, _) => Some(format!("call {id:?} has ended otherwise")),
            (_, SettledBy::Worker(_)) if call.policy.0 == Policy::Ask || call.key_refused => {
                Some(format!("only a person may settle call {id:?}"))
            }
            (_, SettledBy::Person(_)) if !is_unsettled(run, call) && !call.key_refused => {
                Some(format!("the current attempt may still complete call {id:?}"))
            }
            (CallState::Started | CallState::KeyRefused, _) => None,
        };
        Ok(conflict.map(Completed::Conflict))
    }

    /// Whether the stored result equals this one.
    fn is_result(&self, call: Option<&CallRow>) -> DbResult<bool> {
        let stored = call.and_then(|call| call.result.as_deref());
        let stored = decode_payload(stored, AadContext::Result(&self.id), &self.cipher)?;
        Ok(stored.as_deref().map(RawValue::get) == self.result.as_deref().map(RawValue::get))
    }
}

impl Transition for SettleCall {
    type Answer = Completed;
    const OPERATION: &'static str = "settling a call";

    fn needs(&self) -> Needs<'_> {
        Needs::Call(&self.id)
    }

    fn decide(&self, mut rows: Rows) -> DbResult<Decision<Completed>> {
        let (call, open_calls) = (rows.call.take(), rows.open_calls);
        let mut change = Change::of(rows);
        if let Some(answer) = self.refuse(change.row(), change.is_live(), call.as_ref())? {
            return Ok(change.decide(answer));
        }
        let Some(before) = call else {
            return Err(DbError::Corrupt("a call that does not exist cannot be settled".into()));
        };

        let (now, turn) = (change.now(), change.row().open_turn());
        let is_unsettled = is_unsettled(change.row(), &before);
        let actor = match &self.by {
            SettledBy::Worker(_) => actor::WORKER.to_owned(),
            SettledBy::Person(name) => text(name),
        };
        let call = CallRow {
            state: EnumText(self.state),
            key_refused: false,
            result: self.encoded.clone(),
            result_bytes: size::of_json(self.result.as_deref()),
            settled_by: Some(actor.clone()),
            reason: Some(self.reason.clone()),
            ended_at: Some(now),
            touched_turn: Some(turn),
            ..before.clone()
        };
        // A call of an earlier turn is only open until it has ended.
        let stays_open = call.turn == turn;
        let growth = if stays_open { call.bytes() } else { 0 } - before.bytes();
        if growth > 0 && open_calls + growth > Limits::OPEN_CALLS_BYTES as i64 {
            return Ok(change.decide(Completed::TooLarge));
        }
        let run = change.run();
        (run.open_calls_bytes, run.open_calls_turn) = (Some(open_calls + growth), Some(turn));
        run.completed_calls += 1;
        run.keys_refused -= i64::from(before.key_refused);
        if is_unsettled {
            *run.unsettled(before.policy.0) -= 1;
        } else {
            run.own_open_calls -= needs_outcome(before.policy.0);
        }
        change.notify();
        let mut detail = json!({
            "call": call.id, "turn": turn, "outcome": self.state, "reason": self.reason,
        });
        if let Some(digest) = &self.digest {
            detail["result"] = digest.as_str().into();
        }
        if let Some(id) = &self.audit_id {
            detail["auditID"] = id.as_str().into();
        }
        change.audit(kind::SETTLED, &actor, detail);
        change.set_call(&before, &call);
        Ok(change.decide(Completed::Ok))
    }

    fn without_run(&self, _: RunId) -> DbResult<Completed> {
        Ok(Completed::NotFound)
    }
}

/// Whether the call was started by an attempt that is over, so that its outcome is unknown.
pub(crate) fn is_unsettled(run: &RunRow, call: &CallRow) -> bool {
    call.state.0 == CallState::Started
        && (call.attempt != Some(run.attempt) || run.attempt_state.0 == AttemptState::Ended)
}
