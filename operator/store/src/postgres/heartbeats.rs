//! Heartbeats: of the gateways, and of the workers.

use sqlx::Row as _;
use uuid::Uuid;

use super::Postgres;
use super::row::worker_signals;
use crate::db_error::{DbError, DbResult};
use crate::reads::{GATEWAYS_KEPT_MS, MAX_OUTAGES, OUTAGES_KEPT_MS, SERVING_GATEWAY_MS};
use dalsegno_model::{Digest, HEARTBEAT_GAP_MS, HeartbeatAnswer, RunId};
use dalsegno_protocol::CONTRACT;

/// Records that a gateway serves, and the outage if this is the first heartbeat after one. If the server's clock was
/// set back, the time between two heartbeats counts as an outage too; a deadline that began before then does not
/// advance until the clock has caught up.
const GATEWAY_HEARTBEAT: &str = include_str!("gateway_heartbeat.sql");

const HEARTBEATS: &str = include_str!("heartbeats.sql");

impl Postgres {
    pub(super) async fn do_gateway_heartbeat(&self) -> DbResult<i32> {
        let query = sqlx::query(GATEWAY_HEARTBEAT)
            .bind(HEARTBEAT_GAP_MS)
            .bind(OUTAGES_KEPT_MS)
            .bind(MAX_OUTAGES)
            .bind(self.gateway)
            .bind(GATEWAYS_KEPT_MS)
            .bind(CONTRACT)
            .bind(SERVING_GATEWAY_MS);
        Ok(self.heartbeat_pool.one(query).await?.try_get("contract")?)
    }

    pub(super) async fn do_heartbeats(&self, workers: &[(RunId, Digest)]) -> DbResult<Vec<HeartbeatAnswer>> {
        let (runs, capabilities): (Vec<Uuid>, Vec<Vec<u8>>) =
            workers.iter().map(|(run, capability)| (*run, capability.to_vec())).unzip();
        let query = sqlx::query(HEARTBEATS).bind(runs).bind(capabilities).bind(self.gateway);
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
