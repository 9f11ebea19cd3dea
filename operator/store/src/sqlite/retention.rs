//! Statements that delete the payloads of runs that are past their retention.

use sqlx::{AssertSqlSafe, SqliteConnection};

use super::audit::append;
use super::row::RunRow;
use crate::db_error::DbResult;
use crate::pages::{PAGE_BYTES, PAGE_ROWS};
use crate::transitions::AuditEvent;
use dalsegno_model::audit::{actor, kind};
use dalsegno_model::{Dropped, RunId};

/// Whether a run has payloads to delete at the time `?2`.
const IS_EXPIRED: &str = "lifecycle <> 'live' AND NOT emptied \
     AND CASE WHEN expired_at IS NULL THEN coalesce(finish_at, over_at) + retention_days * 86400000 ELSE 0 END <= ?2";

/// The deletion from one table: at most `?2` rows of the run `?1`, and no further row once `?3` bytes are reached.
struct Step {
    /// Returns the number of rows to delete, and their bytes.
    measure: &'static str,
    delete: &'static str,
}

macro_rules! step {
    ($delete:literal, $from:literal, $key:literal, $bytes:literal) => {
        Step {
            measure: concat!(
                "SELECT count(*), coalesce(sum(bytes), 0) FROM (",
                selected!($from, $key, $bytes),
                ")"
            ),
            delete: concat!(
                $delete,
                " WHERE run = ?1 AND (",
                $key,
                ") IN (SELECT ",
                $key,
                " FROM (",
                selected!($from, $key, $bytes),
                "))"
            ),
        }
    };
}

macro_rules! selected {
    ($from:literal, $key:literal, $bytes:literal) => {
        concat!(
            "SELECT * FROM (SELECT *, sum(bytes) OVER (ROWS UNBOUNDED PRECEDING) - bytes AS before FROM (SELECT ",
            $key,
            ", ",
            $bytes,
            " AS bytes FROM ",
            $from,
            " LIMIT ?2)) WHERE before < ?3"
        )
    };
}

/// The order keeps the remaining payloads readable. The last boundaries are deleted first, because a delta needs the
/// state before it. Snapshots are deleted after all boundaries, because the first boundaries may need the snapshot of
/// those dropped before.
const STEPS: [Step; 9] = [
    step!(
        "UPDATE boundaries SET ops = NULL, events = NULL, dropped = 1",
        "boundaries WHERE run = ?1 AND NOT dropped ORDER BY turn DESC, boundary DESC, epoch",
        "turn, boundary, epoch",
        "coalesce(length(ops), 0) + coalesce(length(events), 0)"
    ),
    step!(
        "DELETE FROM records",
        "records WHERE run = ?1 ORDER BY space, key, seq",
        "space, key, seq",
        "coalesce(length(value), 0)"
    ),
    step!("DELETE FROM record_batches", "record_batches WHERE run = ?1 ORDER BY id, epoch", "id, epoch", "0"),
    step!("DELETE FROM record_changes", "record_changes WHERE run = ?1 ORDER BY seq", "seq", "length(batch)"),
    step!(
        "DELETE FROM snapshots",
        "snapshots WHERE run = ?1 ORDER BY content_hash",
        "content_hash",
        "length(document)"
    ),
    step!("DELETE FROM chunks", "chunks WHERE run = ?1 ORDER BY hash", "hash", "length(payload)"),
    step!(
        "UPDATE calls SET arguments = NULL, result = NULL",
        "calls WHERE run = ?1 AND (arguments IS NOT NULL OR result IS NOT NULL) ORDER BY ordinal",
        "ordinal",
        "coalesce(length(arguments), 0) + coalesce(length(result), 0)"
    ),
    step!(
        "UPDATE waits SET request = NULL, answer = NULL",
        "waits WHERE run = ?1 AND (request IS NOT NULL OR answer IS NOT NULL) ORDER BY id, epoch",
        "id, epoch",
        "coalesce(length(request), 0) + coalesce(length(answer), 0)"
    ),
    step!(
        "UPDATE messages SET value = NULL",
        "messages WHERE run = ?1 AND value IS NOT NULL ORDER BY position",
        "position",
        "length(value)"
    ),
];

pub(super) fn runs_to_expire_sql() -> String {
    format!(
        "SELECT id FROM runs INDEXED BY runs_to_expire WHERE {IS_EXPIRED} AND id > ?1 ORDER BY id LIMIT ?3"
    )
}

/// Lists runs that have payloads past their retention.
pub(super) async fn runs_to_expire(
    conn: &mut SqliteConnection,
    now: i64,
    after: RunId,
) -> DbResult<Vec<RunId>> {
    let query = sqlx::query_scalar(AssertSqlSafe(runs_to_expire_sql())).bind(after).bind(now).bind(PAGE_ROWS);
    Ok(query.fetch_all(conn).await?)
}

/// Deletes at most `rows` rows of a run that is past its retention. The audit says so before the first row is deleted.
pub(super) async fn expire(
    conn: &mut SqliteConnection,
    now: i64,
    run: RunId,
    rows: u32,
) -> DbResult<Dropped> {
    let sql = format!("SELECT count(*) FROM runs WHERE id = ?1 AND {IS_EXPIRED}");
    let due: i64 = sqlx::query_scalar(AssertSqlSafe(sql)).bind(run).bind(now).fetch_one(&mut *conn).await?;
    if due == 0 {
        return Ok(Dropped::default());
    }
    let mut row = RunRow::expect(conn, run).await?;
    if row.expired_at.is_none() {
        row.expired_at = Some(now);
        let detail = serde_json::json!({ "retentionDays": row.retention_days });
        append(conn, &mut row, now, AuditEvent { kind: kind::EXPIRED, actor: actor::OPERATOR, detail })
            .await?;
    }
    let limit = i64::from(rows);
    let (mut left, mut room) = (limit, PAGE_BYTES);
    for Step { measure, delete } in STEPS {
        let query = sqlx::query_as(measure).bind(run).bind(left).bind(room);
        let (count, bytes): (i64, i64) = query.fetch_one(&mut *conn).await?;
        sqlx::query(delete).bind(run).bind(left).bind(room).execute(&mut *conn).await?;
        (left, room) = (left - count, room - bytes);
    }
    let done = left > 0 && room > 0;
    row.emptied = done;
    if done {
        row.stored_bytes = 0;
        // No payload of the database needs the key any more. Copies elsewhere must not stay readable.
        sqlx::query(
            "UPDATE data_keys SET key_id = NULL, wrapped = NULL, shredded_at = ? WHERE run = ? AND wrapped IS NOT NULL",
        )
        .bind(now)
        .bind(run)
        .execute(&mut *conn)
        .await?;
    }
    row.save(conn).await?;
    Ok(Dropped { run: Some(run), rows: (limit - left).unsigned_abs(), done })
}
