//! A checkpoint as the document that users and workers read.

use dalsegno_format::{header, memory, size};
use dalsegno_model::{
    BoundaryFacts, BoundaryQuery, CallFilter, Error, LedBy, Lifecycle, PastCall, Result, RunOutcome,
    RunRecord, Store,
};
use dalsegno_protocol::{
    Boundary, CHECKPOINT_VERSION, Channel, Checkpoint, CheckpointCall, CheckpointStatus, Elapsed, Limits,
    MEMORY_REFERENCES, RawValue, State, Step, TriggeredBy, WaitKind, WaitRequest,
};
use jiff::Timestamp;

/// The checkpoint at a boundary; `which` is `None`: at the head. The result is `None` if there is no such boundary.
///
/// It is made from several reads that are not in one transaction: while the run goes on, the calls may be newer than
/// the boundary.
///
/// # Errors
///
/// The store does not respond, or the stored data is damaged or was dropped.
pub async fn checkpoint(
    store: &dyn Store,
    run: &RunRecord,
    which: Option<BoundaryQuery>,
) -> Result<Option<Checkpoint>> {
    let Some(head) = &run.head else { return Ok(None) };
    let which = which.unwrap_or(BoundaryQuery::Turn(head.turn));
    let Some((row, mut state)) = store.boundary(run.id, which).await? else { return Ok(None) };
    let id = row.id();
    let attempt = store.attempt(run.id, row.attempt).await?;
    let identity = attempt.and_then(|attempt| attempt.identity).ok_or_else(|| Error::Corrupt {
        operation: "reading a checkpoint",
        detail: format!("attempt {}, which committed it, has no identity", row.attempt),
    })?;
    // A purge may delete it meanwhile.
    let Some(facts) = store.boundary_facts(run.id, id).await? else { return Ok(None) };
    let content_hash = header::render(&row.content_hash);
    let is_head = content_hash == head.content_hash;
    let (mut pending_step, mut pending_calls, mut pending_proposal) = (None, Vec::new(), None);
    if is_head {
        if row.boundary == Boundary::Plan {
            pending_step = Some(Step { turn: row.turn, boundary: Boundary::Result });
        }
        pending_calls = store.calls(run.id, CallFilter::Pending).await?;
        pending_proposal = oldest_proposal(store, run).await?;
    }
    let memory_delta = memory::delta(&State::new(), &state);
    // A large state is not copied.
    let working_memory = (size::of_state(&state) <= Limits::INLINE_STATE_BYTES).then(|| state.clone());
    let BoundaryFacts { undone, events, turn_began_at, usage, recovery_attempts, disruptions, .. } = facts;
    let BoundaryFacts { call_count, calls, led_by: LedBy { calls: ended, waits, messages }, .. } = facts;
    Ok(Some(Checkpoint {
        version: CHECKPOINT_VERSION,
        id: id.checkpoint_id(),
        run_id: run.id,
        run: format!("{}/{}", run.namespace, run.name),
        status: Some(match (undone, is_head) {
            (true, _) => CheckpointStatus::Undone,
            (false, false) => CheckpointStatus::Superseded,
            (false, true) => status_of(run),
        }),
        attempt: row.attempt,
        recovery_attempts,
        disruptions,
        turn: row.turn,
        boundary: row.boundary,
        position: row.position,
        agent_version: identity.agent_version,
        image_digest: identity.image_digest,
        parent_hash: header::render(&row.parent_hash),
        content_hash,
        trigger: row.trigger,
        triggered_by: TriggeredBy {
            event: (events > 0).then(|| row.position - events + 1),
            calls: ended,
            waits,
            messages,
        },
        pending_proposal,
        pending_step,
        pending_calls,
        call_count,
        calls: calls.into_iter().map(past_call).collect(),
        working_memory,
        memory_delta,
        memory_references: match state.remove(MEMORY_REFERENCES) {
            None => Vec::new(),
            Some(Channel::Value(value)) => vec![value],
            Some(Channel::List(items)) => items,
        },
        usage: row.usage,
        total_usage: usage,
        elapsed: Elapsed {
            run_ms: milliseconds(run.created_at, row.at),
            turn_ms: milliseconds(turn_began_at.unwrap_or(run.created_at), row.at),
        },
        created_time: row.at.to_string(),
    }))
}

/// What became of a run, as far as the store knows.
fn status_of(run: &RunRecord) -> CheckpointStatus {
    match run.lifecycle {
        Lifecycle::Live if run.suspend.is_some() => CheckpointStatus::Suspended,
        Lifecycle::Live if run.park.is_some() => CheckpointStatus::Waiting,
        Lifecycle::Live => CheckpointStatus::Live,
        Lifecycle::Finished => match run.finish.as_ref().map(|finish| finish.outcome) {
            Some(RunOutcome::Succeeded) => CheckpointStatus::Succeeded,
            Some(RunOutcome::Failed) => CheckpointStatus::Failed,
            Some(RunOutcome::Cancelled) => CheckpointStatus::Cancelled,
            None => CheckpointStatus::Abandoned,
        },
        Lifecycle::Deleted | Lifecycle::Abandoned => CheckpointStatus::Abandoned,
    }
}

fn past_call(PastCall { call, attempt, omitted, damaged }: PastCall) -> CheckpointCall {
    CheckpointCall { call, attempt, omitted, damaged }
}

fn milliseconds(from: Timestamp, to: Timestamp) -> i64 {
    (to.as_millisecond() - from.as_millisecond()).max(0)
}

/// What the run asked for first of what waits for a person's approval.
async fn oldest_proposal(store: &dyn Store, run: &RunRecord) -> Result<Option<Box<RawValue>>> {
    let Some(wait) = run.waits.iter().find(|wait| wait.kind == WaitKind::Approval) else { return Ok(None) };
    let found = store.proposal(run.id, &wait.id, wait.epoch).await?;
    let request = found.and_then(|it| it.request);
    // The gateway has checked the request. One that cannot be parsed hides no checkpoint.
    let request = request.and_then(|it| serde_json::from_str::<WaitRequest>(it.get()).ok());
    Ok(request.and_then(|it| it.proposal))
}
