//! The live branch: boundaries found by walking parents from the head.

use dalsegno_protocol::Usage;
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::Postgres;
use super::answers::Answers;
use super::row::{boundary, digest, number, optional_digest};
use crate::chain::{EncodedBoundary, EncodedSnapshot, Payloads};
use crate::compaction::is_dropped;
use crate::db_error::{DbError, DbResult, timestamp};
use crate::snapshot_io::{Branch, Walk};
use crate::{AuditRow, BoundaryRow, Digest, Kept, RunId};

/// From the head, or from the boundary `$6` `$7` `$8`, down: to turn `$2`, and on as far as what is wanted needs a state before it. Of each boundary up to
/// turn `$3` it is told what is `known` of the state around it: 1 it is a full state that is kept plain, 2 a snapshot
/// holds it, 3 it is a patch that is wanted itself, 4 its payloads were dropped; and whether the state after it is `needed`, `$4` at first.
/// Snapshots of the boundaries `$5` are not used, and where `$9` says so, none of a boundary that keeps its payloads. Keys are
/// walked first, and rows joined after. The parent of each must stand before it, so that no cycle is walked. The run's row is there in any
/// case, with the head that was walked from.
///
/// Each boundary and each snapshot is found by its key, by a query of its own: of a plain join the planner, which knows
/// nothing of how long a run is, makes one that reads all rows of the run.
const WALK: &str = concat!(
    "WITH RECURSIVE run AS MATERIALIZED ( \
         SELECT id, head_turn, head_boundary, head_epoch, head_hash, \
                lifecycle, dropped_turn, dropped_boundary, dropped_epoch, \
                EXISTS (SELECT FROM data_keys WHERE run = $1) AS has_data_key \
         FROM runs WHERE id = $1 \
     ), live AS ( \
         SELECT 2147483647 AS turn, 2::smallint AS boundary, 0::bigint AS epoch, \
                coalesce($6, head_turn) AS parent_turn, coalesce($7, head_boundary) AS parent_boundary, \
                coalesce($8, head_epoch) AS parent_epoch, $4::boolean AS needed, 0 AS known \
         FROM run \
         UNION ALL \
         SELECT b.turn, b.boundary, b.epoch, b.parent_turn, b.parent_boundary, b.parent_epoch, \
                live.known = 3 OR (live.known = 0 AND live.needed), \
                CASE \
                    WHEN b.turn > $3 THEN 0 \
                    WHEN b.is_full AND substring(b.ops FROM 1 FOR 1) NOT IN ('\\x02'::bytea, '\\x12'::bytea) THEN 1 \
                    WHEN b.turn >= $2 AND NOT ",
    is_dropped!("run"),
    " THEN CASE WHEN b.is_full THEN 3 ELSE 0 END \
                    WHEN (NOT $9::boolean OR ",
    is_dropped!("run"),
    ") AND ( \
                        SELECT true FROM snapshots s \
                        WHERE s.run = $1 AND s.content_hash = b.content_hash AND s.content_hash <> ALL ($5) \
                    ) THEN 2 \
                    WHEN ",
    is_dropped!("run"),
    " THEN 4 \
                    ELSE 0 \
                END \
         FROM run CROSS JOIN live CROSS JOIN LATERAL ( \
             SELECT * FROM boundaries \
             WHERE run = $1 AND turn = live.parent_turn AND boundary = live.parent_boundary AND epoch = live.parent_epoch \
             LIMIT 1 \
         ) b \
         WHERE (b.turn, b.boundary) < (live.turn, live.boundary) \
           AND (live.turn > $3 OR b.turn >= $2 OR live.known = 3 OR (live.known = 0 AND live.needed)) \
     ) \
     SELECT run.head_turn, run.head_hash, run.has_data_key, \
            b.turn, b.boundary, b.epoch, b.parent_turn, b.parent_boundary, b.parent_epoch, b.parent_hash, \
            b.content_hash, b.attempt, b.position, b.commit_id, b.digest, b.at, b.ops_digest, b.is_full, \
            b.events_digest, b.event_count, b.tokens_in, b.tokens_out, b.tool_calls, b.cost_micro_usd, b.trigger_word, b.records_digest, \
            ",
    is_dropped!("run"),
    " AS is_dropped, \
            b.has_payloads, CASE WHEN b.has_payloads THEN b.ops END AS ops, \
            CASE WHEN b.has_payloads THEN b.events END AS events, b.document, b.snapshot_digest \
     FROM run LEFT JOIN ( \
         SELECT b.*, live.turn <= $3 AND live.known <> 2 AS has_payloads, s.document, s.digest AS snapshot_digest \
         FROM live CROSS JOIN LATERAL ( \
             SELECT * FROM boundaries \
             WHERE run = $1 AND turn = live.turn AND boundary = live.boundary AND epoch = live.epoch \
             LIMIT 1 \
         ) b \
         LEFT JOIN LATERAL ( \
             SELECT document, digest FROM snapshots \
             WHERE live.known = 2 AND run = $1 AND content_hash = b.content_hash \
             LIMIT 1 \
         ) s ON true \
     ) b ON true \
     ORDER BY b.turn, b.boundary"
);

