//! Statements of heartbeats: those of the workers, and those of the gateways.

use sqlx::SqliteConnection;
use uuid::Uuid;

use super::row::RunRow;
use crate::db_error::DbResult;
use crate::reads::{GATEWAYS_KEPT_MS, MAX_OUTAGES, OUTAGES_KEPT_MS};
use crate::transitions::{has_capability, report_signals};
use dalsegno_model::{Digest, HEARTBEAT_GAP_MS, HeartbeatAnswer, Lifecycle, RunId};

/// Renews the leases of workers, and reports cancels and suspends.
pub(super) async fn heartbeats(
    conn: &mut SqliteConnection,
    now: i64,
    gateway: Uuid,
    workers: Vec<(RunId, Digest)>,
) -> DbResult<Vec<HeartbeatAnswer>> {
    let mut results = Vec::with_capacity(workers.len());
    for worker in workers {
        results.push(heartbeat(conn, now, gateway, worker).await?);
    }
    Ok(results)
}

async fn heartbeat(
    conn: &mut SqliteConnection,
    now: i64,
    gateway: Uuid,
    (run, capability): (RunId, Digest),
) -> DbResult<HeartbeatAnswer> {
    let Some(mut row) = RunRow::load(conn, run).await?.filter(|row| has_capability(row, &capability)) else {
        return Ok(HeartbeatAnswer::Fenced);
    };
    if row.lifecycle.0 != Lifecycle::Live {
        return Ok(HeartbeatAnswer::Finished);
    }
    report_signals(&mut row, now);
    sqlx::query(
        "UPDATE runs SET lease_renewed_at = ?, lease_ms = heartbeat_ms, lease_gateway = ?, cancel_told_at = ?, \
         suspend_told_at = ? WHERE id = ?",
    )
    .bind(now)
    .bind(gateway)
    .bind(row.cancel_told_at)
    .bind(row.suspend_told_at)
    .bind(run)
    .execute(conn)
    .await?;
    Ok(HeartbeatAnswer::Ok(row.worker_signals(now)))
}

/// Records a heartbeat of one gateway. `?3`: the longest gap between two heartbeats that is no outage.
const GATEWAY: &str = "INSERT INTO gateways (id, beat_last, beat_since, gap_from) VALUES (?1, ?2, ?2, ?2) \
     ON CONFLICT (id) DO UPDATE SET \
     gap_from = CASE WHEN ?2 - beat_last > ?3 THEN beat_last ELSE gap_from END, \
     beat_since = CASE WHEN ?2 - beat_last > ?3 THEN ?2 ELSE beat_since END, \
     beat_last = max(beat_last, ?2)";

/// Records that the process starts: the time since its last heartbeat is an outage.
pub(super) async fn begin_serving(conn: &mut SqliteConnection, now: i64) -> DbResult<()> {
    sqlx::query("UPDATE store SET gap_from = beat_last, beat_since = ?")
        .bind(now)
        .execute(&mut *conn)
        .await?;
    record_outage(conn).await
}

/// Records that a gateway is serving. If none was serving for [`HEARTBEAT_GAP_MS`], it records the outage.
pub(super) async fn gateway_heartbeat(conn: &mut SqliteConnection, now: i64, gateway: Uuid) -> DbResult<()> {
    sqlx::query(GATEWAY).bind(gateway).bind(now).bind(HEARTBEAT_GAP_MS).execute(&mut *conn).await?;
    sqlx::query("DELETE FROM gateways WHERE beat_last < ? - ?")
        .bind(now)
        .bind(GATEWAYS_KEPT_MS)
        .execute(&mut *conn)
        .await?;
    let is_outage: bool = sqlx::query_scalar("SELECT ? - beat_last > ? FROM store")
        .bind(now)
        .bind(HEARTBEAT_GAP_MS)
        .fetch_one(&mut *conn)
        .await?;
    if is_outage {
        begin_serving(conn, now).await?;
    }
    sqlx::query("UPDATE store SET beat_last = max(beat_last, ?)").bind(now).execute(conn).await?;
    Ok(())
}

/// Stores the outage before the current period of heartbeats, and deletes old outages.
async fn record_outage(conn: &mut SqliteConnection) -> DbResult<()> {
    sqlx::query(
        "INSERT INTO gateway_outages (began_at, ended_at) \
         SELECT gap_from, beat_since FROM store WHERE gap_from < beat_since ON CONFLICT DO NOTHING",
    )
    .execute(&mut *conn)
    .await?;
    sqlx::query(
        "DELETE FROM gateway_outages WHERE ended_at < (SELECT beat_since FROM store) - ?1 \
         OR ended_at <= (SELECT ended_at FROM gateway_outages ORDER BY ended_at DESC LIMIT 1 OFFSET ?2)",
    )
    .bind(OUTAGES_KEPT_MS)
    .bind(MAX_OUTAGES)
    .execute(conn)
    .await?;
    Ok(())
}
