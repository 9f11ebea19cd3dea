//! Tool calls: claimed before their effect, completed after it, settled where nobody knows.

use dalsegno_protocol::{Call, CallState, Policy, RawValue};
use serde_json::{Value, json};
use sqlx::SqliteConnection;
use uuid::Uuid;

use super::audit::append;
use super::columns::Word;
use super::judge::{self, Claiming};
use super::row::RunRow;
use super::{Reads as _, Sqlite, data_keys, open_calls};
use crate::audit::{actor, kind};
use crate::db_error::DbResult;
use crate::keys::no_keys;
use crate::reads::key_refused_message;
use crate::reads::{CallRow, decode_payload, encode_payload};
use crate::seal::{AadContext, CallDigestsExt as _, PayloadCipher};
use crate::{CallFilter, Claimed, Completed, Digest, Lifecycle, RunId, size};

/// A claim with its payload ready to be kept.
pub(super) struct Claim {
    pub run: RunId,
    pub capability: Digest,
    pub id: String,
    pub claim_id: Uuid,
    pub policy: Policy,
    pub key: Option<String>,
    pub arguments: Option<Vec<u8>>,
    pub arguments_bytes: i64,
    pub arguments_digest: Option<String>,
    pub cipher: PayloadCipher,
}

/// Claims a call before its effect.
pub(super) async fn claim(conn: &mut SqliteConnection, now: i64, claim: Claim) -> DbResult<Claimed> {
    let Some(mut row) = RunRow::load(conn, claim.run).await? else {
        return Ok(Claimed::NotFound);
    };
    if !judge::has_capability(&row, &claim.capability) {
        return Ok(Claimed::Fenced);
    }
    if row.lifecycle.0 != Lifecycle::Live {
        return Ok(Claimed::Finished);
    }
    // No effect is begun by a process that could neither read the call nor keep what comes of it.
    if !claim.cipher.has_keys() && data_keys::has_one(conn, claim.run).await? {
        return Err(no_keys().into());
    }
    let Some(mut call) = CallRow::load(conn, claim.run, &claim.id).await? else {
        return first_claim(conn, now, row, claim).await;
    };
    if let Some(why) = differs(&call, &claim) {
        return Ok(Claimed::Invalid(why));
    }
    match judge::claim(&row, &call, claim.claim_id) {
        Claiming::Done => Ok(Claimed::Done(Box::new(call.public(&claim.cipher)?))),
        Claiming::Uncertain => Ok(Claimed::Uncertain(Box::new(call.public(&claim.cipher)?))),
        Claiming::Go => {
            if call.state.0 != CallState::Started || call.attempt != Some(row.attempt) {
                let counted = open_calls::counted(&row, &call);
                if judge::is_unsettled(&row, &call) {
                    *row.unsettled(call.policy.0) -= 1;
                }
                call.state = Word(CallState::Started);
                call.attempt = Some(row.attempt);
                call.claim_id = Some(claim.claim_id);
                call.started_at = Some(now);
                call.touched_turn = Some(row.open_turn());
                let mut told = json!({ "call": call.id, "attempt": row.attempt, "turn": row.open_turn() });
                if call.arguments.is_none() && claim.arguments.is_some() {
                    (call.arguments, call.arguments_bytes) = (claim.arguments, claim.arguments_bytes);
                    told["arguments"] = claim.arguments_digest.into();
                }
                if !open_calls::grow(conn, &mut row, call.bytes() - counted).await? {
                    return Ok(Claimed::TooLarge);
                }
                call.save(conn).await?;
                append(conn, &mut row, now, kind::CLAIMED, actor::WORKER, told).await?;
                row.save(conn).await?;
            }
            Ok(Claimed::Go(Box::new(call.public(&claim.cipher)?)))
        }
    }
}

async fn first_claim(
    conn: &mut SqliteConnection,
    now: i64,
    mut row: RunRow,
    claim: Claim,
) -> DbResult<Claimed> {
    let Some(key) = claim.key else {
        return Ok(Claimed::Invalid(format!("call {:?} is new, and a new call needs a key", claim.id)));
    };
    let call = CallRow {
        run: claim.run,
        id: claim.id,
        ordinal: next_ordinal(conn, claim.run).await?,
        turn: row.open_turn(),
        policy: Word(claim.policy),
        key,
        created_at: now,
        state: Word(CallState::Started),
        arguments: claim.arguments,
        arguments_bytes: claim.arguments_bytes,
        attempt: Some(row.attempt),
        claim_id: Some(claim.claim_id),
        result: None,
        result_bytes: 0,
        key_refused: false,
        settled_by: None,
        reason: None,
        started_at: Some(now),
        ended_at: None,
        touched_turn: None,
    };
    if !open_calls::grow(conn, &mut row, call.bytes()).await? {
        return Ok(Claimed::TooLarge);
    }
    call.insert(conn).await?;
    let mut told = json!({
        "call": call.id, "attempt": row.attempt, "turn": call.turn, "policy": call.policy.0,
        "key": claim.cipher.call_digests(&call.id).render(&call.key),
    });
    if let Some(digest) = claim.arguments_digest {
        told["arguments"] = digest.into();
    }
    append(conn, &mut row, now, kind::CLAIMED, actor::WORKER, told).await?;
    row.save(conn).await?;
    Ok(Claimed::Go(Box::new(call.public(&claim.cipher)?)))
}

