//! `POST park`: a worker ends its attempt, because it was told to suspend or because the run waits.

use axum::extract::{Request, State};
use axum::response::Response;
use dalsegno_model::{Park, Parked};
use dalsegno_protocol::{ParkRequest, ParkResponse, ParkResult};

use crate::extractors::Worker;
use crate::gateway::Gateway;
use crate::limits::request_body;
use crate::response::{self, ApiProblem};
use crate::validation::check_park;

pub(crate) async fn park(
    State(gateway): State<Gateway>,
    worker: Worker,
    request: Request,
) -> Result<Response, ApiProblem> {
    let body = request_body::read(&gateway, &worker, request).await?;
    let request: ParkRequest = body.parse()?;
    check_park(&request)?;
    let ParkRequest { park_id, on, mode } = request;
    let park = Park { run: worker.run, capability: worker.capability, park_id, on, mode };
    let parked = gateway.call_with_retry("parking a run", || gateway.store.park(&park)).await?;
    let result = match parked {
        Parked::Parked => ParkResult::Parked,
        Parked::Ready => ParkResult::Ready,
        Parked::UnsettledCalls => return Err(ApiProblem::unsettled_calls()),
        Parked::OpenCalls => return Err(ApiProblem::open_calls()),
        Parked::NoSuchWait(id) => return Err(ApiProblem::no_such_wait(&id)),
        Parked::Finished => return Err(ApiProblem::finished()),
        Parked::Fenced => return Err(ApiProblem::fenced()),
    };
    response::ok(&ParkResponse { result })
}
