//! How a worker ends its run: `POST finish` and `POST cancelled`.

use axum::extract::{Request, State};
use axum::response::Response;
use dalsegno_model::{Acknowledged, FinishCall};
use dalsegno_protocol::{Acknowledgement, Code, CommitResult, FinishRequest};

use crate::extractors::Worker;
use crate::gateway::Gateway;
use crate::limits::request_body;
use crate::response::{self, ApiProblem};
use crate::validation::new_finish;

pub(crate) async fn finish(
    State(gateway): State<Gateway>,
    worker: Worker,
    request: Request,
) -> Result<Response, ApiProblem> {
    let body = request_body::read(&gateway, &worker, request).await?;
    let request: FinishRequest = body.parse()?;
    let finish = FinishCall {
        run: worker.run,
        capability: worker.capability,
        commit_id: request.commit_id,
        digest: body.digest,
        finish: new_finish(&request.finish)?,
    };
    let committed = gateway.call_with_retry("finishing a run", || gateway.store.finish(&finish)).await?;
    response::commit_response(committed, |_| {
        ApiProblem::new(
            Code::Conflict,
            "this commitId was used before with other bytes; make a new one for each call",
        )
    })
}

pub(crate) async fn cancelled(
    State(gateway): State<Gateway>,
    worker: Worker,
) -> Result<Response, ApiProblem> {
    let acknowledge = || gateway.store.acknowledge_cancel(worker.run, &worker.capability);
    match gateway.call_with_retry("acknowledging a cancel", acknowledge).await? {
        Acknowledged::Cancelled => response::ok(&Acknowledgement { result: CommitResult::Ok }),
        Acknowledged::NotRequested => Err(ApiProblem::new(
            Code::Conflict,
            "nobody has requested to cancel this run; continue, and call this only after an answer with `cancel: true`",
        )),
        Acknowledged::Finished => Err(ApiProblem::finished()),
        Acknowledged::Fenced => Err(ApiProblem::fenced()),
    }
}
