//! `POST turns/{n}/plan` and `POST turns/{n}`: commits.

use std::time::Instant;

use axum::extract::{Request, State};
use axum::response::Response;
use dalsegno_protocol::{Boundary, ChannelOps, CommitRequest, Outcome, Payload, RawValue};
use dalsegno_store::{Commit, Committed, size};

use crate::background::snapshot_writer;
use crate::extractors::{Turn, Worker};
use crate::gateway::Gateway;
use crate::handlers::commit_response;
use crate::limits::request_body;
use crate::response::Refusal;
use crate::validation;

pub(crate) async fn plan(
    State(gateway): State<Gateway>,
    worker: Worker,
    turn: Turn,
    request: Request,
) -> Result<Response, Refusal> {
    commit(&gateway, &worker, turn, Boundary::Plan, request).await
}

pub(crate) async fn result(
    State(gateway): State<Gateway>,
    worker: Worker,
    turn: Turn,
    request: Request,
) -> Result<Response, Refusal> {
    commit(&gateway, &worker, turn, Boundary::Result, request).await
}

async fn commit(
    gateway: &Gateway,
    worker: &Worker,
    Turn(turn): Turn,
    boundary: Boundary,
    request: Request,
) -> Result<Response, Refusal> {
    let received = request_body::receive(gateway, worker, request).await?;
    let started = Instant::now();
    let request: CommitRequest = received.parse()?;
    validation::commit(&request, boundary)?;
    let finish =
        request.outcome.as_ref().map(|Outcome::Finish(finish)| validation::new_finish(finish)).transpose()?;
    let (ops, full, size) = ops(request.state, request.channels)?;
    let bytes = received.bytes.len();
    let (digest, _budget) = received.release();
    let commit = Commit {
        run: worker.run,
        capability: worker.capability,
        turn,
        boundary,
        commit_id: request.commit_id,
        digest,
        ops,
        full,
        size,
        base: if full { gateway.bases.of(worker.run) } else { None },
        events: request.events,
        calls: request.calls,
        records: request.records,
        usage: request.usage,
        trigger: request.trigger,
        finish,
    };
    let committed = gateway.ask("committing a boundary", || gateway.store.commit(&commit)).await;
    gateway.metrics.committed(&committed, bytes, started.elapsed());
    let committed = committed?;
    follow(gateway, &commit, &committed);
    commit_response::answer(committed, |head| Refusal::conflict(turn, head))
}

/// What the gateway makes of a commit for the ones to come.
fn follow(gateway: &Gateway, commit: &Commit, committed: &Committed) {
    gateway.bases.committed(commit, committed);
    if matches!(committed, Committed::Ok(_)) {
        snapshot_writer::committed(gateway, commit.run, commit.turn, commit.full && commit.base.is_none());
    }
}

/// The channel operations as the text to keep, each JSON payload as it came; whether they are the full state; what they count.
fn ops(
    state: Option<Box<RawValue>>,
    channels: Option<ChannelOps>,
) -> Result<(Option<Vec<u8>>, bool, usize), Refusal> {
    let whole = state.map(|state| ChannelOps::whole(Payload::Json(state)));
    let Some(ops) = whole.or(channels) else { return Ok((None, false, 0)) };
    let text = serde_json::to_vec(&ops).map_err(|error| Refusal::invalid(error.to_string()))?;
    Ok((Some(text), ops.full, size::of_ops(&ops)))
}
