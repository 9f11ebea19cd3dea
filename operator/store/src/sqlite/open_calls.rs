//! The size of a run's open calls: those that are started, and those of the open turn that are planned or have ended.

use dalsegno_protocol::{CallState, Limits};
use sqlx::SqliteConnection;

use super::boundary::PreparedCommit;
use super::row::RunRow;
use crate::db_error::DbResult;
use crate::reads::CallRow;
use dalsegno_format::seal::AadContext;
use dalsegno_format::size;

/// Bytes of the open calls. Each half uses its own index.
pub(super) const BYTES: &str = "SELECT coalesce(sum(octet_length(id) + octet_length(key) + arguments_bytes \
     + max(result_bytes, ?3)), 0) FROM ( \
         SELECT id, key, arguments_bytes, result_bytes FROM calls WHERE run = ?1 AND state = 'started' \
         UNION ALL SELECT id, key, arguments_bytes, result_bytes FROM calls \
         WHERE run = ?1 AND turn = ?2 AND state <> 'started')";

/// Returns the bytes of the run's open calls.
pub(super) async fn bytes(conn: &mut SqliteConnection, row: &RunRow) -> DbResult<i64> {
    let turn = row.open_turn();
    if let Some(bytes) = row.open_calls_bytes.filter(|_| row.open_calls_turn == Some(turn)) {
        return Ok(bytes);
    }
    Ok(sqlx::query_scalar(BYTES)
        .bind(row.id)
        .bind(turn)
        .bind(Limits::SMALL_RESULT_BYTES as i64)
        .fetch_one(conn)
        .await?)
}

/// Adds bytes to the size of the open calls. Returns false, and changes nothing, if the sum would exceed the limit. A
/// number that is not positive is always accepted.
pub(super) async fn add(conn: &mut SqliteConnection, row: &mut RunRow, added: i64) -> DbResult<bool> {
    let bytes = bytes(conn, row).await? + added;
    if added > 0 && bytes > Limits::OPEN_CALLS_BYTES as i64 {
        return Ok(false);
    }
    row.open_calls_bytes = Some(bytes);
    row.open_calls_turn = Some(row.open_turn());
    Ok(true)
}

/// Returns whether these ids name every call that the current attempt has started, with the policy `probe` or `ask`, and
/// that has no outcome.
pub(super) async fn are_named(conn: &mut SqliteConnection, row: &RunRow, ids: &[String]) -> DbResult<bool> {
    if row.own_open_calls == 0 || ids.is_empty() {
        return Ok(row.own_open_calls == 0);
    }
    let open: Vec<String> = sqlx::query_scalar(
        "SELECT id FROM calls WHERE run = ? AND state = 'started' AND attempt = ? AND policy IN ('probe', 'ask')",
    )
    .bind(row.id)
    .bind(row.attempt)
    .fetch_all(conn)
    .await?;
    Ok(open.iter().all(|id| ids.contains(id)))
}

/// Returns the bytes that a call adds to the open calls in its present state.
pub(super) fn open_bytes(row: &RunRow, call: &CallRow) -> i64 {
    let is_open = call.state.0 == CallState::Started || call.turn == row.open_turn();
    if is_open { call.bytes() } else { 0 }
}

/// Returns the bytes that planned calls add to the open calls. `turn` is the turn that opens with them.
pub(super) async fn planned_bytes(
    conn: &mut SqliteConnection,
    turn: i32,
    commit: &PreparedCommit,
) -> DbResult<i64> {
    let mut added = 0;
    for call in &commit.calls {
        added += match CallRow::load(conn, commit.run, &call.id).await? {
            None => size::of_call(size::OpenCall {
                id: &call.id,
                key: &commit.cipher.seal_text(AadContext::CallKey(&call.id), &call.key)?,
                arguments_bytes: size::of_json(call.arguments.as_deref()),
                result_bytes: 0,
            }),
            Some(call) if call.state.0 == CallState::Planned && call.turn != turn => call.bytes(),
            Some(_) => 0,
        };
    }
    Ok(added)
}
