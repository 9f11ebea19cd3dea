//! The live branch: boundaries found by walking parents from the head, each held to its hash.

use dalsegno_protocol::{State, Usage};
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::Postgres;
use super::fault::{Fault, Work, timestamp};
use super::row::{boundary, digest, optional_digest, unpacked};
use crate::chain::{self, Kept, Place};
use crate::{AuditRow, BoundaryRow, RunId, codec, fold};

/// From the head down to turn `$2`; where `$3` is set, no further than the last full state in there up to that turn.
/// Payloads come for turns up to `$4` only. Keys are walked first, and rows joined after. The parent of each must stand
/// before it, so that no cycle is walked. The run's row is there in any case, with the head that was walked from.
const WALK: &str = "WITH RECURSIVE run AS MATERIALIZED ( \
         SELECT id, head_turn, head_boundary, head_epoch, head_hash FROM runs WHERE id = $1 \
     ), live AS ( \
         SELECT b.turn, b.boundary, b.epoch, b.parent_turn, b.parent_boundary, b.parent_epoch, b.is_full \
         FROM run JOIN boundaries b \
           ON b.run = run.id AND b.turn = run.head_turn AND b.boundary = run.head_boundary \
          AND b.epoch = run.head_epoch \
         UNION ALL \
         SELECT b.turn, b.boundary, b.epoch, b.parent_turn, b.parent_boundary, b.parent_epoch, b.is_full \
         FROM live JOIN boundaries b \
           ON b.run = $1 AND b.turn = live.parent_turn AND b.boundary = live.parent_boundary \
          AND b.epoch = live.parent_epoch \
         WHERE b.turn >= $2 AND (b.turn, b.boundary) < (live.turn, live.boundary) \
           AND NOT (live.is_full AND live.turn <= coalesce($3, 0)) \
     ) \
     SELECT run.head_turn, run.head_hash, \
            b.turn, b.boundary, b.epoch, b.parent_turn, b.parent_boundary, b.parent_epoch, b.parent_hash, \
            b.content_hash, b.attempt, b.position, b.commit_id, b.digest, b.at, b.ops_digest, b.is_full, \
            b.events_digest, b.tokens_in, b.tokens_out, b.tool_calls, b.cost_micro_usd, b.trigger_word, b.records_digest, \
            b.turn <= $4 AS has_payloads, \
            CASE WHEN b.turn <= $4 THEN b.ops END AS ops, \
            CASE WHEN b.turn <= $4 THEN b.events END AS events \
     FROM run LEFT JOIN ( \
         live JOIN boundaries b \
           ON b.run = $1 AND b.turn = live.turn AND b.boundary = live.boundary AND b.epoch = live.epoch \
     ) ON true \
     ORDER BY b.turn, b.boundary";

const AUDIT: &str = "SELECT * FROM audit WHERE run = $1 ORDER BY seq";

impl Postgres {
    pub(super) async fn do_state(&self, run: RunId, turn: Option<i32>) -> Work<Option<State>> {
        let last = turn.unwrap_or(i32::MAX);
        if last < 1 {
            return Ok(None);
        }
        let Some((head_turn, mut branch)) = self.walk(run, 1, Some(last), last).await? else {
            return Ok(None);
        };
        if turn.is_some_and(|turn| turn > head_turn) {
            return Ok(None);
        }
        branch.retain(|kept| kept.row.turn <= last);
        if !branch.first().is_some_and(|first| first.row.full || first.parent.is_none()) {
            return Err(corrupt(run, "its live branch ends before a full state or the first boundary"));
        }
        Ok(Some(fold::fold(branch.iter().filter_map(|kept| kept.row.ops.as_deref()))?))
    }

    pub(super) async fn do_boundaries(&self, run: RunId, from: i32, to: i32) -> Work<Vec<BoundaryRow>> {
        let Some((_, branch)) = self.walk(run, from, None, to).await? else {
            return Ok(Vec::new());
        };
        let parent = branch.first().and_then(|first| first.parent);
        if parent.is_some_and(|parent| parent.turn >= from) {
            return Err(corrupt(run, "its live branch ends before its first boundary"));
        }
        Ok(branch.into_iter().map(|kept| kept.row).filter(|row| (from..=to).contains(&row.turn)).collect())
    }

