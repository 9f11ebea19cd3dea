//! Workers come and show that they live; so do the gateways.

use sqlx::SqliteConnection;

use super::change::append;
use super::columns::{Hash, Word};
use super::judge::{self, Attaching};
use super::read::record;
use super::row::RunRow;
use crate::audit::{actor, kind};
use crate::fault::Work;
use crate::reads::AttemptRow;
use crate::transitions::tell_cancel;
use crate::{Attached, AttemptState, BEAT_GAP_MS, Beat, Digest, Lifecycle, RunId};

/// A worker's process takes its attempt.
pub(super) async fn attach(
    conn: &mut SqliteConnection,
    now: i64,
    run: RunId,
    pod_uid: String,
    instance: Digest,
) -> Work<Attached> {
    let Some(mut row) = RunRow::load(conn, run).await? else {
        return Ok(Attached::NotFound);
    };
    match judge::attach(&row, &pod_uid, &instance) {
        Attaching::NotRecorded => return Ok(Attached::NotRecorded),
        Attaching::Fenced => return Ok(Attached::Fenced),
        Attaching::Finished => return Ok(Attached::Finished),
        Attaching::VersionPending => return Ok(Attached::VersionPending),
        Attaching::VersionIncompatible => {
            return Ok(Attached::VersionIncompatible(row.remark.unwrap_or_default()));
        }
        Attaching::Spent => {
            spend(conn, now, &mut row).await?;
            return Ok(Attached::Spent);
        }
        Attaching::Accept { again: true } => {
            if tell_cancel(&mut row, now) {
                row.save(conn).await?;
            }
        }
        Attaching::Accept { again: false } => {
            row.attempt_state = Word(AttemptState::Attached);
            row.attached_at = Some(now);
            row.capability = Some(Hash(instance));
            row.changed_at = now;
            let mut attempt = AttemptRow::current(conn, &row).await?;
            attempt.state = row.attempt_state;
            attempt.attached_at = row.attached_at;
            attempt.save(conn).await?;
            let detail = serde_json::json!({ "attempt": row.attempt, "podUID": pod_uid });
            append(conn, &mut row, now, kind::ATTACHED, actor::WORKER, detail).await?;
            tell_cancel(&mut row, now);
            row.save(conn).await?;
        }
    }
    Ok(Attached::Ok(Box::new(record(conn, now, row).await?)))
}

/// Another process came under the attempt's number: recorded once.
async fn spend(conn: &mut SqliteConnection, now: i64, row: &mut RunRow) -> Work<()> {
    if row.spent {
        return Ok(());
    }
    row.spent = true;
    row.changed_at = now;
    let mut attempt = AttemptRow::current(conn, row).await?;
    attempt.spent = true;
    attempt.save(conn).await?;
    let detail = serde_json::json!({ "attempt": row.attempt });
    append(conn, row, now, kind::SPENT, actor::WORKER, detail).await?;
    Ok(row.save(conn).await?)
}

/// Renews leases; binds those that a first heartbeat asks for.
pub(super) async fn heartbeats(
    conn: &mut SqliteConnection,
    now: i64,
    workers: Vec<(RunId, Digest)>,
) -> Work<Vec<Beat>> {
    let mut beats = Vec::with_capacity(workers.len());
    for (run, capability) in workers {
        beats.push(heartbeat(conn, now, run, &capability).await?);
    }
    Ok(beats)
}

async fn heartbeat(conn: &mut SqliteConnection, now: i64, run: RunId, capability: &Digest) -> Work<Beat> {
    let Some(mut row) = RunRow::load(conn, run).await?.filter(|row| judge::holds(row, capability)) else {
        return Ok(Beat::Fenced);
    };
    if row.lifecycle.0 != Lifecycle::Live {
        return Ok(Beat::Finished);
    }
    tell_cancel(&mut row, now);
    sqlx::query(
        "UPDATE runs SET lease_renewed_at = ?, lease_ms = heartbeat_ms, cancel_told_at = ? WHERE id = ?",
    )
    .bind(now)
    .bind(row.cancel_told_at)
    .bind(run)
    .execute(conn)
    .await?;
    Ok(Beat::Ok(row.asked()))
}

/// The process starts: all clocks start anew with it.
pub(super) async fn begin_to_serve(conn: &mut SqliteConnection, now: i64) -> Work<()> {
    sqlx::query("UPDATE store SET gap_from = beat_last, beat_since = ?").bind(now).execute(conn).await?;
    Ok(())
}

/// A gateway serves. After a silence all clocks start anew.
pub(super) async fn beat(conn: &mut SqliteConnection, now: i64) -> Work<()> {
    sqlx::query(
        "UPDATE store SET \
         gap_from = CASE WHEN ?1 - beat_last > ?2 THEN beat_last ELSE gap_from END, \
         beat_since = CASE WHEN ?1 - beat_last > ?2 THEN ?1 ELSE beat_since END, \
         beat_last = max(beat_last, ?1)",
    )
    .bind(now)
    .bind(BEAT_GAP_MS)
    .execute(conn)
    .await?;
    Ok(())
}
