//! Statements of anchors.

use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, SqliteConnection};

use super::sqlx_types::{BoundaryColumn, Hash};
use crate::db_error::DbResult;
use crate::statements::{anchor_columns, leaf_columns};
use crate::stored_rows::PAGE_ROWS;
use dalsegno_model::anchor::{AnchorRow, AnchoredHead, HeadsToAnchor, LEAVES_PER_ANCHOR, NewAnchor};
use dalsegno_model::read_transaction::{LeafKey, RunLeafKey};
use dalsegno_model::{BoundaryId, RunId};

/// Runs that have changed since they were anchored. Reads an index that contains only these.
const CHANGED: &str = "SELECT id AS run, audit_seq, audit_hash, head_turn, head_boundary, head_epoch, head_hash \
     FROM runs INDEXED BY runs_to_anchor WHERE has_moved = 1 AND id > ? ORDER BY id LIMIT ?";

/// Inserts an anchor if there is none with its number. `ON CONFLICT` cannot be used, because a trigger rejects the
/// conflict.
const PUT: &str = "INSERT INTO anchors (seq, parent_hash, root, leaves, public_key, line) \
     SELECT ?1, ?2, ?3, ?4, ?5, ?6 WHERE NOT EXISTS (SELECT 1 FROM anchors WHERE seq = ?1)";

const PUT_LEAF: &str = "INSERT INTO anchor_leaves \
     (anchor, run, audit_seq, audit_hash, head_turn, head_boundary, head_epoch, head_hash) \
     VALUES (?, ?, ?, ?, ?, ?, ?, ?)";

/// A run that has moved since it was read stays marked.
const RESET: &str = "UPDATE runs SET has_moved = 0 FROM anchor_leaves AS leaf \
     WHERE leaf.anchor = ? AND runs.id = leaf.run \
       AND runs.audit_seq = leaf.audit_seq AND runs.head_hash IS leaf.head_hash";

const REQUEST_AGAIN: &str = "UPDATE runs SET has_moved = 1 \
     WHERE has_moved = 0 \
       AND NOT EXISTS (SELECT 1 FROM anchor_leaves WHERE run = runs.id AND anchor >= ?)";

/// The last of the anchors that one call deletes: whole anchors with about 20,000 leaves.
const LAST_TO_PRUNE: &str = "SELECT max(seq) FROM ( \
         SELECT seq, sum(leaves) OVER (ORDER BY seq) - leaves AS before \
         FROM (SELECT seq, leaves FROM anchors WHERE seq < ? ORDER BY seq LIMIT 1000) \
     ) WHERE before < 20000";

const LAST: &str = concat!("SELECT ", anchor_columns!(), " FROM anchors ORDER BY seq DESC LIMIT 1");

const PAGE: &str = concat!("SELECT ", anchor_columns!(), " FROM anchors WHERE seq > ? ORDER BY seq LIMIT ?");

const LEAVES: &str = concat!(
    "SELECT ",
    leaf_columns!(),
    " FROM anchor_leaves WHERE (anchor, run) > (?, ?) ORDER BY anchor, run LIMIT ?"
);

const LEAVES_BY_RUN: &str = concat!(
    "SELECT ",
    leaf_columns!(),
    " FROM anchor_leaves WHERE (run, anchor) > (?, ?) AND run <= ? ORDER BY run, anchor LIMIT ?"
);

/// Returns the last anchor, and the heads of runs that have changed since they were anchored.
pub(super) async fn heads_to_anchor(conn: &mut SqliteConnection, after: RunId) -> DbResult<HeadsToAnchor> {
    let last = sqlx::query(LAST).fetch_optional(&mut *conn).await?.as_ref().map(anchor_row).transpose()?;
    let keep_from = sqlx::query_scalar("SELECT anchors_from FROM store").fetch_one(&mut *conn).await?;
    let changed = sqlx::query(CHANGED).bind(after).bind(LEAVES_PER_ANCHOR).fetch_all(conn).await?;
    let heads = changed.iter().map(anchored_head).collect::<DbResult<_>>()?;
    Ok(HeadsToAnchor::new(last, keep_from, after, heads))
}

