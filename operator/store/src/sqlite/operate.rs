//! What the operator records of attempts, and the ends it makes.

use sqlx::SqliteConnection;

use super::change::{append, counters, set_counters};
use super::columns::Word;
use super::read::record;
use super::row::RunRow;
use crate::audit::{actor, kind};
use crate::fault::Work;
use crate::reads::AttemptRow;
use crate::{AskedBy, AttemptState, Deadlines, Identity, Lifecycle, PodRecord, Recorded, RunId, RunRecord};

/// Grants one fresh budget, by compare and set: from what was observed, to what is granted now.
pub(super) async fn reset_budget(
    conn: &mut SqliteConnection,
    now: i64,
    run: RunId,
    (observed, to): (i64, i64),
    asked: AskedBy,
) -> Work<RunRecord> {
    let mut row = RunRow::expect(conn, run).await?;
    if row.lifecycle.0 == Lifecycle::Live && row.observed_reset_generation == observed && to > observed {
        let mut fresh = counters(&row);
        fresh.attempts_without_progress = 0;
        fresh.disruptions_without_progress = 0;
        fresh.recovery_attempts_base = fresh.recovery_attempts;
        fresh.disruptions_base = fresh.disruptions;
        set_counters(&mut row, fresh);
        row.observed_reset_generation = to;
        // What is forgiven has happened: how the current attempt will end counts again.
        let ended = row.attempt_state.0 == AttemptState::Ended;
        row.reset_attempt = if ended { row.attempt } else { row.attempt - 1 };
        let detail = serde_json::json!({ "from": observed, "to": to, "attempt": row.attempt });
        let detail = asked.in_detail(detail);
        append(conn, &mut row, now, kind::RESET, actor::OPERATOR, detail).await?;
        row.save(conn).await?;
    }
    record(conn, now, row).await
}

/// The lengths of the deadlines.
pub(super) async fn set_deadlines(
    conn: &mut SqliteConnection,
    now: i64,
    run: RunId,
    deadlines: Deadlines,
) -> Work<RunRecord> {
    let mut row = RunRow::expect(conn, run).await?;
    if row.lifecycle.0 == Lifecycle::Live {
        row.heartbeat_ms = deadlines.heartbeat_ms;
        row.start_ms = deadlines.start_ms;
        row.progress_ms = deadlines.progress_ms;
        row.save(conn).await?;
    }
    record(conn, now, row).await
}

pub(super) async fn done(conn: &mut SqliteConnection, now: i64, row: RunRow) -> Work<Recorded> {
    Ok(Recorded::Done(Box::new(record(conn, now, row).await?)))
}

pub(super) async fn refused(conn: &mut SqliteConnection, now: i64, row: RunRow) -> Work<Recorded> {
    Ok(Recorded::Refused(Box::new(record(conn, now, row).await?)))
}
