//! Compaction: drops the payloads before the last boundaries that a run keeps, and the snapshots that are obsolete.

use sqlx::Row as _;

use super::Postgres;
use super::pool::Pool;
use super::row::{boundary_number, digest};
use super::snapshot::SnapshotStore;
use crate::compaction::{self, CompactionStep, ObsoleteSnapshot, SnapshotGc, TruncateTo};
use crate::db_error::{DbError, DbResult};
use crate::pages::{PAGE_BYTES, PAGE_ROWS};
use crate::reads::boundary_id;
use crate::snapshot_writer::ReadBack;
use dalsegno_model::{Digest, Dropped, Result, RunId};

const RUNS_TO_COMPACT: &str = compaction::runs_to_compact!("runs");

impl Postgres {
    pub(super) async fn do_runs_to_compact(&self, after: RunId) -> DbResult<Vec<RunId>> {
        let rows = self.pool.all(sqlx::query(RUNS_TO_COMPACT).bind(after).bind(PAGE_ROWS)).await?;
        rows.iter().map(|row| Ok(row.try_get("id")?)).collect()
    }

    pub(super) async fn do_compact(&self, run: RunId, rows: u32) -> Result<Dropped> {
        compaction::step(&self.snapshot_store(), run, rows).await
    }
}

impl SnapshotGc for SnapshotStore<'_, Pool> {
    async fn next(&self, run: RunId, rows: u32) -> Result<CompactionStep> {
        next(self.executor, run, rows)
            .await
            .map_err(|fault| fault.with_context("looking for payloads to drop"))
    }

    async fn truncate(&self, cut: TruncateTo) -> Result<u64> {
        self::cut(self.executor, cut).await.map_err(|fault| fault.with_context("dropping old payloads"))
    }

    async fn discard(&self, spent: ObsoleteSnapshot) -> Result<u64> {
        discard(self.executor, spent).await.map_err(|fault| fault.with_context("deleting a snapshot"))
    }

    async fn ended_keep_last(&self, run: RunId) -> Result<Option<i32>> {
        let read = async {
            let row = self.executor.optional(sqlx::query(compaction::ENDED_KEEP_LAST).bind(run)).await?;
            Ok(row.map(|row| row.try_get("keep_last")).transpose()?)
        };
        read.await.map_err(|fault: DbError| fault.with_context("reading how many boundaries a run keeps"))
    }

    async fn mark_compacted(&self, run: RunId, keep_last: i32) -> Result<()> {
        let query = sqlx::query(compaction::MARK_COMPACTED).bind(run).bind(keep_last);
        let marked = self.executor.for_run(run).optional(query).await;
        marked.map(drop).map_err(|fault| fault.with_context("recording that nothing is left to drop"))
    }
}

async fn next(pool: &Pool, run: RunId, rows: u32) -> DbResult<CompactionStep> {
    if let Some(row) = pool.optional(sqlx::query(compaction::OBSOLETE_SNAPSHOT).bind(run)).await? {
        return Ok(CompactionStep::Discard(digest(&row, "content_hash")?));
    }
    let cut = sqlx::query(compaction::TRUNCATION_POINT).bind(run).bind(i64::from(rows)).bind(PAGE_BYTES);
    let row = pool.optional(cut).await?;
    row.map_or(Ok(CompactionStep::Idle), |row| {
        Ok(CompactionStep::Truncate(boundary_id(&row)?, digest(&row, "content_hash")?))
    })
}

async fn cut(pool: &Pool, cut: TruncateTo) -> DbResult<u64> {
    let TruncateTo { run, boundary: boundary_id, content_hash, snapshot: ReadBack { digest, text, chunks } } =
        cut;
    let query = sqlx::query("SELECT ds_cut_v2($1, $2, $3, $4, $5, $6, $7, $8) AS rows")
        .bind(run)
        .bind(boundary_id.turn)
        .bind(boundary_number(boundary_id.boundary))
        .bind(boundary_id.epoch)
        .bind(Vec::from(content_hash))
        .bind(digest)
        .bind(Vec::from(text))
        .bind(byte_arrays(&chunks));
    Ok(pool.for_run(run).one(query).await?.try_get::<i64, _>("rows")?.unsigned_abs())
}

async fn discard(pool: &Pool, spent: ObsoleteSnapshot) -> DbResult<u64> {
    let ObsoleteSnapshot { run, content_hash, chunks, others } = spent;
    let query = sqlx::query("SELECT ds_discard_v1($1, $2, $3, $4) AS rows")
        .bind(run)
        .bind(Vec::from(content_hash))
        .bind(byte_arrays(&chunks))
        .bind(byte_arrays(&others));
    Ok(pool.for_run(run).one(query).await?.try_get::<i64, _>("rows")?.unsigned_abs())
}

fn byte_arrays(hashes: &[Digest]) -> Vec<&[u8]> {
    hashes.iter().map(Digest::as_slice).collect()
}