/// Stores an anchor and its leaves. Returns false if there is one with its number.
pub(super) async fn put(conn: &mut SqliteConnection, anchor: NewAnchor) -> DbResult<bool> {
    let NewAnchor { row, heads } = anchor;
    let added = sqlx::query(PUT)
        .bind(row.seq)
        .bind(Hash(row.parent_hash))
        .bind(Hash(row.root))
        .bind(row.leaves)
        .bind(row.public_key.to_vec())
        .bind(row.line)
        .execute(&mut *conn)
        .await?;
    if added.rows_affected() == 0 {
        return Ok(false);
    }
    for AnchoredHead { run, audit_seq, audit_hash, head } in heads {
        sqlx::query(PUT_LEAF)
            .bind(row.seq)
            .bind(run)
            .bind(audit_seq)
            .bind(Hash(audit_hash))
            .bind(head.map(|(at, _)| at.turn))
            .bind(head.map(|(at, _)| BoundaryColumn(at.boundary)))
            .bind(head.map(|(at, _)| at.epoch))
            .bind(head.map(|(_, hash)| Hash(hash)))
            .execute(&mut *conn)
            .await?;
    }
    sqlx::query(RESET).bind(row.seq).execute(conn).await?;
    Ok(true)
}

/// Marks runs that no anchor from `first` on names, and stores the request. Returns the number of these runs.
pub(super) async fn request_from(conn: &mut SqliteConnection, first: i64) -> DbResult<u64> {
    let marked = sqlx::query(REQUEST_AGAIN).bind(first).execute(&mut *conn).await?.rows_affected();
    sqlx::query("UPDATE store SET anchors_from = max(anchors_from, ?)").bind(first).execute(conn).await?;
    Ok(marked)
}

/// Deletes some of the anchors below this number, with their leaves. Returns the number of deleted anchors.
pub(super) async fn prune(conn: &mut SqliteConnection, below: i64) -> DbResult<u64> {
    let last: Option<i64> = sqlx::query_scalar(LAST_TO_PRUNE).bind(below).fetch_one(&mut *conn).await?;
    let Some(last) = last else { return Ok(0) };
    sqlx::query("INSERT INTO anchor_prunes (below) VALUES (?)").bind(below).execute(&mut *conn).await?;
    sqlx::query("DELETE FROM anchor_leaves WHERE anchor <= ?").bind(last).execute(&mut *conn).await?;
    let deleted = sqlx::query("DELETE FROM anchors WHERE seq <= ?").bind(last).execute(&mut *conn).await?;
    sqlx::query("DELETE FROM anchor_prunes").execute(conn).await?;
    Ok(deleted.rows_affected())
}

/// Anchors with a number higher than `after`.
pub(super) async fn read(conn: &mut SqliteConnection, after: i64) -> DbResult<Vec<AnchorRow>> {
    let rows = sqlx::query(PAGE).bind(after).bind(PAGE_ROWS).fetch_all(conn).await?;
    rows.iter().map(anchor_row).collect()
}

/// Leaves in the order of anchor and run.
pub(super) async fn leaves(
    conn: &mut SqliteConnection,
    after: LeafKey,
) -> DbResult<Vec<(i64, AnchoredHead)>> {
    let query = sqlx::query(LEAVES).bind(after.anchor).bind(after.run).bind(PAGE_ROWS);
    query.fetch_all(conn).await?.iter().map(leaf).collect()
}

/// Leaves in the order of run and anchor.
pub(super) async fn leaves_by_run(
    conn: &mut SqliteConnection,
    after: RunLeafKey,
    to: RunId,
) -> DbResult<Vec<(i64, AnchoredHead)>> {
    let query = sqlx::query(LEAVES_BY_RUN).bind(after.run).bind(after.anchor).bind(to).bind(PAGE_ROWS);
    query.fetch_all(conn).await?.iter().map(leaf).collect()
}

fn leaf(row: &SqliteRow) -> DbResult<(i64, AnchoredHead)> {
    Ok((row.try_get("anchor")?, anchored_head(row)?))
}

/// A row of `anchors`.
fn anchor_row(row: &SqliteRow) -> DbResult<AnchorRow> {
    let Hash(public_key) = row.try_get("public_key")?;
    Ok(AnchorRow {
        seq: row.try_get("seq")?,
        parent_hash: row.try_get::<Hash, _>("parent_hash")?.0,
        root: row.try_get::<Hash, _>("root")?.0,
        leaves: row.try_get("leaves")?,
        public_key,
        line: row.try_get("line")?,
    })
}

/// A leaf, from a row of `anchor_leaves`, or from the run's own row.
fn anchored_head(row: &SqliteRow) -> DbResult<AnchoredHead> {
    let columns = (
        row.try_get("head_turn")?,
        row.try_get::<Option<BoundaryColumn>, _>("head_boundary")?,
        row.try_get("head_epoch")?,
    );
    let head = match columns {
        (Some(turn), Some(BoundaryColumn(boundary)), Some(epoch)) => {
            Some((BoundaryId { turn, boundary, epoch }, row.try_get::<Hash, _>("head_hash")?.0))
        }
        _ => None,
    };
    Ok(AnchoredHead {
        run: row.try_get("run")?,
        audit_seq: row.try_get("audit_seq")?,
        audit_hash: row.try_get::<Hash, _>("audit_hash")?.0,
        head,
    })
}
