//! Statements of tool calls: claimed before their effect, completed after it.

use dalsegno_protocol::{CallState, Policy, RawValue, Usage};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, SqliteConnection};
use uuid::Uuid;

use super::admission::{self, ClaimDecision};
use super::audit::append;
use super::disk::Room;
use super::row::RunRow;
use super::sqlx_types::{EnumText, insert};
use super::waits::UsedApproval;
use super::{data_keys, open_calls, waits};
use crate::db_error::DbResult;
use crate::keys::no_keys;
use crate::reads::{CallRow, decode_payload, encode_payload};
use crate::reads::{has_other_arguments, key_refused_message, not_granted_message, other_arguments_message};
use crate::statements::CALLS_TO_SETTLE;
use crate::transitions::{AuditEvent, OutboxEntry, add_usage, has_capability, is_unsettled, needs_outcome};
use dalsegno_format::seal::{AadContext, CallDigestsExt as _, PayloadCipher};
use dalsegno_format::size;
use dalsegno_model::audit::{actor, kind};
use dalsegno_model::{CallFilter, Claimed, Completed, Digest, Lifecycle, RunId};

/// A claim whose payload is encoded.
pub(super) struct PreparedClaim {
    pub run: RunId,
    pub capability: Digest,
    pub id: String,
    pub claim_id: Uuid,
    pub policy: Policy,
    pub key: Option<String>,
    pub arguments: Option<Vec<u8>>,
    pub arguments_bytes: i64,
    pub arguments_digest: Option<String>,
    pub approval: Option<String>,
    pub tool: Option<String>,
    pub cipher: PayloadCipher,
    pub room: Room,
}

/// Claims a call before its effect. An approval that the claim names is used with it.
pub(super) async fn claim(conn: &mut SqliteConnection, now: i64, claim: PreparedClaim) -> DbResult<Claimed> {
    let (run, id, approval) = (claim.run, claim.id.clone(), claim.approval.clone());
    let claimed = claim_call(conn, now, claim).await?;
    if let (Claimed::Go(_), Some(approval)) = (&claimed, approval) {
        waits::use_approval(conn, now, UsedApproval { run, approval, call: id }).await?;
    }
    Ok(claimed)
}

