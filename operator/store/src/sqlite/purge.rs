//! Statements that delete runs that ended long ago, in steps.

use sqlx::{Row as _, SqliteConnection};

use super::transact::transact;
use crate::db_error::DbResult;
use crate::pages::PAGE_ROWS;
use crate::transitions::{PurgeRecord, RecordPurge};
use dalsegno_model::{EndedRun, ForgottenPurges, Purge, PurgeScope, PurgeStep, RunId};

const RUNS_TO_PURGE: &str = "SELECT id, coalesce(finish_at, over_at) AS ended_at \
     FROM runs INDEXED BY runs_to_purge \
     WHERE lifecycle IN ('deleted', 'abandoned') AND emptied AND coalesce(finish_at, over_at) < ?1 \
       AND (coalesce(finish_at, over_at), id) > (?2, ?3) AND (?4 IS NULL OR namespace = ?4) \
     ORDER BY coalesce(finish_at, over_at), id LIMIT ?5";

/// Deletes at most `?2` rows of the run `?1`; of its audit (the last) from the first row on and those before row `?3`.
const STEPS: [&str; 6] = [
    "DELETE FROM boundaries WHERE rowid IN (SELECT rowid FROM boundaries WHERE run = ?1 LIMIT ?2)",
    "DELETE FROM calls WHERE rowid IN (SELECT rowid FROM calls WHERE run = ?1 LIMIT ?2)",
    "DELETE FROM waits WHERE rowid IN (SELECT rowid FROM waits WHERE run = ?1 LIMIT ?2)",
    "DELETE FROM messages WHERE rowid IN (SELECT rowid FROM messages WHERE run = ?1 LIMIT ?2)",
    "DELETE FROM attempts WHERE rowid IN (SELECT rowid FROM attempts WHERE run = ?1 LIMIT ?2)",
    "DELETE FROM audit WHERE run = ?1 AND seq IN \
     (SELECT seq FROM audit WHERE run = ?1 AND seq < ?3 ORDER BY seq LIMIT ?2)",
];

/// The last step. Retention has deleted the rows of most of these tables already.
const LAST_STEP: [&str; 9] = [
    "INSERT INTO purges (run, seq, at, kind, actor, detail, parent_hash, hash) \
     SELECT run, seq, at, kind, actor, detail, parent_hash, hash FROM audit WHERE run = ?",
    "DELETE FROM audit WHERE run = ?",
    "DELETE FROM records WHERE run = ?",
    "DELETE FROM record_batches WHERE run = ?",
    "DELETE FROM record_changes WHERE run = ?",
    "DELETE FROM snapshots WHERE run = ?",
    "DELETE FROM chunks WHERE run = ?",
    "DELETE FROM data_keys WHERE run = ?",
    "DELETE FROM runs WHERE id = ?",
];

const PAGE_OF_PURGES: &str = "SELECT run FROM purges WHERE run > ? ORDER BY run LIMIT ?";

const FORGET: &str = "DELETE FROM purges WHERE run > ?1 AND run <= ?2 \
     AND NOT EXISTS (SELECT 1 FROM anchor_leaves WHERE anchor_leaves.run = purges.run)";

/// Lists runs that may be purged.
pub(super) async fn runs_to_purge(
    conn: &mut SqliteConnection,
    scope: PurgeScope,
    after: EndedRun,
) -> DbResult<Vec<EndedRun>> {
    let query = sqlx::query(RUNS_TO_PURGE)
        .bind(scope.before.as_millisecond())
        .bind(after.ended_at)
        .bind(after.run)
        .bind(scope.namespace)
        .bind(PAGE_ROWS);
    let rows = query.fetch_all(conn).await?;
    rows.iter()
        .map(|row| Ok(EndedRun { ended_at: row.try_get("ended_at")?, run: row.try_get("id")? }))
        .collect()
}

/// Records the purge, or deletes at most `rows` rows.
pub(super) async fn purge(
    conn: &mut SqliteConnection,
    now: i64,
    purge: Purge,
    rows: u32,
) -> DbResult<PurgeStep> {
    let run = purge.run;
    let last = match transact(conn, now, run, RecordPurge(purge)).await? {
        PurgeRecord::Kept => return Ok(PurgeStep::Kept),
        PurgeRecord::Recorded => return Ok(PurgeStep::Recorded),
        PurgeRecord::NotAnchored => return Ok(PurgeStep::NotAnchored),
        PurgeRecord::Anchored(last) => last,
    };
    sqlx::query("INSERT INTO audit_prunes (run, to_seq) VALUES (?, ?)")
        .bind(run)
        .bind(last)
        .execute(&mut *conn)
        .await?;
    let limit = u64::from(rows);
    let mut deleted = 0;
    for step in STEPS {
        let left = i64::try_from(limit - deleted).unwrap_or(i64::MAX);
        let done = sqlx::query(step).bind(run).bind(left).bind(last).execute(&mut *conn).await?;
        deleted += done.rows_affected();
    }
    let done = deleted < limit;
    if done {
        for statement in LAST_STEP {
            sqlx::query(statement).bind(run).execute(&mut *conn).await?;
        }
        deleted += 1;
    }
    sqlx::query("DELETE FROM audit_prunes WHERE run = ?").bind(run).execute(conn).await?;
    Ok(PurgeStep::Deleted { rows: deleted, done })
}

/// Deletes the purge records of a page of runs, unless anchors name the run.
pub(super) async fn forget(conn: &mut SqliteConnection, after: RunId) -> DbResult<ForgottenPurges> {
    let query = sqlx::query_scalar(PAGE_OF_PURGES).bind(after).bind(PAGE_ROWS);
    let page: Vec<RunId> = query.fetch_all(&mut *conn).await?;
    let Some(last) = page.last() else { return Ok(ForgottenPurges::default()) };
    let forgotten = sqlx::query(FORGET).bind(after).bind(last).execute(conn).await?;
    Ok(ForgottenPurges { next: Some(*last), rows: forgotten.rows_affected() })
}
