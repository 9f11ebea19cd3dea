//! The queries of an integrity scan: pages of boundaries, and the ids of all runs.

use sqlx::{Row as _, SqliteConnection};

use crate::compaction::is_dropped;
use crate::db_error::{DbError, DbResult};
use crate::pages::{PAGE_BYTES, PAGE_ROWS};
use crate::reads::{boundary_id, encoded_boundary};
use crate::snapshot_io::PageEntry;
use crate::statements::boundary_columns;
use dalsegno_model::{BoundaryId, RunId};

/// Returns at least one boundary if there is one, and no further one once `?6` bytes of payloads are read.
const PAGE: &str = concat!(
    "SELECT ",
    boundary_columns!("b"),
    ", true AS has_payloads, \
            ",
    is_dropped!(),
    " AS is_dropped, \
             NULL AS document, NULL AS snapshot_digest FROM ( \
         SELECT turn, boundary, epoch, \
                sum(bytes) OVER (ORDER BY turn, boundary, epoch ROWS UNBOUNDED PRECEDING) - bytes AS before \
         FROM ( \
             SELECT turn, boundary, epoch, coalesce(length(ops), 0) + coalesce(length(events), 0) AS bytes \
             FROM boundaries \
             WHERE run = ?1 AND (turn, boundary, epoch) > (?2, ?3, ?4) \
             ORDER BY turn, boundary, epoch \
             LIMIT ?5 \
         ) \
     ) AS page \
     JOIN boundaries b \
       ON b.run = ?1 AND b.turn = page.turn AND b.boundary = page.boundary AND b.epoch = page.epoch \
     WHERE page.before < ?6 \
     ORDER BY b.turn, b.boundary, b.epoch"
);

/// Returns the boundaries after a place, of all branches, in order.
pub(super) async fn page(
    conn: &mut SqliteConnection,
    run: RunId,
    after: Option<BoundaryId>,
) -> DbResult<Vec<PageEntry>> {
    let rows =
        sqlx::query(PAGE)
            .bind(run)
            .bind(after.map_or(i32::MIN, |boundary_id| boundary_id.turn))
            .bind(after.map_or(0, |boundary_id| {
                dalsegno_format::header::boundary_number(boundary_id.boundary).into()
            }) as i64)
            .bind(after.map_or(0, |boundary_id| boundary_id.epoch))
            .bind(PAGE_ROWS)
            .bind(PAGE_BYTES)
            .fetch_all(conn)
            .await?;
    rows.iter()
        .map(|row| {
            let boundary_id = boundary_id(row)?;
            let encoded = match encoded_boundary(row) {
                Ok(encoded) => Ok(encoded),
                // An unreadable row is reported, and the scan continues.
                Err(DbError::Corrupt(detail)) => Err(detail),
                Err(fault) => return Err(fault),
            };
            Ok(PageEntry { boundary: boundary_id, undone: row.try_get("undone")?, encoded })
        })
        .collect()
}

/// Returns the ids of runs after this one, in order.
pub(super) async fn run_ids(conn: &mut SqliteConnection, after: RunId) -> DbResult<Vec<RunId>> {
    Ok(sqlx::query_scalar("SELECT id FROM runs WHERE id > ? ORDER BY id LIMIT ?")
        .bind(after)
        .bind(PAGE_ROWS)
        .fetch_all(conn)
        .await?)
}
