//! Anchors: the runs whose head or audit has changed since their last anchor, and the anchors themselves.

use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::Postgres;
use super::row::{digest, optional_boundary};
use crate::db_error::DbResult;
use dalsegno_model::BoundaryId;
use dalsegno_model::anchor::{AnchorRow, AnchoredHead, HeadsToAnchor, RUNS_PER_ANCHOR};

const LAST_ANCHOR: &str = "SELECT seq, hash FROM anchors ORDER BY seq DESC LIMIT 1";

const CHANGED_RUNS: &str = "SELECT runs.id, runs.audit_seq, runs.audit_hash, \
            head_turn, head_boundary, head_epoch, runs.head_hash \
     FROM runs LEFT JOIN anchored ON anchored.run = runs.id \
     WHERE anchored.run IS NULL OR anchored.audit_seq <> runs.audit_seq \
        OR anchored.head_hash IS DISTINCT FROM runs.head_hash \
     ORDER BY runs.id LIMIT $1";

/// Of two processes that add the same anchor number at once, one adds it; the other gets no row.
const INSERT_ANCHOR: &str = "WITH inserted AS ( \
         INSERT INTO anchors (seq, hash, line) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING RETURNING seq \
     ), anchored_runs AS ( \
         INSERT INTO anchored (run, audit_seq, head_hash) \
         SELECT heads.* \
         FROM inserted, unnest($4::uuid[], $5::bigint[], $6::bytea[]) AS heads (run, audit_seq, head_hash) \
         ON CONFLICT (run) DO UPDATE SET audit_seq = excluded.audit_seq, head_hash = excluded.head_hash \
     ) SELECT seq FROM inserted";

impl Postgres {
    /// The last anchor is read first: if another process adds one between the two queries, it takes the number after
    /// this one, and the anchor made from this answer is refused.
    pub(super) async fn do_heads_to_anchor(&self) -> DbResult<HeadsToAnchor> {
        let last = self.pool.optional(sqlx::query(LAST_ANCHOR)).await?;
        let last = last.map(|row| DbResult::Ok((row.try_get("seq")?, digest(&row, "hash")?))).transpose()?;
        let changed = self.pool.all(sqlx::query(CHANGED_RUNS).bind(i64::from(RUNS_PER_ANCHOR))).await?;
        Ok(HeadsToAnchor { last, heads: changed.iter().map(anchored_head).collect::<DbResult<_>>()? })
    }

    pub(super) async fn do_put_anchor(&self, anchor: &AnchorRow) -> DbResult<bool> {
        let (mut runs, mut seqs, mut heads) = (Vec::new(), Vec::new(), Vec::new());
        for AnchoredHead { run, audit_seq, audit_hash: _, head } in &anchor.heads {
            runs.push(run);
            seqs.push(audit_seq);
            heads.push(head.map(|(_, hash)| hash.to_vec()));
        }
        let query =
            sqlx::query(INSERT_ANCHOR).bind(anchor.seq).bind(anchor.hash.as_slice()).bind(&anchor.line);
        Ok(self.pool.optional(query.bind(runs).bind(seqs).bind(heads)).await?.is_some())
    }
}

fn anchored_head(row: &PgRow) -> DbResult<AnchoredHead> {
    let columns =
        (row.try_get("head_turn")?, optional_boundary(row, "head_boundary")?, row.try_get("head_epoch")?);
    let head = match columns {
        (Some(turn), Some(boundary), Some(epoch)) => {
            Some((BoundaryId { turn, boundary, epoch }, digest(row, "head_hash")?))
        }
        _ => None,
    };
    Ok(AnchoredHead {
        run: row.try_get("id")?,
        audit_seq: row.try_get("audit_seq")?,
        audit_hash: digest(row, "audit_hash")?,
        head,
    })
}
