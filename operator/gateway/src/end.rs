//! How a run ends by its worker: `POST finish` and `POST cancelled`.

use axum::extract::{Request, State};
use axum::response::Response;
use dalsegno_protocol::{
    Acknowledgement, Code, CommitResult, Finish, FinishOutcome, FinishRequest, printable,
};
use dalsegno_store::{Acknowledged, FinishCall, NewFinish};

use crate::body;
use crate::boundary;
use crate::check;
use crate::gateway::Gateway;
use crate::path::Worker;
use crate::refusal::{self, Refusal};

pub(crate) async fn finish(
    State(gateway): State<Gateway>,
    worker: Worker,
    request: Request,
) -> Result<Response, Refusal> {
    let received = body::receive(&gateway, &worker, request).await?;
    let request: FinishRequest = received.parse()?;
    let finish = FinishCall {
        run: worker.run,
        capability: worker.capability,
        commit_id: request.commit_id,
        digest: received.digest,
        finish: new_finish(&request.finish)?,
    };
    let committed = gateway.ask("finishing a run", || gateway.store.finish(&finish)).await?;
    boundary::answer(committed, |_| {
        Refusal::new(
            Code::Conflict,
            "this commitId was used before with other bytes; make a new one for each call",
        )
    })
}

pub(crate) async fn cancelled(State(gateway): State<Gateway>, worker: Worker) -> Result<Response, Refusal> {
    let call = || gateway.store.acknowledge_cancel(worker.run, &worker.capability);
    match gateway.ask("acknowledging a cancel", call).await? {
        Acknowledged::Cancelled => refusal::ok(&Acknowledgement { result: CommitResult::Ok }),
        Acknowledged::NotRequested => Err(Refusal::new(
            Code::Conflict,
            "nobody has asked to cancel this run; go on, and call this only after an answer with `cancel: true`",
        )),
        Acknowledged::Finished => Err(Refusal::finished()),
        Acknowledged::Fenced => Err(Refusal::fenced()),
    }
}

/// A worker's finish as the store takes it.
pub(crate) fn new_finish(finish: &Finish) -> Result<NewFinish, Refusal> {
    check::finish(finish)?;
    let reason = match (&finish.reason, finish.outcome) {
        (Some(reason), _) => reason.as_str(),
        (None, FinishOutcome::Succeeded) => "Completed",
        (None, FinishOutcome::Failed) => "AgentFailed",
    };
    Ok(NewFinish {
        outcome: finish.outcome.into(),
        reason: reason.to_owned(),
        // It may be the text of an exception: whatever that holds, the run has to end.
        message: finish.message.as_deref().map(printable).unwrap_or_default(),
        output: finish.output.as_ref().map(|output| output.get().to_owned()),
    })
}
