//! A call's row.

use dalsegno_protocol::{CallState, Policy, RawValue, Usage};
use uuid::Uuid;

use super::EnumText;
use super::table::table;
use crate::db_error::{DbError, DbResult};
use crate::stored_rows::ReadCall as _;
use dalsegno_format::seal::{AadContext, PayloadCipher, is_sealed, is_sealed_text};
use dalsegno_format::{codec, size};
use dalsegno_model::Result;
use dalsegno_model::read_transaction::StoredCall;

table! {
    /// A tool call.
    CallRow in "calls" {
        run: Uuid,
        id: String,
        ordinal: i64,
        turn: i32,
        policy: EnumText<Policy>,
        key: String,
        created_at: i64,
        state: EnumText<CallState>,
        arguments: Option<Vec<u8>>,
        arguments_bytes: i64,
        attempt: Option<i32>,
        claim_id: Option<Uuid>,
        result: Option<Vec<u8>>,
        result_bytes: i64,
        key_refused: bool,
        settled_by: Option<String>,
        reason: Option<String>,
        started_at: Option<i64>,
        ended_at: Option<i64>,
        touched_turn: Option<i32>,
        tool: Option<String>,
        spent_at: Option<i64>,
        tokens_in: i64,
        tokens_out: i64,
        tool_calls: i64,
        cost_micro_usd: i64,
    }
}

impl CallRow {
    /// The call's state for workers and users.
    pub fn public_state(&self) -> CallState {
        if self.key_refused { CallState::KeyRefused } else { self.state.0 }
    }

    /// What the call has used.
    pub fn usage(&self) -> Usage {
        Usage {
            tokens_in: self.tokens_in,
            tokens_out: self.tokens_out,
            tool_calls: self.tool_calls,
            cost_micro_usd: self.cost_micro_usd,
        }
    }

    /// Notes what the call has used, and when that was added to the run's usage.
    pub fn spend(&mut self, usage: &Usage, now: i64) {
        let Usage { tokens_in, tokens_out, tool_calls, cost_micro_usd } = *usage;
        (self.tokens_in, self.tokens_out) = (tokens_in, tokens_out);
        (self.tool_calls, self.cost_micro_usd) = (tool_calls, cost_micro_usd);
        self.spent_at = Some(now);
    }

    /// Whether the key or a payload looks sealed: then it is only readable with the run's data key.
    pub fn looks_sealed(&self) -> bool {
        is_sealed_text(&self.key)
            || [&self.arguments, &self.result].into_iter().flatten().any(|payload| is_sealed(payload))
    }

    /// The key that the worker gave; empty if it was shredded.
    pub fn opened_key(&self, cipher: &PayloadCipher) -> DbResult<String> {
        let opened = cipher.open_text(AadContext::CallKey(&self.id), &self.key);
        let opened = opened.map_err(DbError::from).map_err(|error| error.of(format!("call {:?}", self.id)));
        Ok(opened?.unwrap_or_default())
    }

    /// Bytes that the call counts while it is open.
    pub fn bytes(&self) -> i64 {
        size::of_call(size::OpenCall {
            id: &self.id,
            key: &self.key,
            arguments_bytes: self.arguments_bytes,
            result_bytes: self.result_bytes,
        })
    }

    /// The call for workers and users, with its payloads.
    pub fn public(&self, cipher: &PayloadCipher) -> DbResult<dalsegno_protocol::Call> {
        // Invariant: a key is only refused while the call is started.
        if self.key_refused && self.state.0 != CallState::Started {
            let detail = format!("call {:?}: its key was refused, and it is {:?}", self.id, self.state.0);
            return Err(DbError::Corrupt(detail));
        }
        let payload = |stored: &Option<Vec<u8>>, context| {
            decode_payload(stored.as_deref(), context, cipher)
                .map_err(|error| error.of(format!("call {:?}", self.id)))
        };
        Ok(dalsegno_protocol::Call {
            arguments: payload(&self.arguments, AadContext::Arguments(&self.id))?,
            result: payload(&self.result, AadContext::Result(&self.id))?,
            ..self.public_without_payloads(self.opened_key(cipher)?)
        })
    }

