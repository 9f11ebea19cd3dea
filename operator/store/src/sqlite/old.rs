//! What stands before the last boundaries that a run keeps.

use sqlx::{Row as _, SqliteConnection};

use super::audit::append;
use super::columns::{Hash, Which};
use super::row::RunRow;
use super::snapshot::Rows;
use super::{Reads, Sqlite};
use crate::audit::{actor, kind};
use crate::compaction::{self, CompactionStep, ObsoleteSnapshot, SnapshotGc, TruncateTo};
use crate::db_error::DbResult;
use crate::pages::{PAGE_BYTES, PAGE_ROWS};
use crate::{Place, Result, RunId, header};

const BYTES: &str = "SELECT coalesce(sum(coalesce(length(ops), 0) + coalesce(length(events), 0)), 0) FROM boundaries \
     WHERE run = ?1 AND NOT dropped AND (turn, boundary) <= (?2, ?3) AND (turn, boundary) > (?4, ?5)";

const EMPTY: &str = "UPDATE boundaries SET ops = NULL, events = NULL, dropped = 1 \
     WHERE run = ?1 AND NOT dropped AND (turn, boundary) <= (?2, ?3) AND (turn, boundary) > (?4, ?5)";

const KEPT: &str =
    "SELECT count(*) FROM boundaries WHERE run = ? AND (turn, boundary) > (?, ?) AND NOT undone";

impl SnapshotGc for Rows<'_, Sqlite> {
    async fn next(&self, run: RunId, rows: u32) -> Result<CompactionStep> {
        let doing = "looking for what can be dropped";
        self.asked.read(doing, move |conn, _| Box::pin(next(conn, run, rows))).await
    }

    async fn truncate(&self, cut: TruncateTo) -> Result<u64> {
        self.asked.write("dropping old payloads", |conn, now| Box::pin(self::cut(conn, now, cut))).await
    }

    async fn discard(&self, spent: ObsoleteSnapshot) -> Result<u64> {
        self.asked.write("dropping a snapshot", |conn, _| Box::pin(discard(conn, spent))).await
    }
}

/// Runs that may have boundaries to drop.
pub(super) async fn keepers(conn: &mut SqliteConnection, after: RunId) -> DbResult<Vec<RunId>> {
    Ok(sqlx::query_scalar(compaction::RUNS_TO_COMPACT).bind(after).bind(PAGE_ROWS).fetch_all(conn).await?)
}

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
    let place = Place {
        turn: row.try_get("turn")?,
        boundary: row.try_get::<Which, _>("boundary")?.0,
        epoch: row.try_get("epoch")?,
    };
    Ok(CompactionStep::Truncate(place, row.try_get::<Hash, _>("content_hash")?.0))
}

/// What was looked at is judged again. How many boundaries were emptied.
async fn cut(conn: &mut SqliteConnection, now: i64, cut: TruncateTo) -> DbResult<u64> {
    let mut row = RunRow::expect(conn, cut.run).await?;
    let Place { turn, boundary, epoch } = cut.place;
    let before = (
        row.dropped_turn.unwrap_or(0),
        row.dropped_boundary.map_or(0, |Which(it)| header::boundary_number(it)),
    );
    let Some(keep_last) = row.keep_last.filter(|_| row.expired_at.is_none()) else { return Ok(0) };
    if (turn, header::boundary_number(boundary)) <= before || !stands(conn, &cut, keep_last).await? {
        return Ok(0);
    }
    let detail = serde_json::json!({
        "keepLast": keep_last,
        "to": { "turn": turn, "boundary": boundary, "hash": header::render(&cut.content_hash) },
        "epoch": epoch,
        "snapshot": header::render(&cut.snapshot.text),
    });
    append(conn, &mut row, now, kind::DROPPED, actor::OPERATOR, detail).await?;
    let bytes: i64 = sqlx::query_scalar(BYTES)
        .bind(cut.run)
        .bind(turn)
        .bind(Which(boundary))
        .bind(before.0)
        .bind(before.1)
        .fetch_one(&mut *conn)
        .await?;
    row.stored_bytes -= bytes;
    let emptied = sqlx::query(EMPTY)
        .bind(cut.run)
        .bind(turn)
        .bind(Which(boundary))
        .bind(before.0)
        .bind(before.1)
        .execute(&mut *conn)
        .await?;
    row.dropped_turn = Some(turn);
    row.dropped_boundary = Some(Which(boundary));
    row.dropped_epoch = Some(epoch);
    row.save(conn).await?;
    Ok(emptied.rows_affected())
}

/// Whether the boundary is of the live branch, with as many after it, and its snapshot is the one that was read.
async fn stands(conn: &mut SqliteConnection, cut: &TruncateTo, keep_last: i32) -> DbResult<bool> {
    let TruncateTo { run, place, content_hash, snapshot } = cut;
    let Place { turn, boundary, epoch } = *place;
    let found: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM boundaries b JOIN snapshots s ON s.run = b.run AND s.content_hash = b.content_hash \
         WHERE b.run = ? AND b.turn = ? AND b.boundary = ? AND b.epoch = ? AND b.content_hash = ? AND NOT b.undone \
           AND s.digest = ?",
    )
    .bind(run)
    .bind(turn)
    .bind(Which(boundary))
    .bind(epoch)
    .bind(Hash(*content_hash))
    .bind(&snapshot.digest)
    .fetch_one(&mut *conn)
    .await?;
    let kept: i64 =
        sqlx::query_scalar(KEPT).bind(run).bind(turn).bind(Which(boundary)).fetch_one(&mut *conn).await?;
    for chunk in &snapshot.chunks {
        let there: i64 = sqlx::query_scalar("SELECT count(*) FROM chunks WHERE run = ? AND hash = ?")
            .bind(run)
            .bind(Hash(*chunk))
            .fetch_one(&mut *conn)
            .await?;
        if there == 0 {
            return Ok(false);
        }
    }
    Ok(found == 1 && kept >= keep_last.into())
}

/// A snapshot that nothing is rebuilt with any more, and chunks that no other has. How many rows went.
async fn discard(conn: &mut SqliteConnection, spent: ObsoleteSnapshot) -> DbResult<u64> {
    let ObsoleteSnapshot { run, content_hash, chunks, others } = spent;
    let there: Vec<Hash> = sqlx::query_scalar("SELECT content_hash FROM snapshots WHERE run = ?")
        .bind(run)
        .fetch_all(&mut *conn)
        .await?;
    let is_spent: Option<Hash> =
        sqlx::query_scalar(compaction::OBSOLETE_SNAPSHOT).bind(run).fetch_optional(&mut *conn).await?;
    let is_known = |Hash(hash): &Hash| *hash == content_hash || others.contains(hash);
    if is_spent != Some(Hash(content_hash)) || !there.iter().all(is_known) {
        return Ok(0);
    }
    let mut rows = sqlx::query("DELETE FROM snapshots WHERE run = ? AND content_hash = ?")
        .bind(run)
        .bind(Hash(content_hash))
        .execute(&mut *conn)
        .await?
        .rows_affected();
    for chunk in chunks {
        let gone = sqlx::query("DELETE FROM chunks WHERE run = ? AND hash = ?")
            .bind(run)
            .bind(Hash(chunk))
            .execute(&mut *conn)
            .await?;
        rows += gone.rows_affected();
    }
    Ok(rows)
}
