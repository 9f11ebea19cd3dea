//! Payloads that are past their retention.

use sqlx::SqliteConnection;

use super::change::append;
use super::read::record;
use super::row::RunRow;
use crate::audit::{actor, kind};
use crate::fault::Work;
use crate::{Dropped, Retention, RunId, RunRecord};

/// The next run to empty.
const NEXT: &str = "SELECT id FROM runs \
     WHERE lifecycle <> 'live' AND NOT emptied \
       AND (expired_at IS NOT NULL \
            OR coalesce(finish_at, over_at) + retention_days * 86400000 <= ?) \
     ORDER BY id LIMIT 1";

/// What is dropped of a run, so many rows at a time. Of boundaries the last first: what is left can be decoded, since a
/// patch needs the state before it.
const STEPS: [&str; 6] = [
    "DELETE FROM records WHERE run = ?1 AND (space, key, seq) IN \
     (SELECT space, key, seq FROM records WHERE run = ?1 LIMIT ?2)",
    "DELETE FROM record_batches WHERE rowid IN (SELECT rowid FROM record_batches WHERE run = ?1 LIMIT ?2)",
    "DELETE FROM snapshots WHERE rowid IN (SELECT rowid FROM snapshots WHERE run = ?1 LIMIT ?2)",
    "DELETE FROM chunks WHERE rowid IN (SELECT rowid FROM chunks WHERE run = ?1 LIMIT ?2)",
    "UPDATE calls SET arguments = NULL, result = NULL WHERE rowid IN \
     (SELECT rowid FROM calls WHERE run = ?1 AND (arguments IS NOT NULL OR result IS NOT NULL) LIMIT ?2)",
    "UPDATE boundaries SET ops = NULL, events = NULL, dropped = 1 WHERE rowid IN \
     (SELECT rowid FROM boundaries WHERE run = ?1 AND NOT dropped ORDER BY turn DESC, boundary DESC LIMIT ?2)",
];

/// What is kept of a run.
pub(super) async fn set(
    conn: &mut SqliteConnection,
    now: i64,
    run: RunId,
    retention: Retention,
) -> Work<RunRecord> {
    let mut row = RunRow::expect(conn, run).await?;
    (row.retention_days, row.keep_last) = (retention.days, retention.keep_last);
    row.save(conn).await?;
    record(conn, now, row).await
}

/// Drops so many rows of one run that is past its retention. That it does stands in the audit before.
pub(super) async fn expire(conn: &mut SqliteConnection, now: i64, rows: u32) -> Work<Dropped> {
    let next: Option<RunId> = sqlx::query_scalar(NEXT).bind(now).fetch_optional(&mut *conn).await?;
    let Some(run) = next else { return Ok(Dropped::default()) };
    let mut row = RunRow::expect(conn, run).await?;
    if row.expired_at.is_none() {
        row.expired_at = Some(now);
        let detail = serde_json::json!({ "retentionDays": row.retention_days });
        append(conn, &mut row, now, kind::EXPIRED, actor::OPERATOR, detail).await?;
    }
    let limit = u64::from(rows);
    let mut left = limit;
    for step in STEPS {
        let dropped = sqlx::query(step).bind(run).bind(left as i64).execute(&mut *conn).await?;
        left = left.saturating_sub(dropped.rows_affected());
    }
    let done = left > 0;
    row.emptied = done;
    if done {
        row.stored_bytes = 0;
        // It opens nothing any more but copies that are kept elsewhere.
        sqlx::query(
            "UPDATE data_keys SET key_id = NULL, wrapped = NULL, shredded_at = ? WHERE run = ? AND wrapped IS NOT NULL",
        )
        .bind(now)
        .bind(run)
        .execute(&mut *conn)
        .await?;
    }
    row.save(conn).await?;
    Ok(Dropped { run: Some(run), rows: limit - left, done })
}
