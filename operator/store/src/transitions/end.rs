//! The steps that rules share: an attempt ends, the next one is reserved, the run finishes.

use dalsegno_protocol::Policy;
use serde_json::{Value as Json, json};
use uuid::Uuid;

use super::announce::announce_near_limits;
use super::waits::withdraw_waits;
use super::{Change, OutboxEntry, text};
use crate::db_error::DbResult;
use crate::reads::{AttemptRow, EnumText, Hash, RunRow};
use crate::texts::EndMessage;
use dalsegno_model::audit::{actor, kind};
use dalsegno_model::{
    AttemptState, Cause, Class, Counters, Digest, Ending, Lifecycle, NewFinish, RunOutcome,
};

/// An end that is neither a crash nor a disruption.
pub(super) fn neutral_ending(attempt: i32, cause: Cause) -> Ending {
    Ending { attempt, cause, class: Class::Neutral, exit_code: None, message: String::new(), ran: None }
}

/// Ends the current attempt, unless it has ended: counts the end, counts the calls that were started and not
/// completed as unsettled, and fences the run. Returns the class that the end was counted as; `None`: the attempt had
/// ended before.
fn end(change: &mut Change, ending: &Ending, message: &str) -> DbResult<Option<Class>> {
    let run = change.row();
    if run.attempt_state.0 == AttemptState::Ended {
        return Ok(None);
    }
    let ran = ran_ms(run, ending);
    let progress = has_progress(run, ran, change.now());
    let class = resolve(ending.class, progress);
    let active = ran.map_or_else(|| run.active_ms_at(change.now()), |ms| run.active_ms.saturating_add(ms));
    let (now, turn, lease) = (change.now(), run.head_turn.unwrap_or_default(), run.lease_renewed_at);

    let attempt = change.attempt()?;
    attempt.state = EnumText(AttemptState::Ended);
    attempt.ended_at = Some(now);
    attempt.lease_renewed_at = lease;
    attempt.turn_at_end = Some(turn);
    attempt.cause = Some(ending.cause.to_string());
    attempt.class = Some(EnumText(class));
    attempt.charged = Some(class == Class::Crash);
    attempt.progress = Some(progress);
    attempt.exit_code = ending.exit_code;
    attempt.message = Some(text(message));

    // The attempt is over, so every started call is unsettled.
    for policy in [Policy::RetrySameKey, Policy::Probe, Policy::Ask, Policy::ReadOnly] {
        *change.run().unsettled(policy) = change.started(policy);
    }
    let run = change.run();
    run.own_open_calls = 0;
    run.active_ms = active;
    run.attempt_state = EnumText(AttemptState::Ended);
    run.set_counters(count(run.counters(), class, progress));
    if progress {
        run.parks_without_progress = 0;
    }
    announce_near_limits(change);
    fence(change);
    Ok(Some(class))
}

/// Ends the current attempt, whose end has no message, and appends the end to the audit, unless the attempt has ended.
pub(super) fn end_with_audit(change: &mut Change, ending: &Ending) -> DbResult<()> {
    end_with_message(change, ending, &EndMessage::of("", ending.attempt, None))
}

/// As [`end_with_audit`], with this message in place of the ending's.
pub(super) fn end_with_message(change: &mut Change, ending: &Ending, message: &EndMessage) -> DbResult<()> {
    let Some(class) = end(change, ending, &message.stored)? else { return Ok(()) };
    let RunRow { attempt, epoch, .. } = *change.row();
    let detail = json!({
        "attempt": attempt, "cause": ending.cause, "class": class, "epoch": epoch,
        "exitCode": ending.exit_code,
    });
    change.audit(kind::ENDED, actor::OPERATOR, message.audited(detail));
    Ok(())
}

/// Ends the current attempt for a reason outside of it. Fences the run even if the attempt had ended before.
pub(super) fn fence_and_end(change: &mut Change, cause: Cause) -> DbResult<()> {
    let ending = neutral_ending(change.row().attempt, cause);
    if end(change, &ending, "")?.is_none() {
        fence(change);
    }
    Ok(())
}

/// Starts a new epoch that nobody may write under yet.
pub(super) fn fence(change: &mut Change) {
    let run = change.run();
    run.epoch += 1;
    run.capability = None;
}

/// Reserves the next attempt, under the current epoch.
pub(super) fn reserve_next(change: &mut Change) {
    let run = change.run();
    run.attempt += 1;
    run.attempt_state = EnumText(AttemptState::Reserved);
    run.pod_uid = None;
    run.attempt_turn = run.highest_turn;
    run.attempt_completed = run.completed_calls;
    run.verdict = None;
    run.remark = None;
    run.scheduled_at = None;
    run.attached_at = None;
    run.lease_renewed_at = None;
    run.spent = false;
    let RunRow { attempt, epoch, .. } = *run;
    let reserved = reserved_attempt(change.row(), change.now());
    change.reserve(reserved);
    change.audit(kind::RESERVED, actor::OPERATOR, json!({ "attempt": attempt, "epoch": epoch }));
}

