//! `GET facts`: what the store knows of a run besides what its worker has written, for people who ask why the operator
//! decides as it does.

use axum::extract::{RawQuery, State};
use axum::response::Response;
use dalsegno_model::Facts;

use crate::extractors::Reader;
use crate::gateway::Gateway;
use crate::limits::response_body::json_response;
use crate::query::Query;
use crate::response::ApiProblem;

/// Number of calls that are named.
const CALLS: u32 = 10;

pub(crate) async fn facts(
    State(gateway): State<Gateway>,
    reader: Reader,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiProblem> {
    Query::parse(query.as_deref(), &[])?;
    gateway.authorize_reader(&reader).await?;
    let mut run = gateway.run_record(reader.run).await?;
    // The agent's own words are documents of their own; the status has the result.
    if let Some(finish) = &mut run.finish {
        finish.output = None;
    }
    let read = || gateway.store.calls_to_settle(reader.run, CALLS);
    let calls_to_settle = gateway.call_with_retry("reading the calls to settle", read).await?;
    json_response(&gateway, &reader.owner, &Facts { run, calls_to_settle })
}