fn differs(call: &CallRow, claim: &Claim) -> Option<String> {
    if claim.key.as_ref().is_some_and(|key| *key != call.key) {
        Some(format!("call {:?} has another key", call.id))
    } else if call.policy.0 != claim.policy {
        Some(format!("call {:?} has another policy: {:?}", call.id, call.policy.0))
    } else {
        None
    }
}

/// The end of an index is read, and no more.
pub(super) const NEXT_ORDINAL: &str = "SELECT coalesce(max(ordinal), 0) + 1 FROM calls WHERE run = ?";

/// The place of a call that is first seen now.
pub(super) async fn next_ordinal(conn: &mut SqliteConnection, run: RunId) -> DbResult<i64> {
    Ok(sqlx::query_scalar(NEXT_ORDINAL).bind(run).fetch_one(conn).await?)
}

/// How a call stands now, on whose word ever.
pub(super) struct Ending {
    pub run: RunId,
    pub id: String,
    /// Not planned, nor started.
    pub state: CallState,
    pub result: Option<Box<RawValue>>,
    pub cipher: PayloadCipher,
}

/// Stores a call's result.
pub(super) async fn complete(
    conn: &mut SqliteConnection,
    now: i64,
    capability: Digest,
    claim_id: Uuid,
    ending: Ending,
) -> DbResult<Completed> {
    let Some(mut row) = RunRow::load(conn, ending.run).await? else {
        return Ok(Completed::NotFound);
    };
    if !judge::has_capability(&row, &capability) {
        return Ok(Completed::Fenced);
    }
    let mut call = match open_call(conn, &row, &ending).await? {
        Ok(call) => call,
        Err(answer) => return Ok(answer),
    };
    if call.key_refused {
        return Ok(Completed::Conflict(key_refused_message(&call.id)));
    }
    if call.claim_id != Some(claim_id) || call.attempt != Some(row.attempt) {
        return Ok(Completed::Conflict(format!("call {:?} is not started under this claim", call.id)));
    }
    if !keep_result(conn, &mut row, &mut call, &ending).await? {
        return Ok(Completed::TooLarge);
    }
    let kind = match ending.state {
        CallState::KeyRefused => kind::KEY_REFUSED,
        CallState::Failed => kind::FAILED,
        _ => kind::COMPLETED,
    };
    if ending.state == CallState::KeyRefused {
        refuse_key(conn, now, &mut row, &mut call).await?;
    } else {
        end_call(conn, now, &mut row, &mut call, ending.state).await?;
    }
    let detail = told(&row, &ending, json!({ "call": call.id }));
    append(conn, &mut row, now, kind, actor::WORKER, detail).await?;
    row.save(conn).await?;
    Ok(Completed::Ok)
}

/// What the audit tells of an end, with the open turn, and the digest of the result if there is one.
fn told(row: &RunRow, ending: &Ending, mut detail: Value) -> Value {
    detail["turn"] = row.open_turn().into();
    if let Some(result) = &ending.result {
        detail["result"] = ending.cipher.call_digests(&ending.id).render(result.get()).into();
    }
    detail
}

/// The call if it is started; else the answer: a duplicate of what stands, the run's end, or why not.
async fn open_call(
    conn: &mut SqliteConnection,
    row: &RunRow,
    ending: &Ending,
) -> DbResult<Result<CallRow, Completed>> {
    let call = CallRow::load(conn, row.id, &ending.id).await?;
    if let Some(call) = &call
        && call.public_state() == ending.state
        && decode_payload(call.result.as_deref(), AadContext::Result(&call.id), &ending.cipher)?
            .as_deref()
            .map(RawValue::get)
            == ending.result.as_deref().map(RawValue::get)
    {
        return Ok(Err(Completed::Duplicate));
    }
    if row.lifecycle.0 != Lifecycle::Live {
        return Ok(Err(Completed::Finished));
    }
    let Some(call) = call else {
        return Ok(Err(Completed::NoSuchCall));
    };
    Ok(match call.state.0 {
        CallState::Started | CallState::KeyRefused => Ok(call),
        CallState::Planned => Err(Completed::Conflict(format!("call {:?} was never claimed", call.id))),
        CallState::Completed | CallState::Failed => {
            Err(Completed::Conflict(format!("call {:?} has ended otherwise", call.id)))
        }
    })
}

