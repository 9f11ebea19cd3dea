//! A person decides on an approval.

use dalsegno_protocol::{WaitKind, WaitState};
use serde_json::json;

use super::waits::{NewAnswer, answer_wait};
use super::{Change, Decision, Needs, Rows, Transition, WaitsQuery, text};
use crate::db_error::{DbError, DbResult};
use crate::reads::StoredWait;
use dalsegno_format::codec;
use dalsegno_format::seal::{AadContext, CallDigestsExt as _, PayloadCipher};
use dalsegno_model::{Answered, Result, WaitAnswer};

/// [`dalsegno_model::Operator::answer_wait`].
pub(crate) struct AnswerWait {
    answer: WaitAnswer,
    ids: [String; 1],
    /// The person's words, encoded and sealed, and their digest for the audit.
    encoded: Vec<u8>,
    digest: String,
    actor: String,
}

impl AnswerWait {
    pub fn of(answer: &WaitAnswer, cipher: &PayloadCipher) -> Result<Self> {
        let json = serde_json::to_string(&answer.decision)
            .map_err(|error| dalsegno_model::Error::Unusable(format!("a decision is no JSON: {error}")))?;
        let context = AadContext::WaitAnswer(&answer.id, answer.epoch);
        Ok(Self {
            ids: [text(&answer.id)],
            digest: cipher.wait_digests(&answer.id, answer.epoch).render(&json),
            encoded: cipher.seal(context, codec::encode(json.as_bytes()))?,
            actor: text(&answer.decision.by),
            answer: answer.clone(),
        })
    }
}

impl Transition for AnswerWait {
    type Answer = Answered;
    const OPERATION: &'static str = "answering a wait";

    fn needs(&self) -> Needs<'_> {
        Needs::Waits(WaitsQuery { ids: &self.ids, rate_limit: None, unread: None })
    }

    fn decide(&self, mut rows: Rows) -> DbResult<Decision<Answered>> {
        let Self { answer: WaitAnswer { id, epoch, outcome, .. }, .. } = self;
        let found = rows.named_waits.pop().map(|StoredWait { row, .. }| row);
        let mut change = Change::of(rows);
        let Some(wait) = found.filter(|wait| wait.epoch == *epoch && wait.kind.0 == WaitKind::Approval)
        else {
            let answer = Answered::NoSuchWait(change.record()?);
            return Ok(change.decide(answer));
        };
        if wait.state.0 != WaitState::Open || !change.is_live() {
            let is_same = wait.outcome.is_some_and(|stored| stored.0 == *outcome);
            let record = change.record()?;
            return Ok(change.decide(if is_same {
                Answered::Duplicate(record)
            } else {
                Answered::NotOpen(record)
            }));
        }
        if change.waits().iter().all(|open| open.id != wait.id) {
            return Err(DbError::Corrupt(format!(
                "wait {id:?} is open, and is not among the open waits of its run"
            )));
        }
        let answer = NewAnswer {
            id: &wait.id,
            outcome: *outcome,
            actor: &self.actor,
            detail: json!({ "answer": self.digest }),
        };
        answer_wait(&mut change, &answer);
        change.set_wait_answer((wait.id, wait.epoch), self.encoded.clone());
        change.run().stored_bytes += self.encoded.len() as i64;
        change.notify();
        let answer = Answered::Ok(change.record()?);
        Ok(change.decide(answer))
    }
}
