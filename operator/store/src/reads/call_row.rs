//! A call's row.

use dalsegno_protocol::{CallState, Policy, RawValue};
use uuid::Uuid;

use super::EnumText;
use super::table::table;
use crate::calls::hold_together;
use crate::fault::{Fault, Work};
use crate::reading::{ReadCall as _, StoredCall};
use crate::seal::{AadContext, PayloadCipher, is_sealed};
use crate::{Result, codec, size};

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
    }
}

impl CallRow {
    /// Where it stands, as everybody sees it.
    pub fn stands(&self) -> CallState {
        if self.key_refused { CallState::KeyRefused } else { self.state.0 }
    }

    /// Whether a payload of it can only be read with the key of its run.
    pub fn looks_sealed(&self) -> bool {
        [&self.arguments, &self.result].into_iter().flatten().any(|payload| is_sealed(payload))
    }

    /// Bytes that it counts while it is open.
    pub fn bytes(&self) -> i64 {
        size::of_call(size::OpenCall {
            id: &self.id,
            key: &self.key,
            arguments_bytes: self.arguments_bytes,
            result_bytes: self.result_bytes,
        })
    }

    /// The call as everybody sees it.
    pub fn public(&self, sealing: &PayloadCipher) -> Work<dalsegno_protocol::Call> {
        hold_together(&self.id, self.state.0, self.key_refused)?;
        let payload = |kept: &Option<Vec<u8>>, spot| {
            unpacked(kept.as_deref(), spot, sealing).map_err(|fault| fault.of(format!("call {:?}", self.id)))
        };
        Ok(dalsegno_protocol::Call {
            arguments: payload(&self.arguments, AadContext::Arguments(&self.id))?,
            result: payload(&self.result, AadContext::Result(&self.id))?,
            ..self.bare()
        })
    }

    /// The same for those who check the store or carry a run out of it.
    pub fn stored(&self, sealing: &PayloadCipher) -> Work<StoredCall> {
        let stored = StoredCall {
            ordinal: self.ordinal,
            attempt: self.attempt,
            touched: self.touched_turn.or(Some(self.turn)),
            digests: sealing.call_digests(&self.id),
            call: self.bare(),
            damage: None,
        };
        stored.with(self.public(sealing))
    }

    /// The same without its payloads.
    pub fn bare(&self) -> dalsegno_protocol::Call {
        dalsegno_protocol::Call {
            id: self.id.clone(),
            turn: self.turn,
            policy: self.policy.0,
            key: self.key.clone(),
            state: self.stands(),
            arguments: None,
            result: None,
        }
    }
}

/// A kept JSON payload as it came; none where it was shredded.
pub(crate) fn unpacked(
    payload: Option<&[u8]>,
    spot: AadContext<'_>,
    sealing: &PayloadCipher,
) -> Work<Option<Box<RawValue>>> {
    let opened = payload.map(|payload| sealing.open_unless_shredded(spot, payload)).transpose()?.flatten();
    opened
        .map(|payload| {
            let text = String::from_utf8(codec::decode(&payload, codec::LIMIT)?)
                .map_err(|_| Fault::Corrupt("a payload is not UTF-8".into()))?;
            codec::json(text).map_err(|why| Fault::Corrupt(format!("a payload: {why}")))
        })
        .transpose()
}

/// A JSON payload as it is kept.
pub(crate) fn payload(
    json: Option<&RawValue>,
    spot: AadContext<'_>,
    sealing: &PayloadCipher,
) -> Result<Option<Vec<u8>>> {
    json.map(|json| sealing.seal(spot, codec::encode(json.get().as_bytes()))).transpose()
}
