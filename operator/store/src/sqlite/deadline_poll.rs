//! The poll of all runs: expired deadlines and changed runs.

use std::sync::LazyLock;

use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, Row as _, SqliteConnection};

use super::read::store_row;
use crate::db_error::{DbResult, timestamp};
use crate::reads::{ClockSql, Column as _, EnumText, expired_deadline};
use dalsegno_model::{Changed, DeadlinePoll, HEARTBEAT_GAP_MS, ObjectKey, PollSince};

/// `?1` is the time now, `?2` the time since which a gateway has been serving without a gap, `?3` whether one is serving.
/// If none is, no deadline expires but `wake`: that is the store's clock alone.
pub(super) static EXPIRED: LazyLock<String> = LazyLock::new(|| {
    let clocks = ClockSql { greatest: "max", least: "min", now: "?1", beat_since: "?2" };
    let deadline = clocks.first_expired();
    format!(
        "SELECT namespace, name, object_uid, attempt, deadline, wake_at FROM ( \
             SELECT namespace, name, object_uid, attempt, wake_at, coalesce(CASE WHEN ?3 THEN {deadline} END, CASE WHEN wake_at <= ?1 THEN 'wake' END) AS deadline \
             FROM runs INDEXED BY runs_live WHERE lifecycle = 'live' \
         ) WHERE deadline IS NOT NULL ORDER BY namespace, name"
    )
});

/// A finished run does not move its head any more, so its finish is its last change that counts here.
pub(super) const CHANGED: &str = "SELECT namespace, name, object_uid, changed_at >= ?1 AS transition, \
            coalesce(head_at >= ?2, false) AS head_moved, changed_at \
     FROM runs INDEXED BY runs_live WHERE lifecycle = 'live' AND (changed_at >= ?1 OR head_at >= ?2) \
     UNION ALL \
     SELECT namespace, name, object_uid, true, coalesce(head_at >= ?2, false), changed_at \
     FROM runs INDEXED BY runs_finished WHERE lifecycle = 'finished' AND changed_at >= ?1 ORDER BY 1, 2";

pub(super) const ACTIVE: &str = "SELECT count(*) FROM runs INDEXED BY runs_live \
     WHERE lifecycle = 'live' AND attempt_state = 'attached'";

/// Returns expired deadlines, and the runs that changed since `since`.
pub(super) async fn poll(conn: &mut SqliteConnection, now: i64, since: PollSince) -> DbResult<DeadlinePoll> {
    let store = store_row(conn).await?;
    let is_gateway_serving = (now - store.beat_last).abs() <= HEARTBEAT_GAP_MS;
    let expired = sqlx::query(AssertSqlSafe(EXPIRED.as_str()))
        .bind(now)
        .bind(store.beat_since)
        .bind(is_gateway_serving)
        .fetch_all(&mut *conn)
        .await?;
    let changed = sqlx::query(CHANGED)
        .bind(since.transitions.as_millisecond())
        .bind(since.heads.as_millisecond())
        .fetch_all(&mut *conn)
        .await?;
    let active = sqlx::query_scalar(ACTIVE).fetch_one(conn).await?;
    Ok(DeadlinePoll {
        now: timestamp(now)?,
        store_id: store.id,
        expired: expired
            .iter()
            .map(|row| {
                let (object, attempt) = (object(row)?, row.try_get("attempt")?);
                expired_deadline(
                    object,
                    attempt,
                    (EnumText::read(row, "deadline")?.0, row.try_get("wake_at")?),
                )
            })
            .collect::<DbResult<_>>()?,
        changed: changed
            .iter()
            .map(|row| {
                Ok(Changed {
                    object: object(row)?,
                    transition: row.try_get("transition")?,
                    head_moved: row.try_get("head_moved")?,
                    transition_at: timestamp(row.try_get("changed_at")?)?,
                })
            })
            .collect::<DbResult<_>>()?,
        active,
    })
}

fn object(row: &SqliteRow) -> DbResult<ObjectKey> {
    Ok(ObjectKey {
        namespace: row.try_get("namespace")?,
        name: row.try_get("name")?,
        uid: row.try_get("object_uid")?,
    })
}
