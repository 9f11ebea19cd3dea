//! Statements of messages.

use serde_json::json;
use sqlx::{AssertSqlSafe, Row as _, SqliteConnection};

use super::audit::append;
use super::row::RunRow;
use super::sqlx_types::BoundaryColumn;
use crate::db_error::DbResult;
use crate::messages::page_sql;
use crate::reads::MessageRow;
use crate::transitions::AuditEvent;
use dalsegno_model::audit::{actor, kind};
use dalsegno_model::{BoundaryId, MessageQuery, RunId};

/// The first of the positions `?2`, a JSON array, that is no unread message.
const MISSING: &str = "SELECT min(value) FROM json_each(?2) WHERE value NOT IN ( \
         SELECT position FROM messages WHERE run = ?1 AND taken_turn IS NULL)";

const TAKE: &str = "UPDATE messages SET taken_turn = ?3, taken_boundary = ?4, taken_epoch = ?5 \
     WHERE run = ?1 AND position IN (SELECT value FROM json_each(?2)) AND taken_turn IS NULL \
     RETURNING position, bytes";

/// Returns the rows of a page, and how many there are with those that have no room on it.
pub(super) async fn read(
    conn: &mut SqliteConnection,
    run: RunId,
    query: MessageQuery,
) -> DbResult<(Vec<MessageRow>, i64)> {
    let rows = sqlx::query(AssertSqlSafe(page_sql(query.unread_only)))
        .bind(run)
        .bind(query.after)
        .bind(i64::from(query.limit) + 1)
        .bind(i64::try_from(query.bytes).unwrap_or(i64::MAX))
        .fetch_all(conn)
        .await?;
    let found = rows.first().map_or(Ok(0), |row| row.try_get("found"))?;
    Ok((rows.iter().map(MessageRow::read).collect::<DbResult<_>>()?, found))
}

/// Returns the first of these positions that is no unread message of the run.
pub(super) async fn first_missing(
    conn: &mut SqliteConnection,
    run: RunId,
    positions: &[i64],
) -> DbResult<Option<i64>> {
    if positions.is_empty() {
        return Ok(None);
    }
    let query = sqlx::query_scalar(MISSING).bind(run).bind(json!(positions).to_string());
    Ok(query.fetch_one(conn).await?)
}

/// The messages that a boundary takes.
#[derive(Debug)]
pub(super) struct Taken<'a> {
    pub positions: &'a [i64],
    pub by: BoundaryId,
    pub now: i64,
}

/// Takes messages, which must be unread, with a boundary. The caller saves the run's row.
pub(super) async fn take(conn: &mut SqliteConnection, row: &mut RunRow, taken: Taken<'_>) -> DbResult<()> {
    let Taken { positions, by: BoundaryId { turn, boundary, epoch }, now } = taken;
    if positions.is_empty() {
        return Ok(());
    }
    let query = sqlx::query_as(TAKE)
        .bind(row.id)
        .bind(json!(positions).to_string())
        .bind(turn)
        .bind(BoundaryColumn(boundary))
        .bind(epoch);
    let mut taken: Vec<(i64, i64)> = query.fetch_all(&mut *conn).await?;
    taken.sort_unstable();
    row.unread -= taken.len() as i64;
    row.unread_bytes -= taken.iter().map(|(_, bytes)| bytes).sum::<i64>();
    let positions: Vec<_> = taken.into_iter().map(|(position, _)| position).collect();
    let detail = json!({ "turn": turn, "boundary": boundary, "positions": positions });
    append(conn, row, now, AuditEvent { kind: kind::MESSAGES_TAKEN, actor: actor::WORKER, detail }).await
}
