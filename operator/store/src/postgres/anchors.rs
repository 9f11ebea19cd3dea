//! Anchors: the runs whose head or audit has changed since their last anchor, and the anchors themselves.

use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::Postgres;
use super::audit::explain_missing_right;
use super::row::{digest, optional_boundary};
use crate::db_error::{DbError, DbResult};
use crate::statements::anchor_columns;
use dalsegno_format::header::boundary_number;
use dalsegno_model::anchor::{AnchorRow, AnchoredHead, HeadsToAnchor, LEAVES_PER_ANCHOR, NewAnchor};
use dalsegno_model::{BoundaryId, RunId};

const LAST_ANCHOR: &str = concat!("SELECT ", anchor_columns!(), " FROM anchors ORDER BY seq DESC LIMIT 1");

const KEEP_FROM: &str = "SELECT anchors_from FROM store";

/// Reads an index that contains only the runs that have moved.
const CHANGED_RUNS: &str = "SELECT id AS run, audit_seq, audit_hash, head_turn, head_boundary, head_epoch, head_hash \
     FROM runs WHERE has_moved AND id > $1 ORDER BY id LIMIT $2";

/// The server's statistics do not know how few runs have moved: they may be from a moment when all had. Without this it
/// may read all runs.
const BY_INDEX: &str = "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off";

/// Of two processes that add the same anchor number at once, one adds it; the other gets no row.
const INSERT_ANCHOR: &str = "WITH inserted AS ( \
         INSERT INTO anchors (seq, parent_hash, root, leaves, public_key, line) VALUES ($1, $2, $3, $4, $5, $6) \
         ON CONFLICT DO NOTHING RETURNING seq \
     ), added_leaves AS ( \
         INSERT INTO anchor_leaves \
             (anchor, run, audit_seq, audit_hash, head_turn, head_boundary, head_epoch, head_hash) \
         SELECT inserted.seq, leaf.* \
         FROM inserted, unnest($7::uuid[], $8::bigint[], $9::bytea[], $10::integer[], $11::smallint[], \
                               $12::bigint[], $13::bytea[]) AS leaf \
     ) SELECT seq FROM inserted";

/// Runs that other statements hold are skipped: nobody waits for anybody, and they are anchored once more.
const SET_ANCHORED: &str = "WITH free AS ( \
         SELECT id FROM runs WHERE id = ANY($1) FOR NO KEY UPDATE SKIP LOCKED \
     ) UPDATE runs SET anchored_audit_seq = leaf.audit_seq, anchored_head_hash = leaf.head_hash \
     FROM free, unnest($1::uuid[], $2::bigint[], $3::bytea[]) AS leaf (run, audit_seq, head_hash) \
     WHERE runs.id = free.id AND leaf.run = free.id";

/// Runs whose rows one statement sets: few, so that it holds their locks for a short time only.
const SET_AT_ONCE: usize = 200;

const REQUEST_AGAIN: &str = "UPDATE runs SET anchored_audit_seq = NULL \
     WHERE id IN ( \
         SELECT id FROM runs \
         WHERE id > $2 AND NOT has_moved \
           AND NOT EXISTS (SELECT FROM anchor_leaves WHERE run = runs.id AND anchor >= $1) \
         ORDER BY id LIMIT $3 FOR NO KEY UPDATE \
     ) RETURNING id";

const REQUEST_FROM: &str = "UPDATE store SET anchors_from = greatest(anchors_from, $1)";

const PRUNE: &str = "SELECT ds_prune_anchors_v1($1) AS anchors";

impl Postgres {
    /// The last anchor is read first: if another process adds one between the queries, it takes the number after this
    /// one, and the anchor made from this result is refused. `keep_from` is read before the runs: those that were
    /// marked for it are then among them.
    pub(super) async fn do_heads_to_anchor(&self, after: RunId) -> DbResult<HeadsToAnchor> {
        let reading = async {
            let (mut transaction, _) = self.pool.begin(BY_INDEX).await?;
            let last = transaction.all(sqlx::query(LAST_ANCHOR)).await?;
            let keep_from = transaction.all(sqlx::query(KEEP_FROM)).await?;
            let query = sqlx::query(CHANGED_RUNS).bind(after).bind(i64::from(LEAVES_PER_ANCHOR));
            let changed = transaction.all(query).await?;
            transaction.commit().await?;
            Ok((last, keep_from, changed))
        };
        let (last, keep_from, changed) = self.pool.with_timeout(reading).await?;
        let last = last.first().map(anchor_row).transpose()?;
        let missing = || DbError::Corrupt("the store has no row".into());
        let keep_from = keep_from.first().ok_or_else(missing)?.try_get("anchors_from")?;
        let heads = changed.iter().map(anchored_head).collect::<DbResult<_>>()?;
        Ok(HeadsToAnchor::new(last, keep_from, after, heads))
    }

