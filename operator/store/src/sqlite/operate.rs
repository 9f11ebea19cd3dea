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

/// `reserved → created`.
pub(super) async fn record_pod(
    conn: &mut SqliteConnection,
    now: i64,
    run: RunId,
    number: i32,
    pod: PodRecord,
) -> Work<Recorded> {
    let mut row = RunRow::expect(conn, run).await?;
    let is_same = row.pod_uid.as_deref() == Some(&pod.uid);
    if row.attempt != number || !(is_same || row.attempt_state.0 == AttemptState::Reserved) {
        return refused(conn, now, row).await;
    }
    if row.attempt_state.0 == AttemptState::Ended {
        return done(conn, now, row).await;
    }
    let mut attempt = AttemptRow::current(conn, &row).await?;
    if !is_same {
        row.attempt_state = Word(AttemptState::Created);
        row.pod_uid = Some(pod.uid.clone());
        attempt.state = row.attempt_state;
        attempt.pod_uid = row.pod_uid.clone();
        attempt.pod_name = Some(pod.name.clone());
        attempt.revision = Some(pod.revision.clone());
        attempt.created_at = Some(now);
        let detail = serde_json::json!({
            "attempt": number, "pod": pod.name, "podUID": pod.uid, "revision": pod.revision,
        });
        append(conn, &mut row, now, kind::POD, actor::OPERATOR, detail).await?;
    }
    if let Some(identity) = &pod.identity {
        identify(conn, now, &mut row, &mut attempt, identity).await?;
    }
    attempt.save(conn).await?;
    row.save(conn).await?;
    done(conn, now, row).await
}

/// Only the first identity counts.
async fn identify(
    conn: &mut SqliteConnection,
    now: i64,
    row: &mut RunRow,
    attempt: &mut AttemptRow,
    identity: &Identity,
) -> Work<()> {
    if row.verdict.is_some() {
        return Ok(());
    }
    row.verdict = Some(Word(identity.verdict));
    row.remark = Some(identity.remark.clone());
    attempt.image_digest = Some(identity.image_digest.clone());
    attempt.agent_version = Some(identity.agent_version.clone());
    attempt.verdict = row.verdict;
    attempt.remark = row.remark.clone();
    let detail = serde_json::json!({
        "attempt": row.attempt,
        "imageDigest": identity.image_digest,
        "agentVersion": identity.agent_version,
        "verdict": identity.verdict,
    });
    append(conn, row, now, kind::IDENTITY, actor::OPERATOR, detail).await
}

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
