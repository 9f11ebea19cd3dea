//! How a run ends by its worker: `POST finish` and `POST cancelled`.

use axum::extract::{Request, State};
use axum::response::Response;
use dalsegno_protocol::{Acknowledgement, Code, CommitResult, FinishRequest};
use dalsegno_store::{Acknowledged, FinishCall};

use crate::extractors::Worker;
use crate::gateway::Gateway;
use crate::handlers::commit_response;
use crate::limits::request_body;
use crate::response::{self, Refusal};
use crate::validation;

pub(crate) async fn finish(
    State(gateway): State<Gateway>,
    worker: Worker,
    request: Request,
) -> Result<Response, Refusal> {
    let received = request_body::receive(&gateway, &worker, request).await?;
    let request: FinishRequest = received.parse()?;
    let finish = FinishCall {
        run: worker.run,
        capability: worker.capability,
        commit_id: request.commit_id,
        digest: received.digest,
        finish: validation::new_finish(&request.finish)?,
    };
    let committed = gateway.ask("finishing a run", || gateway.store.finish(&finish)).await?;
    commit_response::answer(committed, |_| {
        Refusal::new(
            Code::Conflict,
            "this commitId was used before with other bytes; make a new one for each call",
        )
    })
}

pub(crate) async fn cancelled(State(gateway): State<Gateway>, worker: Worker) -> Result<Response, Refusal> {
    let call = || gateway.store.acknowledge_cancel(worker.run, &worker.capability);
    match gateway.ask("acknowledging a cancel", call).await? {
        Acknowledged::Cancelled => response::ok(&Acknowledgement { result: CommitResult::Ok }),
        Acknowledged::NotRequested => Err(Refusal::new(
            Code::Conflict,
            "nobody has asked to cancel this run; go on, and call this only after an answer with `cancel: true`",
        )),
        Acknowledged::Finished => Err(Refusal::finished()),
        Acknowledged::Fenced => Err(Refusal::fenced()),
    }
}
