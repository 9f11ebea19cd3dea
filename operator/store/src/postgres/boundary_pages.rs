//! What an integrity scan reads: the ids of all runs, and the boundaries of one run, page by page.

use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::Postgres;
use super::query::QueryExecutor;
use super::row::boundary_number;
use crate::compaction::is_dropped;
use crate::db_error::{DbError, DbResult};
use crate::pages::{PAGE_BYTES, PAGE_ROWS};
use crate::reads::{boundary_id, encoded_boundary};
use crate::snapshot_io::PageEntry;
use crate::statements::boundary_columns;
use dalsegno_model::{BoundaryId, RunId};

/// The boundaries after one: the first in any case, the next while the payloads before them are less than `$6` bytes.
/// `octet_length` of a payload reads its size without the payload.
const PAGE: &str = concat!(
    "SELECT ",
    boundary_columns!("b"),
    ", true AS has_payloads, \
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
         SELECT ",
    boundary_columns!("boundaries"),
    " FROM boundaries \
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

/// The next boundaries of a run, on every branch.
pub(super) async fn page(
    executor: &impl QueryExecutor,
    run: RunId,
    after: Option<BoundaryId>,
) -> DbResult<Vec<PageEntry>> {
    let query = sqlx::query(PAGE)
        .bind(run)
        .bind(after.map_or(i32::MIN, |id| id.turn))
        .bind(after.map_or(0, |id| boundary_number(id.boundary)))
        .bind(after.map_or(0, |id| id.epoch))
        .bind(PAGE_ROWS)
        .bind(PAGE_BYTES);
    executor.all(query).await?.iter().map(found).collect()
}

fn found(row: &PgRow) -> DbResult<PageEntry> {
    let boundary_id = boundary_id(row)?;
    let encoded = match encoded_boundary(row) {
        Ok(boundary) => Ok(boundary),
        // A row that cannot be read is reported, and the scan continues.
        Err(DbError::Corrupt(detail)) => Err(detail),
        Err(fault) => return Err(fault),
    };
    Ok(PageEntry { boundary: boundary_id, undone: row.try_get("undone")?, encoded })
}
