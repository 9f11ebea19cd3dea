//! The query of the live branch, from the head to the parents; and the rows of boundaries and audit entries.

use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, SqliteConnection};

use super::data_keys;
use super::row::RunRow;
use super::sqlx_types::{BoundaryColumn, Hash};
use crate::compaction::is_dropped;
use crate::db_error::{DbResult, timestamp};
use crate::reads::encoded_boundary;
use crate::snapshot_io::{Branch, HashedBoundary, Walk};
use crate::statements::audit_columns;
use dalsegno_model::{AuditRow, BoundaryId, RunId};

/// Walks from the head, or another boundary (`?2`, `?3`, `?4`), to its parents: to turn `?5`, and further as long as
/// the result needs the state before a boundary.
///
/// `known` says what is known of the state at a boundary up to turn `?6`:
///
/// | `known` | meaning |
/// |---|---|
/// | 0 | nothing |
/// | 1 | the boundary holds a full state that is not a delta |
/// | 2 | a snapshot holds the state |
/// | 3 | the boundary holds a full state as a delta, and is requested itself |
/// | 4 | the boundary's payloads were dropped |
///
/// `needed` says whether the state after the boundary is needed; it begins as `?7`. Snapshots of boundaries whose
/// hashes are in `?8` are not used. If `?9` is true, a snapshot is used only if its boundary's payloads were dropped.
///
/// The walk reads keys only, and the rows are joined afterwards. A parent must come before its child, so the walk ends
/// even if damaged rows form a cycle.
const WALK: &str = concat!(
    "WITH RECURSIVE live AS ( \
         SELECT 2147483647 AS turn, 2 AS boundary, 0 AS epoch, ?2 AS parent_turn, ?3 AS parent_boundary, \
                ?4 AS parent_epoch, ?7 AS needed, 0 AS known \
         UNION ALL \
         SELECT b.turn, b.boundary, b.epoch, b.parent_turn, b.parent_boundary, b.parent_epoch, \
                live.known = 3 OR (live.known = 0 AND live.needed), \
                CASE \
                    WHEN b.turn > ?6 THEN 0 \
                    WHEN b.is_full AND substr(b.ops, 1, 1) NOT IN (x'02', x'12') THEN 1 \
                    WHEN b.turn >= ?5 AND NOT ",
    is_dropped!(),
    " THEN CASE WHEN b.is_full THEN 3 ELSE 0 END \
                    WHEN (NOT ?9 OR ",
    is_dropped!(),
    ") AND EXISTS ( \
                        SELECT 1 FROM snapshots s \
                        WHERE s.run = ?1 AND s.content_hash = b.content_hash AND instr(?8, s.content_hash) = 0 \
                    ) THEN 2 \
                    WHEN ",
    is_dropped!(),
    " THEN 4 \
                    ELSE 0 \
                END \
         FROM live JOIN boundaries b \
         ON b.run = ?1 AND b.turn = live.parent_turn AND b.boundary = live.parent_boundary \
            AND b.epoch = live.parent_epoch \
         WHERE (b.turn, b.boundary) < (live.turn, live.boundary) \
            AND (live.turn > ?6 OR b.turn >= ?5 OR live.known = 3 OR (live.known = 0 AND live.needed)) \
     ) \
     SELECT b.turn, b.boundary, b.epoch, b.parent_turn, b.parent_boundary, b.parent_epoch, b.parent_hash, \
            b.content_hash, b.attempt, b.position, b.commit_id, b.digest, b.at, b.ops_digest, b.is_full, \
            b.events_digest, b.event_count, b.tokens_in, b.tokens_out, b.tool_calls, b.cost_micro_usd, \
            b.trigger_word, b.records_digest, b.forked_run, b.forked_turn, b.forked_hash, \
            ",
    is_dropped!(),
    " AS is_dropped, \
            live.turn <= ?6 AND live.known <> 2 AS has_payloads, \
            CASE WHEN live.turn <= ?6 AND live.known <> 2 THEN b.ops END AS ops, \
            CASE WHEN live.turn <= ?6 AND live.known <> 2 THEN b.events END AS events, \
            s.document, s.digest AS snapshot_digest \
     FROM live JOIN boundaries b \
       ON b.run = ?1 AND b.turn = live.turn AND b.boundary = live.boundary AND b.epoch = live.epoch \
     LEFT JOIN snapshots s ON live.known = 2 AND s.run = ?1 AND s.content_hash = b.content_hash \
     ORDER BY b.turn, b.boundary"
);

/// Returns the live branch as far as the walk needs it; `None` if nothing is committed.
pub(super) async fn walk(conn: &mut SqliteConnection, run: RunId, walk: Walk) -> DbResult<Option<Branch>> {
    let Some(row) = RunRow::load(conn, run).await? else {
        return Ok(None);
    };
    let Some(head) = row.head() else { return Ok(None) };
    let has_data_key = data_keys::has_data_key(conn, run).await?;
    let top = BoundaryId { turn: head.turn, boundary: head.boundary, epoch: head.epoch };
    let HashedBoundary { id: start, content_hash: head_hash } =
        walk.start.unwrap_or(HashedBoundary { id: top, content_hash: head.hash });
    let found = sqlx::query(WALK)
        .bind(run)
        .bind(start.turn)
        .bind(BoundaryColumn(start.boundary))
        .bind(start.epoch)
        .bind(walk.from)
        .bind(walk.to)
        .bind(walk.with_state)
        .bind(walk.excluded_snapshots.concat())
        .bind(walk.avoid_snapshots)
        .fetch_all(conn)
        .await?;
    let encoded = found.iter().map(encoded_boundary).collect::<DbResult<_>>()?;
    Ok(Some(Branch { run, head_turn: head.turn, head_hash, has_data_key, encoded }))
}

/// Returns the audit chain of a run, in order.
pub(super) async fn audit(conn: &mut SqliteConnection, run: RunId) -> DbResult<Vec<AuditRow>> {
    const AUDIT: &str = concat!("SELECT ", audit_columns!(), " FROM audit WHERE run = ? ORDER BY seq");
    let rows = sqlx::query(AUDIT).bind(run).fetch_all(conn).await?;
    rows.iter().map(audit_row).collect()
}

/// Reads an audit entry from its row.
pub(super) fn audit_row(row: &SqliteRow) -> DbResult<AuditRow> {
    Ok(AuditRow {
        seq: row.try_get("seq")?,
        at: timestamp(row.try_get("at")?)?,
        kind: row.try_get("kind")?,
        actor: row.try_get("actor")?,
        detail: row.try_get("detail")?,
        parent_hash: row.try_get::<Hash, _>("parent_hash")?.0,
        hash: row.try_get::<Hash, _>("hash")?.0,
    })
}
