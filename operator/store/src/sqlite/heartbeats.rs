//! Statements of heartbeats: those of the workers, and those of the gateways.

use sqlx::SqliteConnection;

use super::row::RunRow;
use crate::db_error::DbResult;
use crate::transitions::{has_capability, report_cancel};
use dalsegno_model::{Digest, HEARTBEAT_GAP_MS, HeartbeatAnswer, Lifecycle, RunId};

/// Renews the leases of workers, and reports cancel requests.
pub(super) async fn heartbeats(
    conn: &mut SqliteConnection,
    now: i64,
    workers: Vec<(RunId, Digest)>,
) -> DbResult<Vec<HeartbeatAnswer>> {
    let mut results = Vec::with_capacity(workers.len());
    for (run, capability) in workers {
        results.push(heartbeat(conn, now, run, &capability).await?);
    }
    Ok(results)
}

async fn heartbeat(
    conn: &mut SqliteConnection,
    now: i64,
    run: RunId,
    capability: &Digest,
) -> DbResult<HeartbeatAnswer> {
    let Some(mut row) = RunRow::load(conn, run).await?.filter(|row| has_capability(row, capability)) else {
        return Ok(HeartbeatAnswer::Fenced);
    };
    if row.lifecycle.0 != Lifecycle::Live {
        return Ok(HeartbeatAnswer::Finished);
    }
    report_cancel(&mut row, now);
    sqlx::query(
        "UPDATE runs SET lease_renewed_at = ?, lease_ms = heartbeat_ms, cancel_told_at = ? WHERE id = ?",
    )
    .bind(now)
    .bind(row.cancel_told_at)
    .bind(run)
    .execute(conn)
    .await?;
    Ok(HeartbeatAnswer::Ok(row.worker_signals()))
}

/// Records that the process starts: all deadlines count from now on.
pub(super) async fn begin_serving(conn: &mut SqliteConnection, now: i64) -> DbResult<()> {
    sqlx::query("UPDATE store SET gap_from = beat_last, beat_since = ?").bind(now).execute(conn).await?;
    Ok(())
}

/// Records that a gateway is serving. If none was serving for [`BEAT_GAP_MS`], all deadlines count from now on.
pub(super) async fn gateway_heartbeat(conn: &mut SqliteConnection, now: i64) -> DbResult<()> {
    sqlx::query(
        "UPDATE store SET \
         gap_from = CASE WHEN ?1 - beat_last > ?2 THEN beat_last ELSE gap_from END, \
         beat_since = CASE WHEN ?1 - beat_last > ?2 THEN ?1 ELSE beat_since END, \
         beat_last = max(beat_last, ?1)",
    )
    .bind(now)
    .bind(HEARTBEAT_GAP_MS)
    .execute(conn)
    .await?;
    Ok(())
}
