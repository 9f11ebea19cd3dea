//! Heartbeats: of the gateways, and of the workers.

use sqlx::Row as _;
use uuid::Uuid;

use super::Postgres;
use super::row::worker_signals;
use crate::db_error::{DbError, DbResult};
use dalsegno_model::{Digest, HEARTBEAT_GAP_MS, HeartbeatAnswer, RunId};

/// Records that a gateway serves. After a gap longer than `$1` ms all deadlines restart. If the server's clock was
/// set back, the time between two heartbeats counts as a gap too; a deadline that began before then does not advance
/// until the clock has caught up.
const GATEWAY_HEARTBEAT: &str = "UPDATE store \
     SET gap_from = CASE WHEN abs(now - beat_last) > $1 THEN least(beat_last, now) ELSE gap_from END, \
         beat_since = CASE WHEN abs(now - beat_last) > $1 THEN now ELSE beat_since END, \
         beat_last = CASE WHEN abs(now - beat_last) > $1 THEN now ELSE greatest(beat_last, now) END \
     FROM (SELECT ds_now_v1() AS now OFFSET 0) AS clock WHERE only_row";

const HEARTBEATS: &str = include_str!("heartbeats.sql");

impl Postgres {
    pub(super) async fn do_gateway_heartbeat(&self) -> DbResult<()> {
        self.heartbeat_pool.all(sqlx::query(GATEWAY_HEARTBEAT).bind(HEARTBEAT_GAP_MS)).await?;
        Ok(())
    }

    pub(super) async fn do_heartbeats(&self, workers: &[(RunId, Digest)]) -> DbResult<Vec<HeartbeatAnswer>> {
        let (runs, capabilities): (Vec<Uuid>, Vec<Vec<u8>>) =
            workers.iter().map(|(run, capability)| (*run, capability.to_vec())).unzip();
        let query = sqlx::query(HEARTBEATS).bind(runs).bind(capabilities);
        let rows = self.heartbeat_pool.all(query).await?;
        if rows.len() != workers.len() {
            return Err(DbError::Corrupt(format!(
                "{} heartbeats were sent, {} rows were returned",
                workers.len(),
                rows.len()
            )));
        }
        rows.iter()
            .map(|row| {
                Ok(match row.try_get("verdict")? {
                    "ok" => HeartbeatAnswer::Ok(worker_signals(row)?),
                    "finished" => HeartbeatAnswer::Finished,
                    "fenced" => HeartbeatAnswer::Fenced,
                    other => return Err(DbError::unknown_value("verdict on a heartbeat", other)),
                })
            })
            .collect()
    }
}
