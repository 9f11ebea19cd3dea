//! Who lives: the gateways' beat, the workers' heartbeats, and one look at all runs.

use std::sync::LazyLock;

use jiff::Timestamp;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Row as _};
use uuid::Uuid;

use super::Postgres;
use super::row::{asked, named};
use crate::db_error::{DbError, DbResult, timestamp};
use crate::reads::ClockSql;
use crate::statements::NAMESPACE_USAGE;
use crate::{BEAT_GAP_MS, Beat, Changed, Digest, Expired, Held, ObjectKey, Pulse, RunId};

/// A gateway serves. After a silence all clocks start anew. Where the server's own was put back the beats do, too; a clock that
/// was started before then stands still until it has caught up. `$1`: the longest gap that is none.
const BEAT: &str = "UPDATE store \
     SET gap_from = CASE WHEN abs(now - beat_last) > $1 THEN least(beat_last, now) ELSE gap_from END, \
         beat_since = CASE WHEN abs(now - beat_last) > $1 THEN now ELSE beat_since END, \
         beat_last = CASE WHEN abs(now - beat_last) > $1 THEN now ELSE greatest(beat_last, now) END \
     FROM (SELECT ds_now_v1() AS now OFFSET 0) AS clock WHERE only_row";

const HEARTBEATS: &str = include_str!("heartbeats.sql");

static PULSE: LazyLock<String> = LazyLock::new(|| {
    let clocks = ClockSql { greatest: "greatest", now: "now", beat_since: "beat_since" };
    include_str!("pulse.sql").replace("{first_expired}", &clocks.first_expired())
});

impl Postgres {
    pub(super) async fn do_capacity(&self, namespaces: u32) -> DbResult<Vec<Held>> {
        let rows = self.pool.all(sqlx::query(NAMESPACE_USAGE).bind(i64::from(namespaces))).await?;
        rows.iter()
            .map(|row| Ok(Held { namespace: row.try_get("namespace")?, bytes: row.try_get("bytes")? }))
            .collect()
    }

    pub(super) async fn do_beat(&self) -> DbResult<()> {
        self.beats.all(sqlx::query(BEAT).bind(BEAT_GAP_MS)).await?;
        Ok(())
    }

    pub(super) async fn do_heartbeats(&self, workers: &[(RunId, Digest)]) -> DbResult<Vec<Beat>> {
        let (runs, capabilities): (Vec<Uuid>, Vec<Vec<u8>>) =
            workers.iter().map(|(run, capability)| (*run, capability.to_vec())).unzip();
        let rows = self.beats.all(sqlx::query(HEARTBEATS).bind(runs).bind(capabilities)).await?;
        if rows.len() != workers.len() {
            return Err(DbError::Corrupt(format!(
                "{} workers asked, {} were answered",
                workers.len(),
                rows.len()
            )));
        }
        rows.iter()
            .map(|row| {
                Ok(match row.try_get("verdict")? {
                    "ok" => Beat::Ok(asked(row)?),
                    "finished" => Beat::Finished,
                    "fenced" => Beat::Fenced,
                    other => return Err(DbError::unknown_value("verdict on a heartbeat", other)),
                })
            })
            .collect()
    }

    pub(super) async fn do_pulse(&self, since: Timestamp) -> DbResult<Pulse> {
        let query = sqlx::query(AssertSqlSafe(PULSE.as_str())).bind(since.as_millisecond()).bind(BEAT_GAP_MS);
        let rows = self.pool.all(query).await?;
        let store = rows.first().ok_or_else(|| DbError::Corrupt("the store's row is not there".into()))?;
        let mut pulse = Pulse {
            now: timestamp(store.try_get("now")?)?,
            store_id: store.try_get("store_id")?,
            expired: Vec::new(),
            changed: Vec::new(),
            active: store.try_get("active")?,
        };
        for row in &rows {
            let Some(object) = object(row)? else { continue };
            if row.try_get("changed")? {
                pulse.changed.push(Changed {
                    object: object.clone(),
                    transition: row.try_get("transition")?,
                    transition_at: timestamp(row.try_get("changed_at")?)?,
                });
            }
            if let Some(deadline) = row.try_get::<Option<String>, _>("deadline")? {
                pulse.expired.push(Expired {
                    object,
                    attempt: row.try_get("attempt")?,
                    deadline: named(deadline)?,
                });
            }
        }
        Ok(pulse)
    }
}

/// Whose row it is; none's, where no run has anything to say.
fn object(row: &PgRow) -> DbResult<Option<ObjectKey>> {
    let Some(uid) = row.try_get("object_uid")? else {
        return Ok(None);
    };
    Ok(Some(ObjectKey { namespace: row.try_get("namespace")?, name: row.try_get("name")?, uid }))
}
