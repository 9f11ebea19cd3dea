//! What stands before the last boundaries that a run keeps.

use sqlx::Row as _;

use super::Postgres;
use super::pool::Pool;
use super::row::{digest, number, place};
use super::snapshot::Rows;
use crate::compaction::{self, CompactionStep, ObsoleteSnapshot, SnapshotGc, TruncateTo};
use crate::db_error::DbResult;
use crate::pages::{PAGE_BYTES, PAGE_ROWS};
use crate::snapshot_writer::ReadBack;
use crate::{Digest, Dropped, Result, RunId};

impl Postgres {
    pub(super) async fn do_keepers(&self, after: RunId) -> DbResult<Vec<RunId>> {
        let rows =
            self.pool.all(sqlx::query(compaction::RUNS_TO_COMPACT).bind(after).bind(PAGE_ROWS)).await?;
        rows.iter().map(|row| Ok(row.try_get("id")?)).collect()
    }

    pub(super) async fn do_drop_old(&self, run: RunId, rows: u32) -> Result<Dropped> {
        compaction::step(&self.rows(), run, rows).await
    }
}

impl SnapshotGc for Rows<'_, Pool> {
    async fn next(&self, run: RunId, rows: u32) -> Result<CompactionStep> {
        next(self.asked, run, rows)
            .await
            .map_err(|fault| fault.with_context("looking for what can be dropped"))
    }

    async fn truncate(&self, cut: TruncateTo) -> Result<u64> {
        self::cut(self.asked, cut).await.map_err(|fault| fault.with_context("dropping old payloads"))
    }

    async fn discard(&self, spent: ObsoleteSnapshot) -> Result<u64> {
        discard(self.asked, spent).await.map_err(|fault| fault.with_context("dropping a snapshot"))
    }
}

async fn next(pool: &Pool, run: RunId, rows: u32) -> DbResult<CompactionStep> {
    if let Some(row) = pool.optional(sqlx::query(compaction::OBSOLETE_SNAPSHOT).bind(run)).await? {
        return Ok(CompactionStep::Discard(digest(&row, "content_hash")?));
    }
    let cut = sqlx::query(compaction::TRUNCATION_POINT).bind(run).bind(i64::from(rows)).bind(PAGE_BYTES);
    let row = pool.optional(cut).await?;
    row.map_or(Ok(CompactionStep::Idle), |row| {
        Ok(CompactionStep::Truncate(place(&row)?, digest(&row, "content_hash")?))
    })
}

async fn cut(pool: &Pool, cut: TruncateTo) -> DbResult<u64> {
    let TruncateTo { run, place, content_hash, snapshot: ReadBack { digest, text, chunks } } = cut;
    let query = sqlx::query("SELECT ds_cut_v1($1, $2, $3, $4, $5, $6, $7, $8) AS rows")
        .bind(run)
        .bind(place.turn)
        .bind(number(place.boundary))
        .bind(place.epoch)
        .bind(Vec::from(content_hash))
        .bind(digest)
        .bind(Vec::from(text))
        .bind(many(&chunks));
    Ok(pool.of(run).one(query).await?.try_get::<i64, _>("rows")?.unsigned_abs())
}

async fn discard(pool: &Pool, spent: ObsoleteSnapshot) -> DbResult<u64> {
    let ObsoleteSnapshot { run, content_hash, chunks, others } = spent;
    let query = sqlx::query("SELECT ds_discard_v1($1, $2, $3, $4) AS rows")
        .bind(run)
        .bind(Vec::from(content_hash))
        .bind(many(&chunks))
        .bind(many(&others));
    Ok(pool.of(run).one(query).await?.try_get::<i64, _>("rows")?.unsigned_abs())
}

fn many(hashes: &[Digest]) -> Vec<&[u8]> {
    hashes.iter().map(Digest::as_slice).collect()
}
