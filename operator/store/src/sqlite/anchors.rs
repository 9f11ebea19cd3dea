//! Statements of anchors.

use sqlx::{Row as _, SqliteConnection};

use super::row::RunRow;
use super::sqlx_types::Hash;
use crate::db_error::DbResult;
use dalsegno_model::BoundaryId;
use dalsegno_model::anchor::{AnchorRow, AnchoredHead, HeadsToAnchor, RUNS_PER_ANCHOR};

/// Runs that have changed since they were anchored.
const CHANGED: &str = "SELECT runs.* FROM runs LEFT JOIN anchored ON anchored.run = runs.id \
     WHERE anchored.run IS NULL OR anchored.audit_seq <> runs.audit_seq \
        OR anchored.head_hash IS NOT runs.head_hash \
     ORDER BY runs.id LIMIT ?";

/// Inserts an anchor if there is none with its number. `ON CONFLICT` cannot be used, because a trigger rejects the
/// conflict.
const PUT: &str = "INSERT INTO anchors (seq, hash, line) \
     SELECT ?1, ?2, ?3 WHERE NOT EXISTS (SELECT 1 FROM anchors WHERE seq = ?1)";

/// Returns the last anchor, and the heads of runs that have changed since they were anchored.
pub(super) async fn heads_to_anchor(conn: &mut SqliteConnection) -> DbResult<HeadsToAnchor> {
    let last = sqlx::query("SELECT seq, hash FROM anchors ORDER BY seq DESC LIMIT 1");
    let last = last.fetch_optional(&mut *conn).await?;
    let last =
        last.map(|row| DbResult::Ok((row.try_get("seq")?, row.try_get::<Hash, _>("hash")?.0))).transpose()?;
    let changed = sqlx::query(CHANGED).bind(RUNS_PER_ANCHOR).fetch_all(conn).await?;
    let anchored_head = |row: &RunRow| AnchoredHead {
        run: row.id,
        audit_seq: row.audit_seq,
        audit_hash: row.audit_hash.0,
        head: row.head().map(|head| {
            (BoundaryId { turn: head.turn, boundary: head.boundary, epoch: head.epoch }, head.hash)
        }),
    };
    let heads = changed.iter().map(|row| Ok(anchored_head(&RunRow::read(row)?))).collect::<DbResult<_>>()?;
    Ok(HeadsToAnchor { last, heads })
}

/// Stores an anchor. Returns false if there is one with its number.
pub(super) async fn put(conn: &mut SqliteConnection, anchor: AnchorRow) -> DbResult<bool> {
    let added = sqlx::query(PUT)
        .bind(anchor.seq)
        .bind(Hash(anchor.hash))
        .bind(anchor.line)
        .execute(&mut *conn)
        .await?;
    if added.rows_affected() == 0 {
        return Ok(false);
    }
    for AnchoredHead { run, audit_seq, audit_hash: _, head } in anchor.heads {
        sqlx::query(
            "INSERT INTO anchored (run, audit_seq, head_hash) VALUES (?, ?, ?) \
             ON CONFLICT (run) DO UPDATE SET audit_seq = excluded.audit_seq, head_hash = excluded.head_hash",
        )
        .bind(run)
        .bind(audit_seq)
        .bind(head.map(|(_, hash)| Hash(hash)))
        .execute(&mut *conn)
        .await?;
    }
    Ok(true)
}