    /// The call for checks of the store and exports of a run.
    pub fn stored(&self, cipher: &PayloadCipher) -> DbResult<StoredCall> {
        let stored = StoredCall {
            ordinal: self.ordinal,
            attempt: self.attempt,
            touched: self.touched_turn.or(Some(self.turn)),
            usage: self.usage(),
            digests: cipher.call_digests(&self.id),
            // A key that cannot be opened is the damage that `public` reports.
            call: self.public_without_payloads(self.opened_key(cipher).unwrap_or_default()),
            damage: None,
        };
        stored.with(self.public(cipher))
    }

    fn public_without_payloads(&self, key: String) -> dalsegno_protocol::Call {
        dalsegno_protocol::Call {
            id: self.id.clone(),
            turn: self.turn,
            policy: self.policy.0,
            key,
            state: self.public_state(),
            tool: self.tool.clone(),
            arguments: None,
            result: None,
        }
    }
}

/// Decodes a stored JSON payload: exactly the bytes that were sent. `None` if it was shredded.
pub(crate) fn decode_payload(
    payload: Option<&[u8]>,
    context: AadContext<'_>,
    cipher: &PayloadCipher,
) -> DbResult<Option<Box<RawValue>>> {
    let opened = payload.map(|payload| cipher.open_unless_shredded(context, payload)).transpose()?.flatten();
    opened
        .map(|payload| {
            let text = String::from_utf8(codec::decode(&payload, codec::LIMIT)?)
                .map_err(|_| DbError::Corrupt("a payload is not UTF-8".into()))?;
            codec::json(text).map_err(|why| DbError::Corrupt(format!("a payload: {why}")))
        })
        .transpose()
}

/// Encodes a JSON payload for a column.
pub(crate) fn encode_payload(
    json: Option<&RawValue>,
    context: AadContext<'_>,
    cipher: &PayloadCipher,
) -> Result<Option<Vec<u8>>> {
    json.map(|json| cipher.seal(context, codec::encode(json.get().as_bytes()))).transpose()
}

/// Longest arguments that are compared as JSON values. Longer ones are compared as texts, which needs no memory.
const MAX_COMPARED_VALUE: usize = 1 << 20;

/// Returns whether a claim has other arguments than the call. The order of members and white space do not matter. A claim
/// without arguments is one with the call's arguments.
pub(crate) fn has_other_arguments(
    call: &CallRow,
    claimed: Option<&[u8]>,
    cipher: &PayloadCipher,
) -> DbResult<bool> {
    let (Some(stored), Some(claimed)) = (call.arguments.as_deref(), claimed) else { return Ok(false) };
    if stored == claimed {
        return Ok(false);
    }
    let decode = |payload| {
        decode_payload(Some(payload), AadContext::Arguments(&call.id), cipher)
            .map_err(|error| error.of(format!("call {:?}", call.id)))
    };
    let (Some(stored), Some(claimed)) = (decode(stored)?, decode(claimed)?) else { return Ok(false) };
    let (stored, claimed) = (stored.get(), claimed.get());
    let is_long = stored.len().max(claimed.len()) > MAX_COMPARED_VALUE;
    Ok(stored != claimed && (is_long || !is_same_value(stored, claimed)))
}

fn is_same_value(one: &str, other: &str) -> bool {
    let parse = |text| serde_json::from_str::<serde_json::Value>(text).ok();
    parse(one).is_some_and(|value| parse(other) == Some(value))
}

/// The answer to a worker whose claim names an approval that is not granted.
pub(crate) fn not_granted_message(approval: Option<&str>) -> String {
    let approval = approval.unwrap_or_default();
    format!(
        "approval {approval:?} is not granted: open a wait of this id and of the kind approval, and claim the call once its \
         answer is approved or changed"
    )
}

/// The answer to a worker whose claim has other arguments than the call.
pub(crate) fn other_arguments_message(call: &CallRow, is_undone: bool) -> String {
    let CallRow { id, turn, .. } = call;
    let undone = if is_undone {
        format!(" and was first seen in turn {turn}, which a rewind undid")
    } else {
        String::new()
    };
    format!(
        "call {id:?} has other arguments{undone}; claim it with its own arguments or without any, and give another effect \
         another id"
    )
}

/// The answer to a worker that completes a call whose key its tool refused.
pub(crate) fn key_refused_message(id: &str) -> String {
    format!("the tool refused the key of call {id:?}; only a person may settle it")
}
