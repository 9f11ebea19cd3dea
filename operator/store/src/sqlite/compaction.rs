//! Statements of compaction: the payloads before the last boundaries that a run keeps.

use sqlx::{Row as _, SqliteConnection};

use super::audit::append;
use super::database::{QueryExecutor as _, Sqlite};
use super::row::RunRow;
use super::snapshot_store::SnapshotStore;
use super::sqlx_types::{BoundaryColumn, Hash};
use crate::compaction::{self, CompactionStep, ObsoleteSnapshot, SnapshotGc, TruncateTo};
use crate::db_error::DbResult;
use crate::pages::{PAGE_BYTES, PAGE_ROWS};
use crate::reads::boundary_id;
use crate::transitions::AuditEvent;
use dalsegno_format::header;
use dalsegno_model::audit::{actor, kind};
use dalsegno_model::{BoundaryId, Result, RunId};

pub(super) const RUNS_TO_COMPACT: &str = compaction::runs_to_compact!("runs INDEXED BY runs_to_compact");

/// Bytes of the payloads that [`DROP_PAYLOADS`] drops.
const BYTES: &str = "SELECT coalesce(sum(coalesce(length(ops), 0) + coalesce(length(events), 0)), 0) FROM boundaries \
     WHERE run = ?1 AND NOT dropped AND (turn, boundary) <= (?2, ?3) AND (turn, boundary) > (?4, ?5)";

const DROP_PAYLOADS: &str = "UPDATE boundaries SET ops = NULL, events = NULL, dropped = 1 \
     WHERE run = ?1 AND NOT dropped AND (turn, boundary) <= (?2, ?3) AND (turn, boundary) > (?4, ?5)";

/// Boundaries of the live branch after a boundary.
const COUNT_AFTER: &str =
    "SELECT count(*) FROM boundaries WHERE run = ? AND (turn, boundary) > (?, ?) AND NOT undone";

impl SnapshotGc for SnapshotStore<'_, Sqlite> {
    async fn next(&self, run: RunId, rows: u32) -> Result<CompactionStep> {
        let operation = "looking for payloads to drop";
        self.executor.read(operation, move |conn, _| Box::pin(next(conn, run, rows))).await
    }

    async fn truncate(&self, cut: TruncateTo) -> Result<u64> {
        self.executor
            .write("dropping old payloads", |conn, now| Box::pin(drop_payloads(conn, now, cut)))
            .await
    }

    async fn discard(&self, spent: ObsoleteSnapshot) -> Result<u64> {
        self.executor.write("deleting a snapshot", |conn, _| Box::pin(delete_snapshot(conn, spent))).await
    }

    async fn ended_keep_last(&self, run: RunId) -> Result<Option<i32>> {
        self.executor
            .read("reading how many boundaries a run keeps", move |conn, _| {
                let query = sqlx::query_scalar(compaction::ENDED_KEEP_LAST).bind(run);
                Box::pin(async move { Ok(query.fetch_optional(conn).await?) })
            })
            .await
    }

    async fn mark_compacted(&self, run: RunId, keep_last: i32) -> Result<()> {
        self.executor
            .write_unsynced("recording that nothing is left to drop", move |conn, _| {
                let query = sqlx::query(compaction::MARK_COMPACTED).bind(run).bind(keep_last);
                Box::pin(async move { Ok(query.execute(conn).await.map(drop)?) })
            })
            .await
    }
}

/// Lists runs that may have payloads to drop.
pub(super) async fn runs_to_compact(conn: &mut SqliteConnection, after: RunId) -> DbResult<Vec<RunId>> {
    Ok(sqlx::query_scalar(RUNS_TO_COMPACT).bind(after).bind(PAGE_ROWS).fetch_all(conn).await?)
}

/// Returns the next step of the compaction of a run.
async fn next(conn: &mut SqliteConnection, run: RunId, rows: u32) -> DbResult<CompactionStep> {
    let spent: Option<Hash> =
        sqlx::query_scalar(compaction::OBSOLETE_SNAPSHOT).bind(run).fetch_optional(&mut *conn).await?;
    if let Some(Hash(spent)) = spent {
        return Ok(CompactionStep::Discard(spent));
    }
    let Some(row) = sqlx::query(compaction::TRUNCATION_POINT)
        .bind(run)
        .bind(rows)
        .bind(PAGE_BYTES)
        .fetch_optional(conn)
        .await?
    else {
        return Ok(CompactionStep::Idle);
    };
    Ok(CompactionStep::Truncate(boundary_id(&row)?, row.try_get::<Hash, _>("content_hash")?.0))
}

