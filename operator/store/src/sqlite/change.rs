//! The steps that transitions are made of: ending an attempt, reserving one, closing a run, the audit.

use dalsegno_protocol::Policy;
use sqlx::SqliteConnection;
use uuid::Uuid;

use super::columns::{Hash, Word};
use super::judge;
use super::row::RunRow;
use crate::audit::{Link, actor, kind};
use crate::fault::Work;
use crate::reads::AttemptRow;
use crate::{AttemptState, Class, Counters, Digest, Ending, Lifecycle, NewFinish};

/// Appends to the run's audit chain; the caller saves the row.
pub(super) async fn append(
    conn: &mut SqliteConnection,
    row: &mut RunRow,
    now: i64,
    kind: &str,
    actor: &str,
    detail: serde_json::Value,
) -> Work<()> {
    let detail = detail.to_string();
    let seq = row.audit_seq + 1;
    let parent = row.audit_hash;
    let link = Link { parent_hash: &parent.0, run: row.id, seq, at: now, kind, actor, detail: &detail };
    let hash = Hash(link.hash());
    sqlx::query(
        "INSERT INTO audit (run, seq, at, kind, actor, detail, parent_hash, hash) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(row.id)
    .bind(seq)
    .bind(now)
    .bind(kind)
    .bind(actor)
    .bind(detail)
    .bind(parent)
    .bind(hash)
    .execute(conn)
    .await?;
    row.audit_seq = seq;
    row.audit_hash = hash;
    Ok(())
}

/// How an attempt ends that nobody's death ended.
pub(super) fn neutral(attempt: i32, cause: &str) -> Ending {
    Ending { attempt, cause: cause.into(), class: Class::Neutral, exit_code: None, message: String::new() }
}

/// Ends the current attempt, unless it is ended already: counts it, takes its right to write and moves the epoch.
/// What it had started and not completed is unsettled from now on. What it was counted as; `None`: it was ended.
pub(super) async fn end(
    conn: &mut SqliteConnection,
    row: &mut RunRow,
    now: i64,
    ending: &Ending,
) -> Work<Option<Class>> {
    if row.attempt_state.0 == AttemptState::Ended {
        return Ok(None);
    }
    let Ending { attempt: _, cause, class, exit_code, message } = ending;
    let progress = judge::progress(row);
    let class = judge::resolve(*class, progress);
    set_counters(row, judge::count(counters(row), class, progress));

    let mut attempt = AttemptRow::current(conn, row).await?;
    attempt.state = Word(AttemptState::Ended);
    attempt.lease_renewed_at = row.lease_renewed_at;
    attempt.turn_at_end = Some(row.head_turn.unwrap_or_default());
    attempt.ended_at = Some(now);
    attempt.cause = Some(cause.clone());
    attempt.class = Some(Word(class));
    attempt.charged = Some(class == Class::Crash);
    attempt.progress = Some(progress);
    attempt.exit_code = *exit_code;
    attempt.message = Some(message.clone());
    attempt.save(conn).await?;

    count_unsettled(conn, row).await?;
    row.attempt_state = Word(AttemptState::Ended);
    fence(row);
    Ok(Some(class))
}

/// Ends the current attempt and notes it in the audit, unless it is ended already.
pub(super) async fn end_noted(
    conn: &mut SqliteConnection,
    row: &mut RunRow,
    now: i64,
    ending: &Ending,
) -> Work<()> {
    let Some(class) = end(conn, row, now, ending).await? else {
        return Ok(());
    };
    let detail = serde_json::json!({
        "attempt": row.attempt,
        "cause": ending.cause,
        "class": class,
        "epoch": row.epoch,
        "exitCode": ending.exit_code,
        "message": ending.message,
    });
    append(conn, row, now, kind::ENDED, actor::OPERATOR, detail).await
}

/// Ends the current attempt for a reason that has nothing to do with it, and fences the run in any case.
pub(super) async fn cut_off(
    conn: &mut SqliteConnection,
    row: &mut RunRow,
    now: i64,
    cause: &str,
) -> Work<()> {
    if end(conn, row, now, &neutral(row.attempt, cause)).await?.is_none() {
        fence(row);
    }
    Ok(())
}

/// Takes the right to write from whoever has it.
pub(super) fn fence(row: &mut RunRow) {
    row.epoch += 1;
    row.capability = None;
}

/// Reserves the attempt after the current one, under the epoch that the current one's end has left.
pub(super) async fn reserve_next(conn: &mut SqliteConnection, row: &mut RunRow, now: i64) -> Work<()> {
    row.attempt += 1;
    row.attempt_state = Word(AttemptState::Reserved);
    row.pod_uid = None;
    row.attempt_turn = row.highest_turn;
    row.attempt_completed = row.completed_calls;
    row.verdict = None;
    row.remark = None;
    row.scheduled_at = None;
    row.attached_at = None;
    row.lease_renewed_at = None;
    row.spent = false;
    reserved(row.id, row.attempt, row.epoch, row.head_turn.unwrap_or_default(), now).insert(conn).await?;
    let detail = serde_json::json!({ "attempt": row.attempt, "epoch": row.epoch });
    append(conn, row, now, kind::RESERVED, actor::OPERATOR, detail).await
}

/// An attempt that nothing has happened to.
pub(super) fn reserved(run: Uuid, number: i32, epoch: i64, turn_at_start: i32, now: i64) -> AttemptRow {
    AttemptRow {
        run,
        number,
        epoch,
        turn_at_start,
        reserved_at: now,
        state: Word(AttemptState::Reserved),
        pod_uid: None,
        pod_name: None,
        node: None,
        revision: None,
        candidates: Vec::new(),
        image_digest: None,
        agent_version: None,
        verdict: None,
        remark: None,
        spent: false,
        turn_at_end: None,
        created_at: None,
        scheduled_at: None,
        attached_at: None,
        lease_renewed_at: None,
        ended_at: None,
        cause: None,
        class: None,
        charged: None,
        progress: None,
        exit_code: None,
        message: None,
    }
}

/// Closes the run; the epoch stays. `by`: commit id and digest of the worker's word for it.
pub(super) fn close(row: &mut RunRow, now: i64, finish: &NewFinish, by: Option<(Uuid, Digest)>) {
    let NewFinish { outcome, reason, message, output } = finish;
    row.lifecycle = Word(Lifecycle::Finished);
    row.finish_outcome = Some(Word(*outcome));
    row.finish_reason = Some(reason.clone());
    row.finish_message = Some(message.clone());
    row.finish_output = output.clone();
    row.finish_commit_id = by.map(|(commit_id, _)| commit_id);
    row.finish_digest = by.map(|(_, digest)| Hash(digest));
    row.finish_at = Some(now);
}

/// Notes the run's end in the audit.
pub(super) async fn append_finish(
    conn: &mut SqliteConnection,
    row: &mut RunRow,
    now: i64,
    actor: &str,
    finish: &NewFinish,
) -> Work<()> {
    let detail =
        serde_json::json!({ "attempt": row.attempt, "outcome": finish.outcome, "reason": finish.reason });
    append(conn, row, now, kind::FINISHED, actor, detail).await
}

/// The run's counters.
pub(super) fn counters(row: &RunRow) -> Counters {
    Counters {
        recovery_attempts: row.recovery_attempts,
        recovery_attempts_base: row.recovery_attempts_base,
        attempts_without_progress: row.attempts_without_progress,
        disruptions: row.disruptions,
        disruptions_base: row.disruptions_base,
        disruptions_without_progress: row.disruptions_without_progress,
    }
}

pub(super) fn set_counters(row: &mut RunRow, counters: Counters) {
    let Counters {
        recovery_attempts,
        recovery_attempts_base,
        attempts_without_progress,
        disruptions,
        disruptions_base,
        disruptions_without_progress,
    } = counters;
    row.recovery_attempts = recovery_attempts;
    row.recovery_attempts_base = recovery_attempts_base;
    row.attempts_without_progress = attempts_without_progress;
    row.disruptions = disruptions;
    row.disruptions_base = disruptions_base;
    row.disruptions_without_progress = disruptions_without_progress;
}

/// At an attempt's end every call that is started is one of an attempt that is over.
async fn count_unsettled(conn: &mut SqliteConnection, row: &mut RunRow) -> Work<()> {
    let started: Vec<(Word<Policy>, i64)> = sqlx::query_as(
        "SELECT policy, count(*) FROM calls WHERE run = ? AND state = 'started' GROUP BY policy",
    )
    .bind(row.id)
    .fetch_all(conn)
    .await?;
    for policy in [Policy::RetrySameKey, Policy::Probe, Policy::Ask, Policy::ReadOnly] {
        *row.unsettled(policy) =
            started.iter().find(|(found, _)| found.0 == policy).map_or(0, |(_, count)| *count);
    }
    Ok(())
}
