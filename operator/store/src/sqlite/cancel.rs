//! A cancel: asked for, told, acknowledged.

use sqlx::SqliteConnection;

use super::change::{append, close, cut_off};
use super::columns::Hash;
use super::judge;
use super::read::record;
use super::row::RunRow;
use crate::audit::{actor, kind};
use crate::fault::Work;
use crate::{Acknowledged, AskedBy, Digest, Lifecycle, NewFinish, RunId, RunOutcome, RunRecord};

/// The worker's next answer tells it of a cancel, if there is one. Whether this is the first such answer, so that the
/// row must be saved.
pub(super) fn tell(row: &mut RunRow, now: i64) -> bool {
    let first = row.cancel_requested_at.is_some() && row.cancel_told_at.is_none();
    if first {
        row.cancel_told_at = Some(now);
    }
    first
}

/// The worker stops.
pub(super) async fn acknowledge(
    conn: &mut SqliteConnection,
    now: i64,
    run: RunId,
    capability: Digest,
) -> Work<Acknowledged> {
    let Some(mut row) = RunRow::load(conn, run).await? else {
        return Ok(Acknowledged::Fenced);
    };
    if !judge::holds(&row, &capability) {
        // Only an acknowledgement sets the last capability: this is its retry.
        let again = row.last_capability == Some(Hash(capability));
        return Ok(if again { Acknowledged::Cancelled } else { Acknowledged::Fenced });
    }
    if row.lifecycle.0 != Lifecycle::Live {
        return Ok(Acknowledged::Finished);
    }
    if row.cancel_requested_at.is_none() {
        return Ok(Acknowledged::NotRequested);
    }
    row.last_capability = row.capability;
    cut_off(conn, &mut row, now, "Cancelled").await?;
    let finish = NewFinish {
        outcome: RunOutcome::Cancelled,
        reason: "Cancelled".into(),
        message: String::new(),
        output: None,
    };
    close(&mut row, now, &finish, None);
    row.changed_at = now;
    let detail = serde_json::json!({ "attempt": row.attempt, "epoch": row.epoch });
    append(conn, &mut row, now, kind::CANCELLED, actor::WORKER, detail).await?;
    row.save(conn).await?;
    Ok(Acknowledged::Cancelled)
}
