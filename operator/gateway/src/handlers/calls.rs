//! Tool calls with idempotency keys: `POST calls/{id}/claim`, `complete`, `settle`.

use axum::extract::{Request, State};
use axum::response::Response;
use dalsegno_protocol::{
    Acknowledgement, ClaimRequest, ClaimResponse, ClaimVerdict, Code, CommitResult, CompleteRequest,
    SettleRequest,
};
use dalsegno_store::{Claim, Claimed, Complete, Completed, Settle, SettledBy};

use crate::extractors::{CallId, Worker};
use crate::gateway::Gateway;
use crate::limits::request_body;
use crate::limits::response_body;
use crate::limits::shared_limit::Who;
use crate::response::{self, Refusal};
use crate::validation;

pub(crate) async fn claim(
    State(gateway): State<Gateway>,
    worker: Worker,
    CallId(id): CallId,
    request: Request,
) -> Result<Response, Refusal> {
    let received = request_body::receive(&gateway, &worker, request).await?;
    let request: ClaimRequest = received.parse()?;
    validation::claim(&request)?;
    let claim = Claim {
        run: worker.run,
        capability: worker.capability,
        id,
        claim_id: request.claim_id,
        policy: request.policy,
        key: request.key,
        arguments: request.arguments,
    };
    let (verdict, call) = match gateway.ask("claiming a call", || gateway.store.claim(&claim)).await? {
        Claimed::Go(call) => (ClaimVerdict::Go, call),
        Claimed::Done(call) => (ClaimVerdict::Done, call),
        Claimed::Uncertain(call) => (ClaimVerdict::Uncertain, call),
        Claimed::Invalid(why) => return Err(Refusal::invalid(why)),
        Claimed::TooLarge => return Err(Refusal::calls_too_large()),
        Claimed::Fenced => return Err(Refusal::fenced()),
        Claimed::Finished => return Err(Refusal::finished()),
        Claimed::NotFound => return Err(Refusal::no_such_run()),
    };
    response_body::answer(&gateway, &Who::Run(worker.run), &ClaimResponse { verdict, call: *call })
}

pub(crate) async fn complete(
    State(gateway): State<Gateway>,
    worker: Worker,
    CallId(id): CallId,
    request: Request,
) -> Result<Response, Refusal> {
    let received = request_body::receive(&gateway, &worker, request).await?;
    let request: CompleteRequest = received.parse()?;
    let complete = Complete {
        run: worker.run,
        capability: worker.capability,
        id,
        claim_id: request.claim_id,
        outcome: request.outcome,
        result: request.result,
    };
    answer(gateway.ask("completing a call", || gateway.store.complete(&complete)).await?)
}

pub(crate) async fn settle(
    State(gateway): State<Gateway>,
    worker: Worker,
    CallId(id): CallId,
    request: Request,
) -> Result<Response, Refusal> {
    let received = request_body::receive(&gateway, &worker, request).await?;
    let request: SettleRequest = received.parse()?;
    validation::word("`reason`", &request.reason)?;
    let settle = Settle {
        run: worker.run,
        by: SettledBy::Worker(worker.capability),
        id,
        outcome: request.outcome,
        result: request.result,
        reason: request.reason,
    };
    answer(gateway.ask("settling a call", || gateway.store.settle(&settle)).await?)
}

fn answer(completed: Completed) -> Result<Response, Refusal> {
    let result = match completed {
        Completed::Ok => CommitResult::Ok,
        Completed::Duplicate => CommitResult::Duplicate,
        Completed::Conflict(why) => return Err(Refusal::new(Code::Conflict, why)),
        Completed::NoSuchCall => {
            return Err(Refusal::new(
                Code::NotFound,
                "the run has no call of this id; claim it before its tool runs",
            ));
        }
        Completed::TooLarge => return Err(Refusal::calls_too_large()),
        Completed::Fenced => return Err(Refusal::fenced()),
        Completed::Finished => return Err(Refusal::finished()),
        Completed::NotFound => return Err(Refusal::no_such_run()),
    };
    response::ok(&Acknowledgement { result })
}