async fn claim_call(conn: &mut SqliteConnection, now: i64, claim: PreparedClaim) -> DbResult<Claimed> {
    let Some(mut row) = RunRow::load(conn, claim.run).await? else {
        return Ok(Claimed::NotFound);
    };
    if !has_capability(&row, &claim.capability) {
        return Ok(Claimed::Fenced);
    }
    if row.lifecycle.0 != Lifecycle::Live {
        return Ok(Claimed::Finished);
    }
    // Without keys this process could neither read the call nor store its result, so the effect must not begin.
    if !claim.cipher.has_keys() && data_keys::has_data_key(conn, claim.run).await? {
        return Err(no_keys().into());
    }
    if let Some(approval) = &claim.approval {
        match waits::approval_use(conn, claim.run, approval).await? {
            None => return Ok(Claimed::ApprovalNotGranted(not_granted_message(Some(approval)))),
            Some(Some(used_by)) if used_by != claim.id => return Ok(Claimed::ApprovalSpent),
            Some(_) => {}
        }
    }
    let Some(mut call) = CallRow::load(conn, claim.run, &claim.id).await? else {
        return first_claim(conn, now, row, claim).await;
    };
    if let Some(reason) = mismatch(&call, &claim)? {
        return Ok(Claimed::Invalid(reason));
    }
    if has_other_arguments(&call, claim.arguments.as_deref(), &claim.cipher)? {
        return Ok(Claimed::Invalid(other_arguments_message(&call, is_undone(conn, &call).await?)));
    }
    match admission::decide_claim(&row, &call, claim.claim_id) {
        ClaimDecision::Done => Ok(Claimed::Done(Box::new(call.public(&claim.cipher)?))),
        ClaimDecision::Uncertain => Ok(Claimed::Uncertain(Box::new(call.public(&claim.cipher)?))),
        ClaimDecision::Go => {
            if call.state.0 != CallState::Started || call.attempt != Some(row.attempt) {
                if call.state.0 == CallState::Planned {
                    claim.room.check()?;
                }
                let before = open_calls::open_bytes(&row, &call);
                if is_unsettled(&row, &call) {
                    *row.unsettled(call.policy.0) -= 1;
                }
                // Only `retrySameKey` and `readOnly` calls of an earlier attempt go on.
                row.own_open_calls += needs_outcome(call.policy.0);
                call.state = EnumText(CallState::Started);
                call.attempt = Some(row.attempt);
                call.claim_id = Some(claim.claim_id);
                call.started_at = Some(now);
                call.touched_turn = Some(row.open_turn());
                let mut detail = json!({ "call": call.id, "attempt": row.attempt, "turn": row.open_turn() });
                if call.arguments.is_none() && claim.arguments.is_some() {
                    (call.arguments, call.arguments_bytes) = (claim.arguments, claim.arguments_bytes);
                    detail["arguments"] = claim.arguments_digest.into();
                }
                if let (None, Some(tool)) = (&call.tool, claim.tool) {
                    detail["tool"] = tool.as_str().into();
                    call.tool = Some(tool);
                }
                if !open_calls::add(conn, &mut row, call.bytes() - before).await? {
                    return Ok(Claimed::TooLarge);
                }
                call.save(conn).await?;
                append(conn, &mut row, now, AuditEvent { kind: kind::CLAIMED, actor: actor::WORKER, detail })
                    .await?;
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
    claim: PreparedClaim,
) -> DbResult<Claimed> {
    let Some(key) = claim.key else {
        return Ok(Claimed::Invalid(format!("call {:?} is new, and a new call needs a key", claim.id)));
    };
    // An effect must not begin while its turn could not be stored. What has begun is completed.
    claim.room.check()?;
    let stored_key = claim.cipher.seal_text(AadContext::CallKey(&claim.id), &key)?;
    let call = CallRow {
        run: claim.run,
        id: claim.id,
        ordinal: next_ordinal(conn, claim.run).await?,
        turn: row.open_turn(),
        policy: EnumText(claim.policy),
        key: stored_key,
        created_at: now,
        state: EnumText(CallState::Started),
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
        tool: claim.tool,
        spent_at: None,
        tokens_in: 0,
        tokens_out: 0,
        tool_calls: 0,
        cost_micro_usd: 0,
    };
    if !open_calls::add(conn, &mut row, call.bytes()).await? {
        return Ok(Claimed::TooLarge);
    }
    call.insert(conn).await?;
    row.own_open_calls += needs_outcome(call.policy.0);
    let mut detail = json!({
        "call": call.id, "attempt": row.attempt, "turn": call.turn, "policy": call.policy.0,
        "key": claim.cipher.call_digests(&call.id).render(&key),
    });
    if let Some(digest) = claim.arguments_digest {
        detail["arguments"] = digest.into();
    }
    if let Some(tool) = &call.tool {
        detail["tool"] = tool.as_str().into();
    }
    append(conn, &mut row, now, AuditEvent { kind: kind::CLAIMED, actor: actor::WORKER, detail }).await?;
    row.save(conn).await?;
    Ok(Claimed::Go(Box::new(call.public(&claim.cipher)?)))
}

/// Returns how a claim contradicts the stored call.
fn mismatch(call: &CallRow, claim: &PreparedClaim) -> DbResult<Option<String>> {
    let stored = call.opened_key(&claim.cipher)?;
    Ok(if claim.key.as_ref().is_some_and(|key| *key != stored) {
        Some(format!("call {:?} has another key", call.id))
    } else if call.policy.0 != claim.policy {
        Some(format!("call {:?} has another policy: {:?}", call.id, call.policy.0))
    } else {
        None
    })
}

/// Whether a rewind undid the turn of a call.
async fn is_undone(conn: &mut SqliteConnection, call: &CallRow) -> DbResult<bool> {
    let query = sqlx::query_scalar(
        "SELECT EXISTS (SELECT 1 FROM audit WHERE run = ? AND kind = ? AND at >= ? AND detail ->> '$.to.turn' < ?)",
    );
    let query = query.bind(call.run).bind(kind::REWOUND).bind(call.created_at).bind(call.turn);
    Ok(query.fetch_one(conn).await?)
}

/// Reads only the last entry of an index.
pub(super) const NEXT_ORDINAL: &str = "SELECT coalesce(max(ordinal), 0) + 1 FROM calls WHERE run = ?";

/// Returns the ordinal of a call that is new.
pub(super) async fn next_ordinal(conn: &mut SqliteConnection, run: RunId) -> DbResult<i64> {
    Ok(sqlx::query_scalar(NEXT_ORDINAL).bind(run).fetch_one(conn).await?)
}

/// How a call ended.
pub(super) struct CallEnd {
    pub run: RunId,
    pub capability: Digest,
    pub id: String,
    pub claim_id: Uuid,
    /// Neither planned nor started.
    pub state: CallState,
    pub result: Option<Box<RawValue>>,
    pub usage: Usage,
    pub cipher: PayloadCipher,
}

/// Completes a call and stores its result.
pub(super) async fn complete(conn: &mut SqliteConnection, now: i64, end: CallEnd) -> DbResult<Completed> {
    let Some(mut row) = RunRow::load(conn, end.run).await? else {
        return Ok(Completed::NotFound);
    };
    if !has_capability(&row, &end.capability) {
        return Ok(Completed::Fenced);
    }
    let mut call = match started_call(conn, &row, &end).await? {
        Ok(call) => call,
        Err(answer) => return Ok(answer),
    };
    if call.key_refused {
        return Ok(Completed::Conflict(key_refused_message(&call.id)));
    }
    if call.claim_id != Some(end.claim_id) || call.attempt != Some(row.attempt) {
        return Ok(Completed::Conflict(format!("call {:?} is not started under this claim", call.id)));
    }
    if !store_result(conn, &mut row, &mut call, &end).await? {
        return Ok(Completed::TooLarge);
    }
    let kind = match end.state {
        CallState::KeyRefused => kind::KEY_REFUSED,
        CallState::Failed => kind::FAILED,
        _ => kind::COMPLETED,
    };
    if end.state == CallState::KeyRefused {
        refuse_key(now, &mut row, &mut call);
    } else {
        end_call(now, &mut row, &mut call, end.state);
    }
    let mut detail = with_result(&row, &end, json!({ "call": call.id }));
    if !end.usage.is_zero() {
        detail["usage"] = json!(end.usage);
        for entry in add_usage(&mut row, &mut call, &end.usage, now) {
            insert(conn, OutboxEntry::TABLE, entry.assignments(row.id)).await?;
        }
    }
    call.save(conn).await?;
    append(conn, &mut row, now, AuditEvent { kind, actor: actor::WORKER, detail }).await?;
    row.save(conn).await?;
    Ok(Completed::Ok)
}

/// Adds the open turn to an audit entry's detail, and the digest of the result if there is one.
fn with_result(row: &RunRow, end: &CallEnd, mut detail: Value) -> Value {
    detail["turn"] = row.open_turn().into();
    if let Some(result) = &end.result {
        detail["result"] = end.cipher.call_digests(&end.id).render(result.get()).into();
    }
    detail
}

/// Returns the call if it is started. If not, returns the result of the completion: a duplicate of the stored end, the
/// end of the run, or a conflict.
async fn started_call(
    conn: &mut SqliteConnection,
    row: &RunRow,
    end: &CallEnd,
) -> DbResult<Result<CallRow, Completed>> {
    let call = CallRow::load(conn, row.id, &end.id).await?;
    if let Some(call) = &call
        && call.public_state() == end.state
        && decode_payload(call.result.as_deref(), AadContext::Result(&call.id), &end.cipher)?
            .as_deref()
            .map(RawValue::get)
            == end.result.as_deref().map(RawValue::get)
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

/// Sets the result of a started call. Returns false if the open calls would then be too large.
async fn store_result(
    conn: &mut SqliteConnection,
    row: &mut RunRow,
    call: &mut CallRow,
    end: &CallEnd,
) -> DbResult<bool> {
    let before = call.bytes();
    call.result = encode_payload(end.result.as_deref(), AadContext::Result(&end.id), &end.cipher)?;
    call.result_bytes = size::of_json(end.result.as_deref());
    // A call of an earlier turn is open only until it ends.
    let stays_open = end.state == CallState::KeyRefused || call.turn == row.open_turn();
    open_calls::add(conn, row, if stays_open { call.bytes() } else { 0 } - before).await
}

/// Marks a started call whose key the tool refused. Only a person may settle it.
fn refuse_key(now: i64, row: &mut RunRow, call: &mut CallRow) {
    call.key_refused = true;
    call.touched_turn = Some(row.open_turn());
    row.keys_refused += 1;
    row.changed_at = now;
}

/// Ends a call that the current attempt has started.
fn end_call(now: i64, row: &mut RunRow, call: &mut CallRow, state: CallState) {
    row.keys_refused -= i64::from(call.key_refused);
    row.own_open_calls -= needs_outcome(call.policy.0);
    call.key_refused = false;
    call.state = EnumText(state);
    call.ended_at = Some(now);
    call.touched_turn = Some(row.open_turn());
    row.completed_calls += 1;
}

/// Lists calls of a run by their ordinals.
pub(super) async fn list(
    conn: &mut SqliteConnection,
    run: RunId,
    which: CallFilter,
) -> DbResult<Vec<CallRow>> {
    let query = sqlx::query(AssertSqlSafe(list_sql(which))).bind(run);
    let query = if let CallFilter::TouchedSince(turn) = which { query.bind(turn) } else { query };
    let rows = query.fetch_all(conn).await?;
    rows.iter().map(CallRow::read).collect()
}

/// Lists the ids of the calls that only a person can settle. Reads no payload.
pub(super) async fn ids_to_settle(
    conn: &mut SqliteConnection,
    run: RunId,
    limit: u32,
) -> DbResult<Vec<String>> {
    Ok(sqlx::query_scalar(CALLS_TO_SETTLE).bind(run).bind(limit).fetch_all(conn).await?)
}

/// The query that lists calls. Its cost depends on the calls that it returns, not on those that the run has made,
/// except for [`CallFilter::All`] and [`CallFilter::TouchedSince`].
pub(super) fn list_sql(which: CallFilter) -> String {
    let sql = match which {
        CallFilter::All => "SELECT {calls} FROM calls WHERE run = ? ORDER BY ordinal",
        CallFilter::TouchedSince(_) => {
            "SELECT {calls} FROM calls WHERE run = ? AND coalesce(touched_turn, turn) >= ? ORDER BY ordinal"
        }
        CallFilter::Pending => {
            "SELECT {calls} FROM runs JOIN calls ON calls.run = runs.id \
             WHERE runs.id = ?1 AND calls.state = 'planned' \
               AND calls.turn = CASE head_boundary WHEN 1 THEN head_turn ELSE coalesce(head_turn, 0) + 1 END \
             UNION ALL SELECT {calls} FROM calls WHERE run = ?1 AND state = 'started' ORDER BY ordinal"
        }
        CallFilter::Unsettled => {
            "SELECT {calls} FROM runs JOIN calls ON calls.run = runs.id \
             WHERE runs.id = ? AND calls.state = 'started' \
               AND (calls.attempt <> runs.attempt OR runs.attempt_state = 'ended') \
             ORDER BY calls.ordinal"
        }
        // The open turn is the head's if the head is a `plan` boundary, and the next one if not. A call that was last
        // claimed before a rewind to an earlier turn is not the open turn's. The rewinds are read once.
        CallFilter::OpenTurn => {
            "WITH rewound AS MATERIALIZED ( \
                 SELECT at, detail ->> '$.to.turn' AS turn FROM audit \
                 WHERE run = ?1 AND kind = 'rewound' AND (SELECT rewinds FROM runs WHERE id = ?1) > 0 \
             ) \
             SELECT {calls} FROM runs JOIN calls ON calls.run = runs.id \
             WHERE runs.id = ?1 AND calls.state IN ('completed', 'failed') \
               AND calls.turn = CASE head_boundary WHEN 1 THEN head_turn ELSE coalesce(head_turn, 0) + 1 END \
               AND NOT EXISTS ( \
                   SELECT 1 FROM rewound \
                   WHERE rewound.at >= coalesce(calls.started_at, calls.created_at) AND rewound.turn < calls.turn \
               ) \
             ORDER BY calls.ordinal"
        }
    };
    sql.replace("{calls}", &CallRow::columns_of("calls"))
}
