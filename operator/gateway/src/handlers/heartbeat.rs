//! `POST heartbeat`.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use dalsegno_model::HeartbeatAnswer;

use crate::credentials;
use crate::extractors::Run;
use crate::gateway::Gateway;
use crate::response::{self, ApiProblem};

/// Does not count among the run's calls under way: a run that is busy with other calls is not silent.
pub(crate) async fn heartbeat(
    State(gateway): State<Gateway>,
    Run(run): Run,
    headers: HeaderMap,
) -> Result<Response, ApiProblem> {
    let capability = credentials::bearer_capability(&headers)?;
    match gateway.heartbeat_batcher.send(run, capability).await {
        Some(HeartbeatAnswer::Ok(signals)) => response::ok(&response::flags(signals)),
        Some(HeartbeatAnswer::Finished) => Err(ApiProblem::finished()),
        Some(HeartbeatAnswer::Fenced) => Err(ApiProblem::fenced()),
        None => Err(ApiProblem::store_unavailable()),
    }
}
