//! The live branch: the boundaries that a walk from the head along their parents finds.

use sqlx::Row as _;

use super::query::QueryExecutor;
use super::row::{boundary_number, digest};
use crate::compaction::is_dropped;
use crate::db_error::DbResult;
use crate::reads::encoded_boundary;
use crate::snapshot_io::{Branch, Walk};
use crate::statements::boundary_columns;
use dalsegno_model::{Digest, RunId};

/// Walks from the head, or from the boundary `$6` `$7` `$8`, along the parents: down to turn `$2`, and further while a
/// wanted boundary needs the state before it.
///
/// - `known`, for each boundary up to turn `$3`, says where the state around it comes from. 1: its ops are the full
///   state, stored without a patch. 2: a snapshot holds the state after it. 3: its full state is stored as a patch, and
///   the boundary itself is wanted. 4: its payloads were dropped. 0: none of these.
/// - `needed` says whether the state after the boundary is needed; it starts as `$4`.
/// - Snapshots of the boundaries with the content hashes `$5` are not used. If `$9` is true, a snapshot is used only
///   for a boundary whose payloads were dropped.
/// - The parent of a boundary must have a lower turn or boundary, so that the walk ends even if parents form a cycle.
/// - The result has at least one row if the run exists; that row has the head of the run.
///
/// The recursion walks keys only; payloads are joined afterwards. Each boundary and each snapshot is found by its key
/// in a lateral query with LIMIT 1: the planner does not know the length of a run, and for a plain join it would choose
/// a plan that reads all rows of the run.
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
             SELECT ",
    boundary_columns!("boundaries"),
    " FROM boundaries \
             WHERE run = $1 AND turn = live.parent_turn AND boundary = live.parent_boundary \
               AND epoch = live.parent_epoch \
             LIMIT 1 \
         ) b \
         WHERE (b.turn, b.boundary) < (live.turn, live.boundary) \
           AND (live.turn > $3 OR b.turn >= $2 OR live.known = 3 OR (live.known = 0 AND live.needed)) \
     ) \
     SELECT run.head_turn, run.head_hash, run.has_data_key, \
            b.turn, b.boundary, b.epoch, b.parent_turn, b.parent_boundary, b.parent_epoch, b.parent_hash, \
            b.content_hash, b.attempt, b.position, b.commit_id, b.digest, b.at, b.ops_digest, b.is_full, \
            b.events_digest, b.event_count, b.tokens_in, b.tokens_out, b.tool_calls, b.cost_micro_usd, \
            b.trigger_word, b.records_digest, b.forked_run, b.forked_turn, b.forked_hash, ",
    is_dropped!("run"),
    " AS is_dropped, \
            b.has_payloads, CASE WHEN b.has_payloads THEN b.ops END AS ops, \
            CASE WHEN b.has_payloads THEN b.events END AS events, b.document, b.snapshot_digest \
     FROM run LEFT JOIN ( \
         SELECT b.*, live.turn <= $3 AND live.known <> 2 AS has_payloads, s.document, s.digest AS snapshot_digest \
         FROM live CROSS JOIN LATERAL ( \
             SELECT ",
    boundary_columns!("boundaries"),
    " FROM boundaries \
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

/// The live branch, as far as the walk needs it. `None`: nothing is committed.
pub(super) async fn walk(executor: &impl QueryExecutor, run: RunId, walk: &Walk) -> DbResult<Option<Branch>> {
    let refused: Vec<_> = walk.excluded_snapshots.iter().map(Digest::as_slice).collect();
    let query = sqlx::query(WALK).bind(run).bind(walk.from).bind(walk.to).bind(walk.with_state).bind(refused);
    let start = walk.start.map(|start| start.id);
    let query = query
        .bind(start.map(|id| id.turn))
        .bind(start.map(|id| boundary_number(id.boundary)))
        .bind(start.map(|id| id.epoch))
        .bind(walk.avoid_snapshots);
    let found = executor.all(query).await?;
    let Some(first) = found.first() else { return Ok(None) };
    let Some(head_turn) = first.try_get("head_turn")? else {
        return Ok(None);
    };
    let head_hash = match walk.start {
        Some(start) => start.content_hash,
        None => digest(first, "head_hash")?,
    };
    let has_data_key = first.try_get("has_data_key")?;
    let encoded = match first.try_get::<Option<i32>, _>("turn")? {
        Some(_) => found.iter().map(encoded_boundary).collect::<DbResult<_>>()?,
        None => Vec::new(),
    };
    Ok(Some(Branch { run, head_turn, head_hash, has_data_key, encoded }))
}
