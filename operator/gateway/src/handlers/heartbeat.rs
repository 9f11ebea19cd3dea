//! `POST heartbeat`.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use dalsegno_store::Beat;

use crate::credentials;
use crate::extractors::Run;
use crate::gateway::Gateway;
use crate::handlers::commit_response;
use crate::response::{self, Refusal};

pub(crate) async fn heartbeat(
    State(gateway): State<Gateway>,
    Run(run): Run,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let capability = credentials::bearer_capability(&headers)?;
    match gateway.heartbeats.send(run, capability).await {
        Some(Beat::Ok(asked)) => response::ok(&commit_response::flags(asked)),
        Some(Beat::Finished) => Err(Refusal::finished()),
        Some(Beat::Fenced) => Err(Refusal::fenced()),
        None => Err(Refusal::store_away()),
    }
}
