//! The deadline poll: one query over all runs, for deadlines that have expired and runs that have changed.

use std::sync::LazyLock;

use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Row as _};

use super::Postgres;
use super::row::parse_enum;
use crate::db_error::{DbError, DbResult, timestamp};
use crate::reads::{ClockSql, expired_deadline};
use dalsegno_model::{Changed, DeadlinePoll, HEARTBEAT_GAP_MS, ObjectKey, PollSince};

static POLL: LazyLock<String> = LazyLock::new(|| {
    let clocks = ClockSql { greatest: "greatest", least: "least", now: "now", beat_since: "beat_since" };
    include_str!("deadline_poll.sql").replace("{first_expired}", &clocks.first_expired())
});

impl Postgres {
    pub(super) async fn do_poll_deadlines(&self, since: PollSince) -> DbResult<DeadlinePoll> {
        let query = sqlx::query(AssertSqlSafe(POLL.as_str()))
            .bind(since.transitions.as_millisecond())
            .bind(HEARTBEAT_GAP_MS)
            .bind(since.heads.as_millisecond());
        let rows = self.pool.all(query).await?;
        let store = rows.first().ok_or_else(|| DbError::Corrupt("the store's row is missing".into()))?;
        let mut poll = DeadlinePoll {
            now: timestamp(store.try_get("now")?)?,
            store_id: store.try_get("store_id")?,
            expired: Vec::new(),
            changed: Vec::new(),
            active: store.try_get("active")?,
        };
        for row in &rows {
            let Some(object) = object(row)? else { continue };
            let (transition, head_moved) = (row.try_get("transition")?, row.try_get("head_moved")?);
            if transition || head_moved {
                poll.changed.push(Changed {
                    object: object.clone(),
                    transition,
                    head_moved,
                    transition_at: timestamp(row.try_get("changed_at")?)?,
                });
            }
            if let Some(deadline) = row.try_get::<Option<String>, _>("deadline")? {
                let (attempt, deadline) = (row.try_get("attempt")?, parse_enum(deadline)?);
                let expired = expired_deadline(object, attempt, (deadline, row.try_get("wake_at")?));
                poll.expired.push(expired?);
            }
        }
        Ok(poll)
    }
}

/// The object of a row's run; `None` for the row that has the store's columns alone.
fn object(row: &PgRow) -> DbResult<Option<ObjectKey>> {
    let Some(uid) = row.try_get("object_uid")? else {
        return Ok(None);
    };
    Ok(Some(ObjectKey { namespace: row.try_get("namespace")?, name: row.try_get("name")?, uid }))
}
