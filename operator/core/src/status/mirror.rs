//! The part of the status that mirrors the store's row.

use dalsegno_crds::{
    AgentRunStatus, AttemptEnd, AttemptStatus, CheckpointStatus, ForkStatus, LimitStatus, RecoveryStatus,
    ResultStatus, RewindStatus, UsageStatus, WaitStatus, WaitingStatus,
};
use dalsegno_model::{
    Attempt, Class, FinishRow, ForkRefusal, ForkRow, LimitUse, OpenWait, RewindRefusal, RunOutcome, RunRecord,
};
use dalsegno_protocol::{Limits, WaitKind, nesting::deeper_than};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::observed::ForkProgress;
use crate::recovery::in_units_of_spec;
use crate::run_stage::RunStage;

/// Number of ended attempts that the status shows.
const HISTORY_LENGTH: usize = 10;

/// Number of waits that the status shows.
const WAITS: usize = 8;

/// Copies the store's row into the status.
pub(super) fn copy_row(row: &RunRecord, stage: &RunStage, status: &mut AgentRunStatus) {
    status.store_id = Some(row.store_id.to_string());
    status.attempt = Some(attempt(row));
    status.recovery = Some(recovery(row, stage));
    status.checkpoint = row.head.as_ref().map(|head| CheckpointStatus {
        turn: head.turn,
        event_position: head.position,
        agent_version: head.identity.as_ref().map(|it| it.agent_version.clone()),
        content_hash: Some(head.content_hash.clone()),
        created_time: Some(time(head.at)),
    });
    status.usage = Some(UsageStatus {
        tokens_in: row.usage.tokens_in,
        tokens_out: row.usage.tokens_out,
        tool_calls: row.usage.tool_calls,
        cost_micro_usd: row.usage.cost_micro_usd,
    });
    status.rewind = rewind(row);
    status.limits = row.recorded_limit_uses().into_iter().map(limit).collect();
    if status.start_time.is_none() {
        status.start_time = attempts(row).filter_map(|it| it.attached_at).min().map(time);
    }
    if let Some(finish) = &row.finish {
        status.completion_time = Some(time(finish.at));
        // An end never changes. The API server may have changed the spelling of the output, so the first one is kept.
        status.result.get_or_insert_with(|| result(finish));
    }
}

/// What became of the last request to rewind. `None`: there was none, not even at creation.
fn rewind(row: &RunRecord) -> Option<RewindStatus> {
    let result = row.rewind.as_ref();
    (row.observed_rewind_generation > 0 || result.is_some()).then(|| RewindStatus {
        observed_generation: row.observed_rewind_generation,
        to_turn: result.map(|it| it.to_turn),
        effects: match result.and_then(|it| it.refused.as_ref()) {
            Some(RewindRefusal::Effects(effects)) => effects.calls.clone(),
            Some(RewindRefusal::TurnNotAvailable(_) | RewindRefusal::HeadChanged { .. }) | None => Vec::new(),
        },
    })
}

/// What the run was forked from, and which calls the fork is held for.
pub(super) fn fork(row: &RunRecord, progress: Option<&ForkProgress>) -> Option<ForkStatus> {
    let ForkRow { state: _, parent, turn, content_hash } = row.fork.clone()?;
    Some(ForkStatus {
        run: parent.map(|run| run.to_string()),
        turn,
        content_hash,
        effects: match progress {
            Some(ForkProgress::Refused(ForkRefusal::Effects(effects))) => effects.calls.clone(),
            Some(ForkProgress::Refused(_) | ForkProgress::Copying) | None => Vec::new(),
        },
    })
}

fn limit(of: LimitUse) -> LimitStatus {
    let LimitUse { limit, used, max } = in_units_of_spec(of);
    LimitStatus { limit, used, max }
}

fn attempt(row: &RunRecord) -> AttemptStatus {
    let attempt = &row.attempt;
    let identity = attempt.identity.as_ref();
    AttemptStatus {
        number: attempt.number,
        pod_name: attempt.pod_name.clone(),
        pod_uid: attempt.pod_uid.clone(),
        node_name: attempt.node.clone(),
        image_digest: identity.map(|it| it.image_digest.clone()),
        agent_version: identity.map(|it| it.agent_version.clone()),
        revision: attempt.revision.clone(),
        resumed_from_turn: (!row.is_external).then_some(attempt.turn_at_start),
        start_time: attempt.created_at.map(time),
    }
}

