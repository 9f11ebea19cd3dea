//! Statements of the events on the live branch.

use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, SqliteConnection};

use super::row::RunRow;
use super::sqlx_types::{BoundaryColumn, Hash};
use crate::compaction::is_dropped;
use crate::db_error::DbResult;
use crate::events::StoredEvents;
use crate::statements::FIRST_POSITION;
use dalsegno_model::{EventQuery, Lifecycle, RunId};

/// The boundaries with events at positions from `?2` on: at most `?3`, because each has at least one event, and no
/// further one once `?4` bytes are read.
const READ: &str = concat!(
    "SELECT * FROM ( \
         SELECT *, sum(length(events)) OVER (ORDER BY position) - length(events) AS before \
         FROM ( \
             SELECT b.turn, b.boundary, b.commit_id, b.attempt, b.position, b.events, b.events_digest \
             FROM boundaries b \
             WHERE b.run = ?1 AND b.event_count > 0 AND b.position >= ?2 AND NOT b.undone AND NOT ",
    is_dropped!(),
    " ORDER BY b.position LIMIT ?3 \
         ) \
     ) WHERE before < ?4 ORDER BY position"
);

/// Returns the position of the first event of a turn.
pub(super) async fn first(conn: &mut SqliteConnection, run: RunId, turn: i32) -> DbResult<Option<i64>> {
    Ok(sqlx::query_scalar(FIRST_POSITION).bind(run).bind(turn).fetch_optional(conn).await?)
}

/// Returns the boundaries with the events, and whether the run has ended.
pub(super) async fn read(
    conn: &mut SqliteConnection,
    run: RunId,
    query: EventQuery,
) -> DbResult<(Vec<StoredEvents>, bool)> {
    let Some(row) = RunRow::load(conn, run).await? else {
        return Ok((Vec::new(), true));
    };
    let rows = sqlx::query(READ)
        .bind(run)
        .bind(query.from)
        .bind(query.limit)
        .bind(i64::try_from(query.bytes).unwrap_or(i64::MAX))
        .fetch_all(conn)
        .await?;
    let found = rows.iter().map(stored_events).collect::<DbResult<_>>()?;
    Ok((found, row.lifecycle.0 != Lifecycle::Live))
}

fn stored_events(row: &SqliteRow) -> DbResult<StoredEvents> {
    Ok(StoredEvents {
        turn: row.try_get("turn")?,
        boundary: row.try_get::<BoundaryColumn, _>("boundary")?.0,
        commit_id: row.try_get("commit_id")?,
        attempt: row.try_get("attempt")?,
        position: row.try_get("position")?,
        payload: row.try_get("events")?,
        digest: row.try_get::<Option<Hash>, _>("events_digest")?.map(|hash| hash.0),
    })
}
