//! The outbox.

use std::sync::LazyLock;

use sqlx::AssertSqlSafe;
use uuid::Uuid;

use super::Postgres;
use super::read::NOW;
use crate::db_error::DbResult;
use crate::reads::{due_notifications, due_notifications_sql};
use crate::transitions::{announce_object_sql, held_object};
use dalsegno_model::{DueNotifications, NotificationResult, ObjectHold};

const DELETE: &str = "DELETE FROM outbox WHERE id = $1";

const RETRY: &str = "UPDATE outbox SET tries = tries + 1, next_try_at = ds_now_v1() + $2 WHERE id = $1";

impl Postgres {
    pub(super) async fn do_due_notifications(&self, limit: u32) -> DbResult<DueNotifications> {
        static SQL: LazyLock<String> = LazyLock::new(|| due_notifications_sql(NOW));
        let query = sqlx::query(AssertSqlSafe(SQL.as_str())).bind(i64::from(limit));
        due_notifications(&self.pool.all(query).await?)
    }

    pub(super) async fn do_announce_object(&self, hold: &ObjectHold) -> DbResult<()> {
        static SQL: LazyLock<String> = LazyLock::new(|| announce_object_sql("ds_now_v1()"));
        let (id, detail) = held_object(hold);
        let query = sqlx::query(AssertSqlSafe(SQL.as_str())).bind(id).bind(detail).bind(Uuid::nil());
        self.pool.all(query).await?;
        Ok(())
    }

    pub(super) async fn do_end_notification(&self, id: Uuid, result: NotificationResult) -> DbResult<()> {
        let query = match result {
            NotificationResult::Done => sqlx::query(DELETE).bind(id),
            NotificationResult::Retry { after_ms } => sqlx::query(RETRY).bind(id).bind(after_ms),
        };
        self.pool.all(query).await?;
        Ok(())
    }
}
