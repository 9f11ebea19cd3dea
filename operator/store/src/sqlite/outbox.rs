//! Statements of the outbox.

use std::sync::LazyLock;

use sqlx::{AssertSqlSafe, SqliteConnection};
use uuid::Uuid;

use crate::db_error::DbResult;
use crate::reads::{due_notifications, due_notifications_sql};
use crate::transitions::announce_object_sql;
use dalsegno_model::{DueNotifications, NotificationResult};

/// Returns the notifications whose next try is due, at most so many of them.
pub(super) async fn due(conn: &mut SqliteConnection, now: i64, limit: u32) -> DbResult<DueNotifications> {
    static SQL: LazyLock<String> = LazyLock::new(|| due_notifications_sql("$2"));
    let query = sqlx::query(AssertSqlSafe(SQL.as_str())).bind(limit).bind(now);
    due_notifications(&query.fetch_all(conn).await?)
}

/// Adds the notification of a held AgentRun, with this id and detail.
pub(super) async fn announce_object(
    conn: &mut SqliteConnection,
    now: i64,
    (id, detail): (Uuid, String),
) -> DbResult<()> {
    static SQL: LazyLock<String> = LazyLock::new(|| announce_object_sql("$4"));
    let query = sqlx::query(AssertSqlSafe(SQL.as_str())).bind(id).bind(detail).bind(Uuid::nil()).bind(now);
    query.execute(conn).await?;
    Ok(())
}

/// Records a try of a notification.
pub(super) async fn end(
    conn: &mut SqliteConnection,
    now: i64,
    id: Uuid,
    result: NotificationResult,
) -> DbResult<()> {
    let query = match result {
        NotificationResult::Done => sqlx::query("DELETE FROM outbox WHERE id = ?").bind(id),
        NotificationResult::Retry { after_ms } => {
            sqlx::query("UPDATE outbox SET tries = tries + 1, next_try_at = ? WHERE id = ?")
                .bind(now.saturating_add(after_ms))
                .bind(id)
        }
    };
    query.execute(conn).await?;
    Ok(())
}
