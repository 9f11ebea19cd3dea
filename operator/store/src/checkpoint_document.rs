//! A checkpoint as the document that users and workers read.

use dalsegno_protocol::{
    Boundary, CHECKPOINT_VERSION, Channel, Checkpoint, MEMORY_REFERENCES, RawValue, Step, WaitKind,
    WaitRequest,
};

use dalsegno_format::header;
use dalsegno_model::{CallFilter, Error, Result, RunRecord, Store};

/// The checkpoint at the latest boundary of a turn of the live branch, or at the head; `None` if there is none.
///
/// It is made from several reads that are not in one transaction: while the run goes on, the calls may be newer than
/// the boundary.
///
/// # Errors
///
/// The store does not respond, or the stored data is damaged or was dropped.
pub async fn checkpoint(store: &dyn Store, run: &RunRecord, turn: Option<i32>) -> Result<Option<Checkpoint>> {
    let Some(head) = &run.head else { return Ok(None) };
    let turn = turn.unwrap_or(head.turn);
    let Some((row, mut state)) = store.boundary(run.id, turn).await? else { return Ok(None) };
    let attempt = store.attempt(run.id, row.attempt).await?;
    let identity = attempt.and_then(|attempt| attempt.identity).ok_or_else(|| Error::Corrupt {
        operation: "reading a checkpoint",
        detail: format!("attempt {}, which committed it, has no identity", row.attempt),
    })?;
    let content_hash = header::render(&row.content_hash);
    let (mut pending_step, mut pending_calls, mut pending_proposal) = (None, Vec::new(), None);
    if content_hash == head.content_hash {
        if row.boundary == Boundary::Plan {
            pending_step = Some(Step { turn, boundary: Boundary::Result });
        }
        pending_calls = store.calls(run.id, CallFilter::Pending).await?;
        pending_proposal = oldest_proposal(store, run).await?;
    }
    Ok(Some(Checkpoint {
        version: CHECKPOINT_VERSION,
        run: format!("{}/{}", run.namespace, run.name),
        attempt: row.attempt,
        turn,
        boundary: row.boundary,
        position: row.position,
        agent_version: identity.agent_version,
        image_digest: identity.image_digest,
        parent_hash: header::render(&row.parent_hash),
        content_hash,
        trigger: row.trigger,
        pending_proposal,
        pending_step,
        pending_calls,
        memory_references: match state.remove(MEMORY_REFERENCES) {
            None => Vec::new(),
            Some(Channel::Value(value)) => vec![value],
            Some(Channel::List(items)) => items,
        },
        usage: row.usage,
        created_time: row.at.to_string(),
    }))
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