    pub(super) async fn do_put_anchor(&self, anchor: &NewAnchor) -> DbResult<bool> {
        let NewAnchor { row, heads } = anchor;
        let (mut runs, mut seqs, mut hashes) = (Vec::new(), Vec::new(), Vec::new());
        let (mut turns, mut boundaries, mut epochs, mut head_hashes) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for AnchoredHead { run, audit_seq, audit_hash, head } in heads {
            runs.push(*run);
            seqs.push(*audit_seq);
            hashes.push(audit_hash.to_vec());
            turns.push(head.map(|(at, _)| at.turn));
            boundaries.push(head.map(|(at, _)| i16::from(boundary_number(at.boundary))));
            epochs.push(head.map(|(at, _)| at.epoch));
            head_hashes.push(head.map(|(_, hash)| hash.to_vec()));
        }
        let query = sqlx::query(INSERT_ANCHOR)
            .bind(row.seq)
            .bind(row.parent_hash.as_slice())
            .bind(row.root.as_slice())
            .bind(row.leaves.cast_signed())
            .bind(row.public_key.as_slice())
            .bind(&row.line)
            .bind(&runs)
            .bind(&seqs)
            .bind(hashes)
            .bind(turns)
            .bind(boundaries)
            .bind(epochs)
            .bind(&head_hashes);
        if self.pool.optional(query).await?.is_none() {
            return Ok(false);
        }
        let mut from = 0;
        while from < runs.len() {
            let some = from..runs.len().min(from + SET_AT_ONCE);
            let query = sqlx::query(SET_ANCHORED).bind(&runs[some.clone()]).bind(&seqs[some.clone()]);
            self.pool.all(query.bind(&head_hashes[some.clone()])).await?;
            from = some.end;
        }
        Ok(true)
    }

    /// First marks the runs, then stores the request: whoever reads the request sees the marks.
    pub(super) async fn do_request_anchors_from(&self, first: i64) -> DbResult<u64> {
        let (mut after, mut marked) = (RunId::nil(), 0);
        loop {
            let query = sqlx::query(REQUEST_AGAIN).bind(first).bind(after).bind(SET_AT_ONCE as i64);
            let page = self.pool.all(query).await?;
            let runs = page.iter().map(|row| Ok(row.try_get("id")?)).collect::<DbResult<Vec<RunId>>>()?;
            let Some(last) = runs.iter().max() else { break };
            after = *last;
            marked += runs.len() as u64;
        }
        self.pool.all(sqlx::query(REQUEST_FROM).bind(first)).await?;
        Ok(marked)
    }

    pub(super) async fn do_prune_anchors(&self, below: i64) -> DbResult<u64> {
        let row = self.pool.one(sqlx::query(PRUNE).bind(below)).await.map_err(explain_missing_right)?;
        Ok(row.try_get::<i64, _>("anchors")?.cast_unsigned())
    }
}

/// A row of `anchors`.
pub(super) fn anchor_row(row: &PgRow) -> DbResult<AnchorRow> {
    let public_key = row.try_get::<&[u8], _>("public_key")?.try_into();
    Ok(AnchorRow {
        seq: row.try_get("seq")?,
        parent_hash: digest(row, "parent_hash")?,
        root: digest(row, "root")?,
        leaves: row.try_get::<i32, _>("leaves")?.cast_unsigned(),
        public_key: public_key.map_err(|_| DbError::Corrupt("public_key is not 32 bytes".into()))?,
        line: row.try_get("line")?,
    })
}

/// A leaf, from a row of `anchor_leaves`, or from the run's own row.
pub(super) fn anchored_head(row: &PgRow) -> DbResult<AnchoredHead> {
    let columns =
        (row.try_get("head_turn")?, optional_boundary(row, "head_boundary")?, row.try_get("head_epoch")?);
    let head = match columns {
        (Some(turn), Some(boundary), Some(epoch)) => {
            Some((BoundaryId { turn, boundary, epoch }, digest(row, "head_hash")?))
        }
        _ => None,
    };
    Ok(AnchoredHead {
        run: row.try_get("run")?,
        audit_seq: row.try_get("audit_seq")?,
        audit_hash: digest(row, "audit_hash")?,
        head,
    })
}
