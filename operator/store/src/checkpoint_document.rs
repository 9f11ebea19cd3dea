//! A checkpoint as the document that users and workers read.

use dalsegno_protocol::{Boundary, CHECKPOINT_VERSION, Channel, Checkpoint, MEMORY_REFERENCES, Step};

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
    let (mut pending_step, mut pending_calls) = (None, Vec::new());
    if content_hash == head.content_hash {
        if row.boundary == Boundary::Plan {
            pending_step = Some(Step { turn, boundary: Boundary::Result });
        }
        pending_calls = store.calls(run.id, CallFilter::Pending).await?;
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
        pending_proposal: None,
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
