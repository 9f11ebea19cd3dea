//! `GET state`, `GET memory-delta` and `GET checkpoint`, for workers and users.

use axum::extract::{RawQuery, State};
use axum::response::Response;
use dalsegno_format::memory;
use dalsegno_model::{BoundaryId, BoundaryQuery};
use dalsegno_protocol::{Code, State as Channels, StateResponse};

use crate::extractors::{Reader, parse_turn};
use crate::gateway::Gateway;
use crate::limits::response_body::json_response;
use crate::limits::state_reads::TWO_STATES;
use crate::query::Query;
use crate::response::ApiProblem;

pub(crate) async fn state(
    State(gateway): State<Gateway>,
    reader: Reader,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiProblem> {
    let turn = turn_parameter(query.as_deref())?;
    gateway.authorize_reader(&reader).await?;
    // A worker reads its head here when the state was too large for attach's answer.
    let is_resume = turn.is_none() && reader.capability.is_some();
    let limiter = if is_resume { &gateway.resume_reads } else { &gateway.inspection_reads };
    let bytes = gateway.state_bytes(reader.run, turn).await?;
    let _read = limiter.acquire(&reader.owner, bytes).await?;
    let state = gateway.state(reader.run, turn).await?;
    json_response(&gateway, &reader.owner, &StateResponse { state })
}

/// Compares the states after two turns. Turn 0 is the start, before any state.
pub(crate) async fn memory_delta(
    State(gateway): State<Gateway>,
    reader: Reader,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiProblem> {
    let mut query = Query::parse(query.as_deref(), &["from", "to"])?;
    let from = query.take("from").filter(|from| from != "0");
    let from = from.map(|turn| parse_turn(&turn)).transpose()?;
    let to = query.take("to").map(|turn| parse_turn(&turn)).transpose()?;
    gateway.authorize_reader(&reader).await?;
    let _read = gateway.inspection_reads.acquire(&reader.owner, TWO_STATES).await?;
    loop {
        let epoch = gateway.run_record(reader.run).await?.epoch;
        let before = match from {
            None => Channels::new(),
            from => gateway.state(reader.run, from).await?,
        };
        let after = gateway.state(reader.run, to).await?;
        // A rewind moves the epoch. If one happened meanwhile, the two states may be of different branches: read again.
        if gateway.run_record(reader.run).await?.epoch == epoch {
            return json_response(&gateway, &reader.owner, &memory::delta(&before, &after));
        }
    }
}

/// Everything about one boundary except the state itself.
pub(crate) async fn checkpoint(
    State(gateway): State<Gateway>,
    reader: Reader,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiProblem> {
    let which = boundary_parameter(query.as_deref())?;
    gateway.authorize_reader(&reader).await?;
    let turn = which.map(|which| match which {
        BoundaryQuery::Turn(turn) | BoundaryQuery::Id(BoundaryId { turn, .. }) => turn,
    });
    let bytes = gateway.state_and_calls_bytes(reader.run, turn).await?;
    let _read = gateway.inspection_reads.acquire(&reader.owner, bytes).await?;
    // Read after the wait. With an older record whose head has moved, the document would show nothing as pending.
    let run = gateway.run_record(reader.run).await?;
    let read = || dalsegno_store::checkpoint(&*gateway.store, &run, which);
    let document = gateway.call_with_retry("reading a checkpoint", read).await?;
    let document = document.ok_or_else(|| match which {
        Some(BoundaryQuery::Id(_)) => {
            ApiProblem::new(Code::NotFound, "the run has no checkpoint with this id")
        }
        Some(BoundaryQuery::Turn(_)) | None => ApiProblem::no_such_turn(turn),
    });
    json_response(&gateway, &reader.owner, &document?)
}

/// The parameter `turn` or `id`; `None`: the head.
fn boundary_parameter(query: Option<&str>) -> Result<Option<BoundaryQuery>, ApiProblem> {
    let mut query = Query::parse(query, &["turn", "id"])?;
    match (query.take("turn"), query.take("id")) {
        (None, None) => Ok(None),
        (Some(turn), None) => Ok(Some(BoundaryQuery::Turn(parse_turn(&turn)?))),
        (None, Some(id)) => match BoundaryId::parse(&id) {
            Some(id) => Ok(Some(BoundaryQuery::Id(id))),
            None => Err(ApiProblem::invalid("`id` is not the id of a checkpoint, such as 7.2.3")),
        },
        (Some(_), Some(_)) => Err(ApiProblem::invalid("this call takes either `turn` or `id`")),
    }
}

/// The parameter `turn`; `None`: the head.
fn turn_parameter(query: Option<&str>) -> Result<Option<i32>, ApiProblem> {
    Query::parse(query, &["turn"])?.take("turn").map(|turn| parse_turn(&turn)).transpose()
}