/// Drops the payloads up to a boundary, if the conditions that were read before still hold. Returns the number of
/// boundaries.
async fn drop_payloads(conn: &mut SqliteConnection, now: i64, cut: TruncateTo) -> DbResult<u64> {
    let mut row = RunRow::expect(conn, cut.run).await?;
    let BoundaryId { turn, boundary, epoch } = cut.boundary;
    // Payloads up to this boundary are dropped already.
    let before = (
        row.dropped_turn.unwrap_or(0),
        row.dropped_boundary.map_or(0, |BoundaryColumn(it)| header::boundary_number(it)),
    );
    let Some(keep_last) = row.keep_last.filter(|_| row.expired_at.is_none()) else { return Ok(0) };
    if (turn, header::boundary_number(boundary)) <= before || !can_drop(conn, &cut, keep_last).await? {
        return Ok(0);
    }
    let detail = serde_json::json!({
        "keepLast": keep_last,
        "to": { "turn": turn, "boundary": boundary, "hash": header::render(&cut.content_hash) },
        "epoch": epoch,
        "snapshot": header::render(&cut.snapshot.text),
    });
    append(conn, &mut row, now, AuditEvent { kind: kind::DROPPED, actor: actor::OPERATOR, detail }).await?;
    let bytes: i64 = sqlx::query_scalar(BYTES)
        .bind(cut.run)
        .bind(turn)
        .bind(BoundaryColumn(boundary))
        .bind(before.0)
        .bind(before.1)
        .fetch_one(&mut *conn)
        .await?;
    row.stored_bytes -= bytes;
    let up_to_here = |sql: &'static str| {
        let query = sqlx::query(sql).bind(cut.run).bind(turn).bind(BoundaryColumn(boundary));
        query.bind(before.0).bind(before.1)
    };
    let dropped = up_to_here(DROP_PAYLOADS).execute(&mut *conn).await?;
    for sql in [compaction::DROP_REPLACED_RECORDS, compaction::DROP_EMPTY_DELETES] {
        up_to_here(sql).execute(&mut *conn).await?;
    }
    row.dropped_turn = Some(turn);
    row.dropped_boundary = Some(BoundaryColumn(boundary));
    row.dropped_epoch = Some(epoch);
    row.save(conn).await?;
    Ok(dropped.rows_affected())
}

/// Returns whether the boundary is still on the live branch with enough boundaries after it, and its snapshot is the
/// one that was read, with all its chunks.
async fn can_drop(conn: &mut SqliteConnection, cut: &TruncateTo, keep_last: i32) -> DbResult<bool> {
    let TruncateTo { run, boundary: boundary_id, content_hash, snapshot } = cut;
    let BoundaryId { turn, boundary, epoch } = *boundary_id;
    let found: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM boundaries b JOIN snapshots s ON s.run = b.run AND s.content_hash = b.content_hash \
         WHERE b.run = ? AND b.turn = ? AND b.boundary = ? AND b.epoch = ? AND b.content_hash = ? AND NOT b.undone \
           AND s.digest = ?",
    )
    .bind(run)
    .bind(turn)
    .bind(BoundaryColumn(boundary))
    .bind(epoch)
    .bind(Hash(*content_hash))
    .bind(&snapshot.digest)
    .fetch_one(&mut *conn)
    .await?;
    let count_after: i64 = sqlx::query_scalar(COUNT_AFTER)
        .bind(run)
        .bind(turn)
        .bind(BoundaryColumn(boundary))
        .fetch_one(&mut *conn)
        .await?;
    for chunk in &snapshot.chunks {
        let exists: i64 = sqlx::query_scalar("SELECT count(*) FROM chunks WHERE run = ? AND hash = ?")
            .bind(run)
            .bind(Hash(*chunk))
            .fetch_one(&mut *conn)
            .await?;
        if exists == 0 {
            return Ok(false);
        }
    }
    Ok(found == 1 && count_after >= keep_last.into())
}

/// Deletes an obsolete snapshot, and its chunks that no other snapshot has. Returns the number of deleted rows; 0 if
/// there are snapshots now that were not read.
async fn delete_snapshot(conn: &mut SqliteConnection, spent: ObsoleteSnapshot) -> DbResult<u64> {
    let ObsoleteSnapshot { run, content_hash, chunks, others } = spent;
    let stored: Vec<Hash> = sqlx::query_scalar("SELECT content_hash FROM snapshots WHERE run = ?")
        .bind(run)
        .fetch_all(&mut *conn)
        .await?;
    let is_spent: Option<Hash> =
        sqlx::query_scalar(compaction::OBSOLETE_SNAPSHOT).bind(run).fetch_optional(&mut *conn).await?;
    let is_known = |Hash(hash): &Hash| *hash == content_hash || others.contains(hash);
    if is_spent != Some(Hash(content_hash)) || !stored.iter().all(is_known) {
        return Ok(0);
    }
    let mut rows = sqlx::query("DELETE FROM snapshots WHERE run = ? AND content_hash = ?")
        .bind(run)
        .bind(Hash(content_hash))
        .execute(&mut *conn)
        .await?
        .rows_affected();
    for chunk in chunks {
        let deleted = sqlx::query("DELETE FROM chunks WHERE run = ? AND hash = ?")
            .bind(run)
            .bind(Hash(chunk))
            .execute(&mut *conn)
            .await?;
        rows += deleted.rows_affected();
    }
    Ok(rows)
}
