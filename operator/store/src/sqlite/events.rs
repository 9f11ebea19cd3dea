//! Events of the live branch, by position.

use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, SqliteConnection};

use super::columns::{Hash, Which};
use super::row::RunRow;
use super::{Reads as _, Sqlite};
use crate::compaction::is_dropped;
use crate::db_error::DbResult;
use crate::events::{StoredEvents, page};
use crate::statements::FIRST_POSITION;
use crate::{EventPage, EventQuery, Lifecycle, Result, RunId};

/// Boundaries with the events asked for. A boundary has at least one event of those it is asked for.
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

impl Sqlite {
    pub(super) async fn do_events(&self, run: RunId, query: EventQuery) -> Result<EventPage> {
        let found = self.read("reading events", move |conn, _| Box::pin(read(conn, run, query)));
        let (found, over) = found.await?;
        let cipher = self.cipher_to_read(run, found.iter().any(StoredEvents::looks_sealed)).await?;
        Ok(EventPage { events: page(found, &query, &cipher)?, over })
    }
}

/// Where the events of a turn begin.
pub(super) async fn first(conn: &mut SqliteConnection, run: RunId, turn: i32) -> DbResult<Option<i64>> {
    Ok(sqlx::query_scalar(FIRST_POSITION).bind(run).bind(turn).fetch_optional(conn).await?)
}

/// The boundaries with the events, and whether the run is over.
async fn read(
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
    let found = rows.iter().map(kept).collect::<DbResult<_>>()?;
    Ok((found, row.lifecycle.0 != Lifecycle::Live))
}

fn kept(row: &SqliteRow) -> DbResult<StoredEvents> {
    Ok(StoredEvents {
        turn: row.try_get("turn")?,
        boundary: row.try_get::<Which, _>("boundary")?.0,
        commit_id: row.try_get("commit_id")?,
        attempt: row.try_get("attempt")?,
        position: row.try_get("position")?,
        payload: row.try_get("events")?,
        digest: row.try_get::<Option<Hash>, _>("events_digest")?.map(|hash| hash.0),
    })
}