/// A started call gets its result. False: with it the open calls would be too large.
async fn keep_result(
    conn: &mut SqliteConnection,
    row: &mut RunRow,
    call: &mut CallRow,
    ending: &Ending,
) -> DbResult<bool> {
    let counted = call.bytes();
    call.result = encode_payload(ending.result.as_deref(), AadContext::Result(&ending.id), &ending.cipher)?;
    call.result_bytes = size::of_json(ending.result.as_deref());
    // A call of an earlier turn is open until it has ended.
    let stays_open = ending.state == CallState::KeyRefused || call.turn == row.open_turn();
    open_calls::grow(conn, row, if stays_open { call.bytes() } else { 0 } - counted).await
}

/// The tool has refused the key of a started call: its outcome is a person's to tell.
async fn refuse_key(
    conn: &mut SqliteConnection,
    now: i64,
    row: &mut RunRow,
    call: &mut CallRow,
) -> DbResult<()> {
    call.key_refused = true;
    call.touched_turn = Some(row.open_turn());
    call.save(conn).await?;
    row.keys_refused += 1;
    row.changed_at = now;
    Ok(())
}

async fn end_call(
    conn: &mut SqliteConnection,
    now: i64,
    row: &mut RunRow,
    call: &mut CallRow,
    state: CallState,
) -> DbResult<()> {
    row.keys_refused -= i64::from(call.key_refused);
    call.key_refused = false;
    call.state = Word(state);
    call.ended_at = Some(now);
    call.touched_turn = Some(row.open_turn());
    row.completed_calls += 1;
    call.save(conn).await
}

impl Sqlite {
    pub(super) async fn do_calls(&self, run: RunId, which: CallFilter) -> crate::Result<Vec<Call>> {
        let doing = "listing calls";
        let rows = self.read(doing, move |conn, _| Box::pin(list(conn, run, which))).await?;
        let cipher = self.cipher_to_read(run, rows.iter().any(CallRow::looks_sealed)).await?;
        rows.iter().map(|row| row.public(&cipher).map_err(|fault| fault.with_context(doing))).collect()
    }
}

/// Calls of a run in the order in which they were first seen.
async fn list(conn: &mut SqliteConnection, run: RunId, which: CallFilter) -> DbResult<Vec<CallRow>> {
    let query = sqlx::query(listing(which)).bind(run);
    let query = if let CallFilter::TouchedSince(turn) = which { query.bind(turn) } else { query };
    let rows = query.fetch_all(conn).await?;
    rows.iter().map(CallRow::read).collect()
}

/// What lists calls. But for all of them, and those touched since, it costs what it finds, however many calls the run has made.
pub(super) fn listing(which: CallFilter) -> &'static str {
    match which {
        CallFilter::All => "SELECT * FROM calls WHERE run = ? ORDER BY ordinal",
        CallFilter::TouchedSince(_) => {
            "SELECT * FROM calls WHERE run = ? AND coalesce(touched_turn, turn) >= ? ORDER BY ordinal"
        }
        CallFilter::Pending => {
            "SELECT calls.* FROM runs JOIN calls ON calls.run = runs.id \
             WHERE runs.id = ?1 AND calls.state = 'planned' \
               AND calls.turn = CASE head_boundary WHEN 1 THEN head_turn ELSE coalesce(head_turn, 0) + 1 END \
             UNION ALL SELECT * FROM calls WHERE run = ?1 AND state = 'started' ORDER BY ordinal"
        }
        CallFilter::Unsettled => {
            "SELECT calls.* FROM runs JOIN calls ON calls.run = runs.id \
             WHERE runs.id = ? AND calls.state = 'started' \
               AND (calls.attempt <> runs.attempt OR runs.attempt_state = 'ended') \
             ORDER BY calls.ordinal"
        }
        // The turn that is worked on: the head's while its boundary is `plan`, else one more.
        CallFilter::OpenTurn => {
            "SELECT calls.* FROM runs JOIN calls ON calls.run = runs.id \
             WHERE runs.id = ? AND calls.state IN ('completed', 'failed') \
               AND calls.turn = CASE head_boundary WHEN 1 THEN head_turn ELSE coalesce(head_turn, 0) + 1 END \
             ORDER BY calls.ordinal"
        }
    }
}
