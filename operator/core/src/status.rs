//! What a person reads: the status of an AgentRun, which mirrors the store and decides nothing.

use dalsegno_crds::{
    AgentRun, AgentRunStatus, AttemptEnd, AttemptStatus, CheckpointStatus, RecoveryStatus, ResultStatus,
    UsageStatus, names,
};
use dalsegno_model::{Attempt, Class, FinishRow, RunOutcome, RunRecord};
use dalsegno_protocol::{Limits, nesting::deeper_than};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::situation::Situation;
use crate::{PodSight, conditions};

/// Ended attempts that the status shows.
const HISTORY: usize = 10;

/// The status as it shall be. `row` is the store's, if it is trusted; `pod` the current attempt's, if it is there.
pub(crate) fn of(
    run: &AgentRun,
    row: Option<&RunRecord>,
    pod: Option<&PodSight>,
    situation: &Situation,
    now: Timestamp,
) -> AgentRunStatus {
    let old = run.status.clone().unwrap_or_default();
    if situation.keeps(&old) {
        return old;
    }
    let (summary, reason) = situation.headline(row, &old);
    let agent_ref = run.spec.agent_ref.as_ref().map(|it| it.name.as_str());
    let mut status = AgentRunStatus {
        conditions: conditions::of(run, row, pod, situation, now),
        summary: Some(summary),
        reason: Some(reason),
        agent: Some(agent_ref.unwrap_or(names::INLINE_AGENT).to_owned()),
        observed_generation: run.metadata.generation,
        ..old
    };
    if let Some(row) = row {
        mirror(row, situation, &mut status);
    }
    status
}

/// What the status takes from the store's row.
fn mirror(row: &RunRecord, situation: &Situation, status: &mut AgentRunStatus) {
    status.store_id = Some(row.store_id.to_string());
    status.attempt = Some(attempt(&row.attempt));
    status.recovery = Some(recovery(row, situation));
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
    if status.start_time.is_none() {
        status.start_time = attempts(row).filter_map(|it| it.attached_at).min().map(time);
    }
    if let Some(finish) = &row.finish {
        status.completion_time = Some(time(finish.at));
        // An end never changes, and the API server may spell its output otherwise than the worker did.
        status.result.get_or_insert_with(|| result(finish));
    }
}

fn attempt(attempt: &Attempt) -> AttemptStatus {
    let identity = attempt.identity.as_ref();
    AttemptStatus {
        number: attempt.number,
        pod_name: attempt.pod_name.clone(),
        pod_uid: attempt.pod_uid.clone(),
        node_name: attempt.node.clone(),
        image_digest: identity.map(|it| it.image_digest.clone()),
        agent_version: identity.map(|it| it.agent_version.clone()),
        revision: attempt.revision.clone(),
        resumed_from_turn: Some(attempt.turn_at_start),
        start_time: attempt.created_at.map(time),
    }
}

fn recovery(row: &RunRecord, situation: &Situation) -> RecoveryStatus {
    let counters = &row.counters;
    RecoveryStatus {
        recovery_attempts: counters.recovery_attempts,
        attempts_without_progress: counters.attempts_without_progress,
        disruptions: counters.disruptions,
        disruptions_without_progress: counters.disruptions_without_progress,
        next_attempt_time: match situation {
            Situation::BackingOff(at) => Some(time(*at)),
            _ => None,
        },
        observed_reset_generation: Some(row.observed_reset_generation),
        history: attempts(row).filter_map(ended).take(HISTORY).collect(),
    }
}

/// How an attempt ended, if it did.
fn ended(attempt: &Attempt) -> Option<AttemptEnd> {
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
        // What clients of the AgentRun could not read would keep them from reading any other.
        output: output
            .as_deref()
            .filter(|text| deeper_than(Limits::SHOWN_DEPTH, text.as_bytes()).is_none())
            .and_then(|text| serde_json::from_str(text).ok()),
    }
}

/// The attempts that the row knows, the latest first.
pub(crate) fn attempts(row: &RunRecord) -> impl Iterator<Item = &Attempt> {
    std::iter::once(&row.attempt).chain(&row.past)
}

/// Kubernetes keeps whole seconds; so must what is compared with it.
pub(crate) fn time(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}
