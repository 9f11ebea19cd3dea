//! Events of the live branch, by position.

use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::Postgres;
use super::row::{optional_digest, the_boundary};
use crate::compaction::is_dropped;
use crate::db_error::DbResult;
use crate::events::{StoredEvents, page};
use crate::statements::FIRST_POSITION;
use crate::{EventPage, EventQuery, RunId};

/// Boundaries with the events asked for, and in any case whether the run is over. A boundary has at least one event of
/// those it is asked for.
const READ: &str = concat!(
    "SELECT runs.lifecycle <> 'live' AS over, kept.* \
     FROM runs LEFT JOIN ( \
         SELECT *, sum(octet_length(events)) OVER (ORDER BY position) - octet_length(events) AS before \
         FROM ( \
             SELECT b.turn, b.boundary, b.commit_id, b.attempt, b.position, b.events, b.events_digest \
             FROM boundaries b \
             WHERE b.run = $1 AND b.event_count > 0 AND b.position >= $2 AND NOT b.undone AND NOT ",
    is_dropped!(),
    " ORDER BY b.position LIMIT $3 \
         ) AS found \
     ) AS kept ON kept.before < $4 \
     WHERE runs.id = $1 ORDER BY kept.position"
);

impl Postgres {
    pub(super) async fn do_events(&self, run: RunId, query: EventQuery) -> DbResult<EventPage> {
        let rows = sqlx::query(READ)
            .bind(run)
            .bind(query.from)
            .bind(i64::from(query.limit))
            .bind(i64::try_from(query.bytes).unwrap_or(i64::MAX));
        let rows = self.pool.all(rows).await?;
        let over = rows.first().map_or(Ok(true), |row| row.try_get("over"))?;
        let found = rows.iter().filter_map(|row| kept(row).transpose()).collect::<DbResult<Vec<_>>>()?;
        let cipher = self.cipher_to_read(run, found.iter().any(StoredEvents::looks_sealed)).await?;
        Ok(EventPage { events: page(found, &query, &cipher)?, over })
    }

    pub(super) async fn do_first_event(&self, run: RunId, turn: i32) -> DbResult<Option<i64>> {
        let row = self.pool.optional(sqlx::query(FIRST_POSITION).bind(run).bind(turn)).await?;
        Ok(row.map(|row| row.try_get("first")).transpose()?)
    }
}

fn kept(row: &PgRow) -> DbResult<Option<StoredEvents>> {
    let Some(turn) = row.try_get("turn")? else {
        return Ok(None);
    };
    Ok(Some(StoredEvents {
        turn,
        boundary: the_boundary(row)?,
        commit_id: row.try_get("commit_id")?,
        attempt: row.try_get("attempt")?,
        position: row.try_get("position")?,
        payload: row.try_get("events")?,
        digest: optional_digest(row, "events_digest")?,
    }))
}
