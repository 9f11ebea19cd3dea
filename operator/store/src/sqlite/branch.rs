//! The live branch: boundaries found by walking parents from the head, each held to its hash.

use dalsegno_protocol::{State, Usage};
use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, SqliteConnection};
use uuid::Uuid;

use super::columns::{Hash, Which};
use super::fault::{Fault, Work, timestamp};
use super::row::RunRow;
use crate::chain::{self, Kept, Place};
use crate::{AuditRow, BoundaryRow, RunId, codec, fold};

/// From the head to turn `?5`; where `?6` is set, no further than the last full state in there up to turn `?7`. The
/// parent of each must stand before it, so that no cycle is walked.
const WALK: &str = "WITH RECURSIVE live AS ( \
         SELECT * FROM boundaries WHERE run = ?1 AND turn = ?2 AND boundary = ?3 AND epoch = ?4 \
         UNION ALL \
         SELECT b.* FROM live JOIN boundaries b \
         ON b.run = ?1 AND b.turn = live.parent_turn AND b.boundary = live.parent_boundary \
            AND b.epoch = live.parent_epoch \
         WHERE b.turn >= ?5 AND (b.turn, b.boundary) < (live.turn, live.boundary) \
            AND NOT (?6 AND live.is_full AND live.turn <= ?7) \
     ) SELECT * FROM live ORDER BY turn, boundary";

/// The state after a turn, or after the head.
pub(super) async fn state(conn: &mut SqliteConnection, run: RunId, turn: Option<i32>) -> Work<Option<State>> {
    let Some(row) = RunRow::load(conn, run).await? else {
        return Ok(None);
    };
    let Some(head) = row.head() else { return Ok(None) };
    let last = turn.unwrap_or(head.turn);
    if !(1..=head.turn).contains(&last) {
        return Ok(None);
    }
    let mut branch = walk(conn, &row, 1, Some(last)).await?;
    branch.retain(|kept| kept.row.turn <= last);
    let starts_whole = branch.first().is_some_and(|first| first.row.full || first.parent.is_none());
    if !starts_whole {
        return Err(corrupt(&row, "its live branch ends before a full state or the first boundary"));
    }
    Ok(Some(fold::fold(branch.iter().filter_map(|kept| kept.row.ops.as_deref()))?))
}

/// Boundaries of some turns of the live branch, in order.
pub(super) async fn boundaries(
    conn: &mut SqliteConnection,
    run: RunId,
    from: i32,
    to: i32,
) -> Work<Vec<BoundaryRow>> {
    let Some(row) = RunRow::load(conn, run).await? else {
        return Ok(Vec::new());
    };
    let branch = walk(conn, &row, from, None).await?;
    let parent = branch.first().and_then(|first| first.parent);
    if parent.is_some_and(|parent| parent.turn >= from) {
        return Err(corrupt(&row, "its live branch ends before its first boundary"));
    }
    Ok(branch.into_iter().map(|kept| kept.row).filter(|boundary| boundary.turn <= to).collect())
}

/// The live branch from turn `from` to the head, or from the last full state at or before turn `whole_at`.
async fn walk(
    conn: &mut SqliteConnection,
    row: &RunRow,
    from: i32,
    whole_at: Option<i32>,
) -> Work<Vec<Kept>> {
    let Some(head) = row.head() else {
        return Ok(Vec::new());
    };
    let found = sqlx::query(WALK)
        .bind(row.id)
        .bind(head.turn)
        .bind(Which(head.boundary))
        .bind(head.epoch)
        .bind(from)
        .bind(whole_at.is_some())
        .bind(whole_at)
        .fetch_all(conn)
        .await?;
    let branch = found.iter().map(kept).collect::<Work<Vec<_>>>()?;
    if from > head.turn {
        return Ok(Vec::new());
    }
    chain::hold(row.id, &head.hash, &branch).map_err(|detail| corrupt(row, detail))?;
    Ok(branch)
}

/// A boundary from its row.
pub(super) fn kept(row: &SqliteRow) -> Work<Kept> {
    let parent = match (
        row.try_get::<Option<i32>, _>("parent_turn")?,
        row.try_get::<Option<Which>, _>("parent_boundary")?,
        row.try_get::<Option<i64>, _>("parent_epoch")?,
    ) {
        (Some(turn), Some(Which(boundary)), Some(epoch)) => Some(Place { turn, boundary, epoch }),
        _ => None,
    };
    let ops = row
        .try_get::<Option<Vec<u8>>, _>("ops")?
        .map(|ops| {
            String::from_utf8(codec::decode(&ops, codec::LIMIT)?)
                .map_err(|_| Fault::Corrupt("channel operations are not UTF-8".into()))
        })
        .transpose()?;
    Ok(Kept {
        row: BoundaryRow {
            turn: row.try_get("turn")?,
            boundary: row.try_get::<Which, _>("boundary")?.0,
            epoch: row.try_get("epoch")?,
            attempt: row.try_get("attempt")?,
            position: row.try_get("position")?,
            commit_id: row.try_get::<Uuid, _>("commit_id")?,
            digest: row.try_get::<Hash, _>("digest")?.0,
            parent_hash: row.try_get::<Hash, _>("parent_hash")?.0,
            content_hash: row.try_get::<Hash, _>("content_hash")?.0,
            at: timestamp(row.try_get("at")?)?,
            ops,
            full: row.try_get("is_full")?,
            events: codec::decode_events(
                row.try_get::<Option<Vec<u8>>, _>("events")?.as_deref(),
                codec::LIMIT,
            )?,
            usage: Usage {
                tokens_in: row.try_get("tokens_in")?,
                tokens_out: row.try_get("tokens_out")?,
                tool_calls: row.try_get("tool_calls")?,
                cost_micro_usd: row.try_get("cost_micro_usd")?,
            },
            trigger: row.try_get("trigger_word")?,
            records_digest: row.try_get::<Option<Hash>, _>("records_digest")?.map(|hash| hash.0),
        },
        parent,
        ops_digest: row.try_get::<Option<Hash>, _>("ops_digest")?.map(|hash| hash.0),
        events_digest: row.try_get::<Option<Hash>, _>("events_digest")?.map(|hash| hash.0),
        has_payloads: true,
    })
}

fn corrupt(run: &RunRow, detail: impl std::fmt::Display) -> Fault {
    Fault::Corrupt(format!("run {}: {detail}", run.id))
}

/// The audit chain of a run, in order.
pub(super) async fn audit(conn: &mut SqliteConnection, run: RunId) -> Work<Vec<AuditRow>> {
    let rows =
        sqlx::query("SELECT * FROM audit WHERE run = ? ORDER BY seq").bind(run).fetch_all(conn).await?;
    rows.iter().map(audit_row).collect()
}

/// A row of the audit.
pub(super) fn audit_row(row: &SqliteRow) -> Work<AuditRow> {
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