/// The row of the run's current attempt, which was just reserved.
fn reserved_attempt(run: &RunRow, now: i64) -> AttemptRow {
    AttemptRow {
        run: run.id,
        number: run.attempt,
        epoch: run.epoch,
        turn_at_start: run.head_turn.unwrap_or_default(),
        reserved_at: now,
        state: EnumText(AttemptState::Reserved),
        pod_uid: None,
        pod_name: None,
        node: None,
        revision: None,
        candidates: Vec::new(),
        pod_nonce: Some(String::new()),
        image_digest: None,
        image_in_registry: None,
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

/// A row for an attempt of another run, which has ended.
pub(super) fn past_attempt(run: &RunRow, number: i32) -> AttemptRow {
    let now = run.created_at;
    AttemptRow {
        number,
        epoch: 0,
        state: EnumText(AttemptState::Ended),
        ended_at: Some(now),
        ..reserved_attempt(run, now)
    }
}

/// Finishes the run, withdraws its open waits, and appends that to the audit.
pub(super) fn finish_with_audit(
    change: &mut Change,
    finish: &NewFinish,
    by: Option<(Uuid, Digest)>,
    actor: &str,
) {
    let now = change.now();
    set_finished(change.run(), now, finish, by);
    let detail = finish_detail(change.row(), finish);
    change.audit(kind::FINISHED, actor, detail);
    withdraw_waits(change);
    if finish.outcome == RunOutcome::Failed {
        let entry = OutboxEntry::failed(change.row(), now);
        change.notify_people(entry);
    }
}

/// Finishes the run. Its epoch and capability stay, so that a retry of its worker is recognized. `by`: commit id and
/// digest of the worker's call; `None` if the operator finishes the run.
pub(crate) fn set_finished(run: &mut RunRow, now: i64, finish: &NewFinish, by: Option<(Uuid, Digest)>) {
    let NewFinish { outcome, reason, message, output } = finish;
    run.lifecycle = EnumText(Lifecycle::Finished);
    run.finish_outcome = Some(EnumText(*outcome));
    run.finish_reason = Some(text(reason));
    run.finish_message = Some(text(message));
    run.finish_output = output.as_deref().map(text);
    run.finish_commit_id = by.map(|(commit_id, _)| commit_id);
    run.finish_digest = by.map(|(_, digest)| Hash(digest));
    run.finish_at = Some(now);
}

/// The detail of the audit row for the run's finish.
pub(crate) fn finish_detail(run: &RunRow, finish: &NewFinish) -> Json {
    json!({ "attempt": run.attempt, "outcome": finish.outcome, "reason": text(&finish.reason) })
}

/// How long a worker without checkpoints in the store must have run to count as progress, as the kubelet forgets the crashes
/// of a container that has run for 10 minutes.
const PROGRESS_BY_TIME_MS: i64 = 600_000;

/// How long the worker of the current attempt ran, as its pod says, if the agent keeps its own checkpoints. Nobody may have
/// looked when it started or ended, so the times of the store say less.
fn ran_ms(run: &RunRow, ending: &Ending) -> Option<i64> {
    let is_told = run.external && run.attempt_state.0 == AttemptState::Attached;
    i64::try_from(ending.ran.filter(|_| is_told)?.as_millis()).ok()
}

/// Whether the current attempt made progress: it reached a new highest turn, or completed a call. An agent with
/// checkpoints of its own shows neither, so the time that its worker ran counts.
fn has_progress(run: &RunRow, ran: Option<i64>, now: i64) -> bool {
    let recorded = || run.attached_at.map(|at| now - at);
    let ran_long = || ran.or_else(recorded).is_some_and(|ms| ms >= PROGRESS_BY_TIME_MS);
    run.highest_turn > run.attempt_turn
        || run.completed_calls > run.attempt_completed
        || (run.external && ran_long())
}

/// The class that an end is counted as, once its progress is known.
fn resolve(class: Class, progress: bool) -> Class {
    match (class, progress) {
        (Class::CrashWithoutProgress, true) => Class::Disruption,
        (Class::CrashWithoutProgress, false) => Class::Crash,
        (Class::Crash | Class::Disruption | Class::Neutral, _) => class,
    }
}

/// The counters after an end, as the table of [`Class`] states.
fn count(counters: Counters, class: Class, progress: bool) -> Counters {
    let mut after = counters;
    match resolve(class, progress) {
        Class::Crash => {
            after.recovery_attempts += 1;
            after.attempts_without_progress += 1;
        }
        Class::Disruption => {
            after.disruptions += 1;
            after.disruptions_without_progress += 1;
        }
        Class::Neutral | Class::CrashWithoutProgress => {}
    }
    if progress {
        after.attempts_without_progress = 0;
        after.disruptions_without_progress = 0;
    }
    after
}
