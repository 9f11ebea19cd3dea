//! One look at all runs: deadlines that have run out, and what changed.

use jiff::Timestamp;
use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, SqliteConnection};

use super::read::store_row;
use crate::fault::{Fault, Work, timestamp};
use crate::{BEAT_GAP_MS, CANCEL_TOLD_MS, CANCEL_UNTOLD_MS, Changed, Deadline, Expired, ObjectKey, Pulse};

/// ?1 now, ?2 the beats began, ?3 ?4 the lengths of a cancel told and not told. The first deadline of the list that has
/// run out; each had its full length since the beats began.
const EXPIRED: &str = "SELECT namespace, name, object_uid, attempt, deadline FROM ( \
         SELECT *, CASE \
             WHEN max(cancel_told_at, ?2) + ?3 < ?1 OR max(cancel_requested_at, ?2) + ?4 < ?1 THEN 'cancel' \
             WHEN attempt_state = 'attached' AND max(lease_renewed_at, ?2) + max(lease_ms, heartbeat_ms) < ?1 THEN 'lease' \
             WHEN attempt_state IN ('reserved', 'created') AND max(scheduled_at, ?2) + start_ms < ?1 THEN 'start' \
             WHEN attempt_state = 'attached' AND max(attached_at, ?2, \
                 CASE WHEN head_attempt = attempt THEN head_at ELSE 0 END) + progress_ms < ?1 THEN 'progress' \
         END AS deadline \
         FROM runs WHERE lifecycle = 'live' \
     ) WHERE deadline IS NOT NULL ORDER BY namespace, name";

const CHANGED: &str = "SELECT namespace, name, object_uid, changed_at >= ?1 AS transition, changed_at FROM runs \
     WHERE lifecycle IN ('live', 'finished') AND (changed_at >= ?1 OR head_at >= ?1) ORDER BY namespace, name";

pub(super) async fn pulse(conn: &mut SqliteConnection, now: i64, since: Timestamp) -> Work<Pulse> {
    let store = store_row(conn).await?;
    let fresh = now - store.beat_last <= BEAT_GAP_MS;
    let expired = if fresh {
        sqlx::query(EXPIRED)
            .bind(now)
            .bind(store.beat_since)
            .bind(CANCEL_TOLD_MS)
            .bind(CANCEL_UNTOLD_MS)
            .fetch_all(&mut *conn)
            .await?
    } else {
        Vec::new()
    };
    let changed = sqlx::query(CHANGED).bind(since.as_millisecond()).fetch_all(&mut *conn).await?;
    let active = sqlx::query_scalar(
        "SELECT count(*) FROM runs WHERE lifecycle = 'live' AND attempt_state = 'attached'",
    )
    .fetch_one(conn)
    .await?;
    Ok(Pulse {
        now: timestamp(now)?,
        store_id: store.id,
        expired: expired
            .iter()
            .map(|row| {
                Ok(Expired {
                    object: object(row)?,
                    attempt: row.try_get("attempt")?,
                    deadline: deadline(row.try_get("deadline")?)?,
                })
            })
            .collect::<Work<_>>()?,
        changed: changed
            .iter()
            .map(|row| {
                Ok(Changed {
                    object: object(row)?,
                    transition: row.try_get("transition")?,
                    transition_at: timestamp(row.try_get("changed_at")?)?,
                })
            })
            .collect::<Work<_>>()?,
        active,
    })
}

fn object(row: &SqliteRow) -> Work<ObjectKey> {
    Ok(ObjectKey {
        namespace: row.try_get("namespace")?,
        name: row.try_get("name")?,
        uid: row.try_get("object_uid")?,
    })
}

fn deadline(word: &str) -> Work<Deadline> {
    match word {
        "cancel" => Ok(Deadline::Cancel),
        "lease" => Ok(Deadline::Lease),
        "start" => Ok(Deadline::Start),
        "progress" => Ok(Deadline::Progress),
        other => Err(Fault::Corrupt(format!("there is no deadline {other:?}"))),
    }
}
