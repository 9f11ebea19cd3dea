//! `POST turns/{n}/plan` and `POST turns/{n}`: commits.

use std::time::Instant;

use axum::extract::{Request, State};
use axum::response::Response;
use dalsegno_format::size;
use dalsegno_model::{Commit, Committed};
use dalsegno_protocol::{Boundary, ChannelOps, CommitRequest, Limits, Outcome, Payload, RawValue};

use crate::background::snapshot_writer;
use crate::extractors::{Turn, Worker};
use crate::gateway::Gateway;
use crate::limits::request_body::{self, RequestBody};
use crate::limits::response_body::json_length;
use crate::response::{ApiProblem, commit_response};
use crate::validation::{check_commit, new_finish};

pub(crate) async fn plan(
    State(gateway): State<Gateway>,
    worker: Worker,
    Turn(turn): Turn,
    request: Request,
) -> Result<Response, ApiProblem> {
    let body = request_body::read(&gateway, &worker, request).await?;
    commit(&gateway, &worker, CommitTarget { turn, boundary: Boundary::Plan }, body).await
}

pub(crate) async fn result(
    State(gateway): State<Gateway>,
    worker: Worker,
    Turn(turn): Turn,
    request: Request,
) -> Result<Response, ApiProblem> {
    let body = request_body::read(&gateway, &worker, request).await?;
    commit(&gateway, &worker, CommitTarget { turn, boundary: Boundary::Result }, body).await
}

/// Which boundary the path names.
struct CommitTarget {
    turn: i32,
    boundary: Boundary,
}

async fn commit(
    gateway: &Gateway,
    worker: &Worker,
    CommitTarget { turn, boundary }: CommitTarget,
    body: RequestBody,
) -> Result<Response, ApiProblem> {
    let started = Instant::now();
    let request: CommitRequest = body.parse()?;
    let bytes = body.bytes.len();
    // Before the operations are written as text: then no more than two copies of a large body are in memory.
    let (digest, _permit) = body.release();
    check_commit(&request, boundary)?;
    let (finish, park) = match request.outcome {
        None => (None, None),
        Some(Outcome::Finish(finish)) => (Some(new_finish(&finish)?), None),
        Some(Outcome::Park(park)) => (None, Some(park)),
    };
    let Ops { text, full, size } = Ops::new(request.state, request.channels)?;
    let commit = Commit {
        run: worker.run,
        capability: worker.capability,
        turn,
        boundary,
        commit_id: request.commit_id,
        digest,
        ops: text,
        full,
        size,
        base: if full { gateway.delta_bases.base_of(worker.run) } else { None },
        events: request.events,
        calls: request.calls,
        open_calls: request.open_calls,
        records: request.records,
        inbox: request.inbox,
        usage: request.usage,
        trigger: request.trigger,
        finish,
        park,
    };
    let committed = gateway.call_with_retry("committing a boundary", || gateway.store.commit(&commit)).await;
    gateway.metrics.committed(&committed, bytes, started.elapsed());
    let committed = committed?;
    prepare_next(gateway, &commit, &committed);
    commit_response(committed, |head| ApiProblem::conflict(turn, head))
}

/// Prepares for the commits to come: caches the delta base, and requests a snapshot if one is due.
fn prepare_next(gateway: &Gateway, commit: &Commit, committed: &Committed) {
    gateway.delta_bases.committed(commit, committed);
    if matches!(committed, Committed::Ok(_) | Committed::Parked(_)) {
        let is_full = commit.full && commit.base.is_none();
        snapshot_writer::after_commit(gateway, commit.run, commit.turn, is_full);
    }
}

/// Channel operations as the store takes them.
#[derive(Default)]
struct Ops {
    /// JSON, each JSON payload as it was sent; `None`: the state does not change.
    text: Option<Vec<u8>>,
    /// Whether they set the full state.
    full: bool,
    /// Bytes that they count towards the state's limit.
    size: usize,
}

impl Ops {
    fn new(state: Option<Box<RawValue>>, channels: Option<ChannelOps>) -> Result<Self, ApiProblem> {
        let full = state.map(|state| ChannelOps::whole(Payload::Json(state)));
        let Some(ops) = full.or(channels) else { return Ok(Self::default()) };
        // A buffer that grows while it is written would take up to twice as much.
        let mut text = Vec::with_capacity(json_length(&ops, Limits::BODY_BYTES).unwrap_or_default());
        serde_json::to_writer(&mut text, &ops).map_err(|error| ApiProblem::invalid(error.to_string()))?;
        Ok(Self { text: Some(text), full: ops.full, size: size::of_ops(&ops) })
    }
}
