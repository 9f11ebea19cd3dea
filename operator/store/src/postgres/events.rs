//! Events of the live branch, by position.

use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::Postgres;
use super::row::{boundary, optional_digest};
use crate::compaction::is_dropped;
use crate::db_error::DbResult;
use crate::events::{StoredEvents, page};
use crate::statements::FIRST_POSITION;
use dalsegno_model::{EventPage, EventQuery, RunId};

/// The boundaries that contain the requested events, and whether the run is over: if there are no such boundaries, one
/// row says that alone. Each of these boundaries has at least one of the events.
const READ: &str = concat!(
    "SELECT runs.lifecycle <> 'live' AS over, page.* \
     FROM runs LEFT JOIN ( \
         SELECT *, sum(octet_length(events)) OVER (ORDER BY position) - octet_length(events) AS before \
         FROM ( \
             SELECT b.turn, b.boundary, b.commit_id, b.attempt, b.position, b.events, b.events_digest \
             FROM boundaries b \
             WHERE b.run = $1 AND b.event_count > 0 AND b.position >= $2 AND NOT b.undone AND NOT ",
    is_dropped!(),
    " ORDER BY b.position LIMIT $3 \
         ) AS found \
     ) AS page ON page.before < $4 \
     WHERE runs.id = $1 ORDER BY page.position"
);

impl Postgres {
    pub(super) async fn do_events(&self, run: RunId, query: EventQuery) -> DbResult<EventPage> {
        let read = sqlx::query(READ)
            .bind(run)
            .bind(query.from)
            .bind(i64::from(query.limit))
            .bind(i64::try_from(query.bytes).unwrap_or(i64::MAX));
        let rows = self.pool.all(read).await?;
        let over = rows.first().map_or(Ok(true), |row| row.try_get("over"))?;
        let found =
            rows.iter().filter_map(|row| stored_events(row).transpose()).collect::<DbResult<Vec<_>>>()?;
        let cipher = self.cipher_to_read(run, found.iter().any(StoredEvents::looks_sealed)).await?;
        Ok(EventPage { events: page(found, &query, &cipher)?, over })
    }

    pub(super) async fn do_first_event(&self, run: RunId, turn: i32) -> DbResult<Option<i64>> {
        let row = self.pool.optional(sqlx::query(FIRST_POSITION).bind(run).bind(turn)).await?;
        Ok(row.map(|row| row.try_get("first")).transpose()?)
    }
}

fn stored_events(row: &PgRow) -> DbResult<Option<StoredEvents>> {
    let Some(turn) = row.try_get("turn")? else {
        return Ok(None);
    };
    Ok(Some(StoredEvents {
        turn,
        boundary: boundary(row)?,
        commit_id: row.try_get("commit_id")?,
        attempt: row.try_get("attempt")?,
        position: row.try_get("position")?,
        payload: row.try_get("events")?,
        digest: optional_digest(row, "events_digest")?,
    }))
}