    /// The head's turn, and the live branch from turn `from` (the head is there in any case), or from the last full
    /// state at or before turn `whole_at`; with payloads up to turn `to`. `None`: nothing is committed.
    async fn walk(
        &self,
        run: RunId,
        from: i32,
        whole_at: Option<i32>,
        to: i32,
    ) -> Work<Option<(i32, Vec<Kept>)>> {
        let query = sqlx::query(WALK).bind(run).bind(from).bind(whole_at).bind(to);
        let rows = self.pool.all(query).await?;
        let Some(first) = rows.first() else { return Ok(None) };
        let Some(head_turn) = first.try_get("head_turn")? else {
            return Ok(None);
        };
        if first.try_get::<Option<i32>, _>("turn")?.is_none() {
            return Err(corrupt(run, "its head is not there"));
        }
        let branch = rows.iter().map(kept).collect::<Work<Vec<_>>>()?;
        chain::hold(run, &digest(first, "head_hash")?, &branch).map_err(|detail| corrupt(run, detail))?;
        Ok(Some((head_turn, branch)))
    }

    pub(super) async fn do_audit(&self, run: RunId) -> Work<Vec<AuditRow>> {
        let rows = self.pool.all(sqlx::query(AUDIT).bind(run)).await?;
        rows.iter().map(audit_row).collect()
    }
}

/// A row of the audit.
pub(super) fn audit_row(row: &PgRow) -> Work<AuditRow> {
    Ok(AuditRow {
        seq: row.try_get("seq")?,
        at: timestamp(row.try_get("at")?)?,
        kind: row.try_get("kind")?,
        actor: row.try_get("actor")?,
        detail: row.try_get("detail")?,
        parent_hash: digest(row, "parent_hash")?,
        hash: digest(row, "hash")?,
    })
}

/// A boundary from its row; `has_payloads` says whether the payloads are among its columns.
pub(super) fn kept(row: &PgRow) -> Work<Kept> {
    let parent = match (
        row.try_get::<Option<i32>, _>("parent_turn")?,
        boundary(row, "parent_boundary")?,
        row.try_get::<Option<i64>, _>("parent_epoch")?,
    ) {
        (Some(turn), Some(boundary), Some(epoch)) => Some(Place { turn, boundary, epoch }),
        _ => None,
    };
    Ok(Kept {
        row: BoundaryRow {
            turn: row.try_get("turn")?,
            boundary: boundary(row, "boundary")?
                .ok_or_else(|| Fault::Corrupt("a boundary is neither plan nor result".into()))?,
            epoch: row.try_get("epoch")?,
            attempt: row.try_get("attempt")?,
            position: row.try_get("position")?,
            commit_id: row.try_get("commit_id")?,
            digest: digest(row, "digest")?,
            parent_hash: digest(row, "parent_hash")?,
            content_hash: digest(row, "content_hash")?,
            at: timestamp(row.try_get("at")?)?,
            ops: unpacked(row, "ops")?,
            full: row.try_get("is_full")?,
            events: codec::decode_events(row.try_get("events")?, codec::LIMIT)?,
            usage: Usage {
                tokens_in: row.try_get("tokens_in")?,
                tokens_out: row.try_get("tokens_out")?,
                tool_calls: row.try_get("tool_calls")?,
                cost_micro_usd: row.try_get("cost_micro_usd")?,
            },
            trigger: row.try_get("trigger_word")?,
            records_digest: optional_digest(row, "records_digest")?,
        },
        parent,
        ops_digest: optional_digest(row, "ops_digest")?,
        events_digest: optional_digest(row, "events_digest")?,
        has_payloads: row.try_get("has_payloads")?,
    })
}

fn corrupt(run: RunId, detail: impl std::fmt::Display) -> Fault {
    Fault::Corrupt(format!("run {run}: {detail}"))
}