fn recovery(row: &RunRecord, stage: &RunStage) -> RecoveryStatus {
    let counters = &row.counters;
    RecoveryStatus {
        recovery_attempts: counters.recovery_attempts,
        attempts_without_progress: counters.attempts_without_progress,
        disruptions: counters.disruptions,
        disruptions_without_progress: counters.disruptions_without_progress,
        parks_without_progress: row.parks_without_progress,
        next_attempt_time: match stage {
            RunStage::BackingOff(at) => Some(time(*at)),
            RunStage::Held(hold) => hold.retry_at.map(time),
            _ => None,
        },
        observed_reset_generation: Some(row.observed_reset_generation),
        history: attempts(row).filter_map(attempt_end).take(HISTORY_LENGTH).collect(),
    }
}

/// What the run is parked on.
pub(super) fn waiting(row: &RunRecord) -> Option<WaitingStatus> {
    let park = row.park.as_ref().filter(|_| row.finish.is_none())?;
    let wait = |wait: &OpenWait| WaitStatus {
        id: wait.id.clone(),
        kind: match wait.kind {
            WaitKind::Approval => dalsegno_crds::WaitKind::Approval,
            WaitKind::Until => dalsegno_crds::WaitKind::Until,
            WaitKind::Message => dalsegno_crds::WaitKind::Message,
            WaitKind::RateLimit => dalsegno_crds::WaitKind::RateLimit,
        },
        since: Some(time(wait.opened_at)),
        deadline: wait.deadline_at.map(time),
    };
    Some(WaitingStatus { since: Some(time(park.at)), waits: row.parked_on().map(wait).take(WAITS).collect() })
}

/// The end of an attempt, if it has ended.
fn attempt_end(attempt: &Attempt) -> Option<AttemptEnd> {
    let end = attempt.end.as_ref()?;
    Some(AttemptEnd {
        attempt: attempt.number,
        cause: end.cause,
        class: match end.class {
            Class::Crash | Class::CrashWithoutProgress => dalsegno_crds::Class::Crash,
            Class::Disruption => dalsegno_crds::Class::Disruption,
            Class::Neutral => dalsegno_crds::Class::Neutral,
        },
        charged: end.charged,
        exit_code: end.exit_code,
        message: Some(end.message.clone()).filter(|it| !it.is_empty()),
        turn_at_start: attempt.turn_at_start,
        turn_at_end: attempt.turn_at_end.unwrap_or(attempt.turn_at_start),
        node_name: attempt.node.clone(),
        start_time: attempt.created_at.map(time),
        end_time: attempt.ended_at.map(time),
    })
}

fn result(finish: &FinishRow) -> ResultStatus {
    let FinishRow { outcome, reason, message, output, at: _ } = finish;
    ResultStatus {
        outcome: match outcome {
            RunOutcome::Succeeded => dalsegno_crds::RunOutcome::Succeeded,
            RunOutcome::Failed => dalsegno_crds::RunOutcome::Failed,
            RunOutcome::Cancelled => dalsegno_crds::RunOutcome::Cancelled,
        },
        reason: Some(reason.clone()).filter(|it| !it.is_empty()),
        message: Some(message.clone()).filter(|it| !it.is_empty()),
        // A client that cannot parse one AgentRun's deep output could not list any AgentRun.
        output: output
            .as_deref()
            .filter(|text| deeper_than(Limits::SHOWN_DEPTH, text.as_bytes()).is_none())
            .and_then(|text| serde_json::from_str(text).ok()),
    }
}

/// The attempts in the row, the latest first.
pub(super) fn attempts(row: &RunRecord) -> impl Iterator<Item = &Attempt> {
    std::iter::once(&row.attempt).chain(&row.past)
}

/// Truncates to whole seconds, which is what Kubernetes stores. Otherwise the new status would always differ.
pub(super) fn time(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}
