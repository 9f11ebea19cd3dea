//! The pages of a survey, and the ids of all runs.

use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::Postgres;
use super::answers::Answers;
use super::branch::encoded;
use super::row::{number, place};
use crate::compaction::is_dropped;
use crate::db_error::{DbError, DbResult};
use crate::pages::{PAGE_BYTES, PAGE_ROWS};
use crate::snapshot_io::PageEntry;
use crate::{Place, RunId};

/// At least one boundary, if there is one; no more than these bytes of payloads beyond it. Their lengths are known
/// without reading them.
const PAGE: &str = concat!(
    "SELECT b.*, true AS has_payloads, \
            ",
    is_dropped!(),
    " AS is_dropped, \
             NULL::bytea AS document, NULL::bytea AS snapshot_digest FROM ( \
         SELECT turn, boundary, epoch, \
                sum(bytes) OVER (ORDER BY turn, boundary, epoch ROWS UNBOUNDED PRECEDING) - bytes AS before \
         FROM ( \
             SELECT turn, boundary, epoch, \
                    coalesce(octet_length(ops), 0)::bigint + coalesce(octet_length(events), 0) AS bytes \
             FROM boundaries \
             WHERE run = $1 AND (turn, boundary, epoch) > ($2, $3, $4) \
             ORDER BY turn, boundary, epoch \
             LIMIT $5 \
         ) AS lengths \
     ) AS page \
     CROSS JOIN LATERAL ( \
         SELECT * FROM boundaries \
         WHERE run = $1 AND turn = page.turn AND boundary = page.boundary AND epoch = page.epoch \
         LIMIT 1 \
     ) AS b \
     WHERE page.before < $6 \
     ORDER BY b.turn, b.boundary, b.epoch"
);

const RUN_IDS: &str = "SELECT id FROM runs WHERE id > $1 ORDER BY id LIMIT $2";

impl Postgres {
    pub(super) async fn do_run_ids(&self, after: RunId) -> DbResult<Vec<RunId>> {
        let rows = self.pool.all(sqlx::query(RUN_IDS).bind(after).bind(PAGE_ROWS)).await?;
        rows.iter().map(|row| Ok(row.try_get("id")?)).collect()
    }
}

/// The next boundaries.
pub(super) async fn page(rows: &impl Answers, run: RunId, after: Option<Place>) -> DbResult<Vec<PageEntry>> {
    let query = sqlx::query(PAGE)
        .bind(run)
        .bind(after.map_or(i32::MIN, |place| place.turn))
        .bind(after.map_or(0, |place| number(place.boundary)))
        .bind(after.map_or(0, |place| place.epoch))
        .bind(PAGE_ROWS)
        .bind(PAGE_BYTES);
    rows.all(query).await?.iter().map(found).collect()
}

fn found(row: &PgRow) -> DbResult<PageEntry> {
    let place = place(row)?;
    let encoded = match encoded(row) {
        Ok(encoded) => Ok(encoded),
        // What cannot be read is told of, and the survey goes on.
        Err(DbError::Corrupt(detail)) => Err(detail),
        Err(fault) => return Err(fault),
    };
    Ok(PageEntry { place, undone: row.try_get("undone")?, encoded })
}
