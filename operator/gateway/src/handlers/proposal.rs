//! `GET proposal?wait=&epoch=`: what a worker asks people to decide, for the people who decide.

use axum::extract::{RawQuery, State};
use axum::response::Response;
use dalsegno_format::header;
use dalsegno_protocol::{Code, ProposalResponse};

use crate::extractors::Reader;
use crate::gateway::Gateway;
use crate::limits::response_body::json_response;
use crate::query::Query;
use crate::response::ApiProblem;

pub(crate) async fn proposal(
    State(gateway): State<Gateway>,
    reader: Reader,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiProblem> {
    let mut query = Query::parse(query.as_deref(), &["wait", "epoch"])?;
    let (Some(wait), Some(epoch)) = (query.take("wait"), query.take_number("epoch", 1)?) else {
        return Err(ApiProblem::invalid("this call needs the parameters `wait` and `epoch`"));
    };
    gateway.authorize_reader(&reader).await?;
    let _permit = gateway.page_permit(&reader.owner).await?;
    let read = || gateway.store.proposal(reader.run, &wait, epoch);
    let found = gateway.call_with_retry("reading a proposal", read).await?;
    let found = found.ok_or_else(|| {
        ApiProblem::new(
            Code::NotFound,
            "the run never had a wait of this id that was opened under this epoch",
        )
    })?;
    let response = ProposalResponse {
        wait,
        epoch,
        turn: found.wait.facts.turn,
        request: found.request,
        salt: found.salt.map(|salt| salt.iter().map(|byte| format!("{byte:02x}")).collect()),
        proposal_hash: found.wait.facts.proposal_hash.map(|hash| header::render(&hash)),
        deadline_time: found.wait.facts.deadline_at.map(|at| at.to_string()),
    };
    json_response(&gateway, &reader.owner, &response)
}