const AUDIT: &str = "SELECT * FROM audit WHERE run = $1 ORDER BY seq";

/// The live branch as far as the walk needs it.
pub(super) async fn walk(rows: &impl Answers, run: RunId, walk: &Walk) -> DbResult<Option<Branch>> {
    let refused: Vec<_> = walk.excluded_snapshots.iter().map(Digest::as_slice).collect();
    let query = sqlx::query(WALK).bind(run).bind(walk.from).bind(walk.to).bind(walk.with_state).bind(refused);
    let start = walk.start.map(|(place, _)| place);
    let query = query
        .bind(start.map(|place| place.turn))
        .bind(start.map(|place| number(place.boundary)))
        .bind(start.map(|place| place.epoch))
        .bind(walk.avoid_snapshots);
    let found = rows.all(query).await?;
    let Some(first) = found.first() else { return Ok(None) };
    let Some(head_turn) = first.try_get("head_turn")? else {
        return Ok(None);
    };
    let head_hash = match walk.start {
        Some((_, content_hash)) => content_hash,
        None => digest(first, "head_hash")?,
    };
    let has_data_key = first.try_get("has_data_key")?;
    let encoded = match first.try_get::<Option<i32>, _>("turn")? {
        Some(_) => found.iter().map(encoded).collect::<DbResult<_>>()?,
        None => Vec::new(),
    };
    Ok(Some(Branch { head_turn, head_hash, has_data_key, encoded }))
}

impl Postgres {
    pub(super) async fn do_audit(&self, run: RunId) -> DbResult<Vec<AuditRow>> {
        let rows = self.pool.all(sqlx::query(AUDIT).bind(run)).await?;
        rows.iter().map(audit_row).collect()
    }
}

/// A row of the audit.
pub(super) fn audit_row(row: &PgRow) -> DbResult<AuditRow> {
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

/// A boundary from its row.
pub(super) fn encoded(row: &PgRow) -> DbResult<EncodedBoundary> {
    let parent = Kept::parent(
        row.try_get("parent_turn")?,
        boundary(row, "parent_boundary")?,
        row.try_get("parent_epoch")?,
    );
    let kept = Kept {
        row: BoundaryRow {
            turn: row.try_get("turn")?,
            boundary: boundary(row, "boundary")?
                .ok_or_else(|| DbError::Corrupt("a boundary is neither plan nor result".into()))?,
            epoch: row.try_get("epoch")?,
            attempt: row.try_get("attempt")?,
            position: row.try_get("position")?,
            commit_id: row.try_get("commit_id")?,
            digest: digest(row, "digest")?,
            parent_hash: digest(row, "parent_hash")?,
            content_hash: digest(row, "content_hash")?,
            at: timestamp(row.try_get("at")?)?,
            ops: None,
            full: row.try_get("is_full")?,
            events: Vec::new(),
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
        event_count: Some(row.try_get::<i32, _>("event_count")?.into()),
        digest_key: None,
        has_payloads: false,
    };
    Ok(EncodedBoundary {
        kept,
        payloads: row
            .try_get::<bool, _>("has_payloads")?
            .then(|| DbResult::Ok(Payloads { ops: row.try_get("ops")?, events: row.try_get("events")? }))
            .transpose()?,
        dropped: row.try_get("is_dropped")?,
        snapshot: match (row.try_get("document")?, row.try_get("snapshot_digest")?) {
            (Some(document), Some(digest)) => Some(EncodedSnapshot { document, digest }),
            _ => None,
        },
    })
}
