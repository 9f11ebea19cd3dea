//! Tool calls with idempotency keys: `POST calls/{id}/claim`, `complete`, `settle`; and `POST settle` and
//! `GET calls` of people.

use axum::extract::{RawQuery, Request, State};
use axum::response::Response;
use dalsegno_model::read_transaction::{CallKey, StoredCall};
use dalsegno_model::{Claim, Claimed, Complete, Completed, Settle, SettledBy};
use dalsegno_protocol::{
    Acknowledgement, CallEntry, CallsResponse, ClaimRequest, ClaimResponse, ClaimVerdict, Code, CommitResult,
    CompleteRequest, SettleByUserRequest, SettleRequest,
};

use crate::extractors::{CallId, Reader, Worker, Writer};
use crate::gateway::Gateway;
use crate::limits::request_body;
use crate::limits::response_body::json_response;
use crate::limits::shared_limit::LimitOwner;
use crate::query::Query;
use crate::response::{self, ApiProblem};
use crate::validation::{TextField, check_claim, check_usage};

pub(crate) async fn claim(
    State(gateway): State<Gateway>,
    worker: Worker,
    CallId(id): CallId,
    request: Request,
) -> Result<Response, ApiProblem> {
    let body = request_body::read(&gateway, &worker, request).await?;
    let request: ClaimRequest = body.parse()?;
    check_claim(&request)?;
    let claim = Claim {
        run: worker.run,
        capability: worker.capability,
        id,
        claim_id: request.claim_id,
        policy: request.policy,
        key: request.key,
        arguments: request.arguments,
        approval: request.approval,
        tool: request.tool,
    };
    let claimed = gateway.call_with_retry("claiming a call", || gateway.store.claim(&claim)).await?;
    let (verdict, call) = match claimed {
        Claimed::Go(call) => (ClaimVerdict::Go, call),
        Claimed::Done(call) => (ClaimVerdict::Done, call),
        Claimed::Uncertain(call) => (ClaimVerdict::Uncertain, call),
        Claimed::Invalid(why) => return Err(ApiProblem::invalid(why)),
        Claimed::TooLarge => return Err(ApiProblem::calls_too_large()),
        Claimed::ApprovalNotGranted(why) => return Err(ApiProblem::new(Code::ApprovalNotGranted, why)),
        Claimed::ApprovalSpent => {
            let why = "another call has used this approval: ask for another one, under another id";
            return Err(ApiProblem::new(Code::ApprovalSpent, why));
        }
        Claimed::Fenced => return Err(ApiProblem::fenced()),
        Claimed::Finished => return Err(ApiProblem::finished()),
        Claimed::NotFound => return Err(ApiProblem::no_such_run()),
    };
    json_response(&gateway, &LimitOwner::Run(worker.run), &ClaimResponse { verdict, call: *call })
}

pub(crate) async fn complete(
    State(gateway): State<Gateway>,
    worker: Worker,
    CallId(id): CallId,
    request: Request,
) -> Result<Response, ApiProblem> {
    let body = request_body::read(&gateway, &worker, request).await?;
    let request: CompleteRequest = body.parse()?;
    check_usage(&request.usage)?;
    let complete = Complete {
        run: worker.run,
        capability: worker.capability,
        id,
        claim_id: request.claim_id,
        outcome: request.outcome,
        result: request.result,
        usage: request.usage,
    };
    acknowledge(gateway.call_with_retry("completing a call", || gateway.store.complete(&complete)).await?)
}

pub(crate) async fn settle(
    State(gateway): State<Gateway>,
    worker: Worker,
    CallId(id): CallId,
    request: Request,
) -> Result<Response, ApiProblem> {
    let body = request_body::read(&gateway, &worker, request).await?;
    let request: SettleRequest = body.parse()?;
    TextField { label: "`reason`", text: &request.reason }.check_short()?;
    let settle = Settle {
        run: worker.run,
        by: SettledBy::Worker(worker.capability),
        id,
        outcome: request.outcome,
        result: request.result,
        reason: request.reason,
        audit_id: None,
    };
    acknowledge(gateway.call_with_retry("settling a call", || gateway.store.settle(&settle)).await?)
}

/// A person settles a call. The audit names the user.
pub(crate) async fn settle_by_user(
    State(gateway): State<Gateway>,
    writer: Writer,
    request: Request,
) -> Result<Response, ApiProblem> {
    let body = request_body::read_from_user(&gateway, &writer, request).await?;
    let SettleByUserRequest { call: id, outcome, result, reason } = body.parse()?;
    TextField { label: "`call`", text: &id }.check_name()?;
    TextField { label: "`reason`", text: &reason }.check_short()?;
    let by = SettledBy::Person(writer.user);
    let settle = Settle { run: writer.run, by, id, outcome, result, reason, audit_id: writer.audit_id };
    acknowledge(gateway.call_with_retry("settling a call", || gateway.store.settle(&settle)).await?)
}

/// All calls of the run, for people.
pub(crate) async fn list(
    State(gateway): State<Gateway>,
    reader: Reader,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiProblem> {
    let mut query = Query::parse(query.as_deref(), &["after"])?;
    let after = query.take("after").map(|after| parse_cursor(&after)).transpose()?;
    gateway.authorize_reader(&reader).await?;
    let _permit = gateway.page_permit(&reader.owner).await?;
    let read = async || gateway.store.begin_read().await?.calls(reader.run, after.clone()).await;
    let calls = gateway.call_with_retry("reading the calls", read).await?;
    // A page that is not empty is followed by another one, which may be empty.
    let next = calls.last().map(|it| format!("{}.{}.{}", it.call.turn, it.ordinal, it.call.id));
    let entry = |it: StoredCall| {
        let StoredCall { call, attempt, usage, damage, .. } = it;
        CallEntry { call, attempt, usage, damaged: damage.is_some() }
    };
    let calls = calls.into_iter().map(entry).collect();
    json_response(&gateway, &reader.owner, &CallsResponse { calls, next })
}

/// Parses `after`, which names the last call of the previous page as `<turn>.<number of the call>.<id>`.
fn parse_cursor(text: &str) -> Result<CallKey, ApiProblem> {
    let parse = || {
        let (turn, rest) = text.split_once('.')?;
        let (ordinal, id) = rest.split_once('.')?;
        Some(CallKey { turn: turn.parse().ok()?, ordinal: ordinal.parse().ok()?, id: id.to_owned() })
    };
    parse().ok_or_else(|| ApiProblem::invalid("`after` is not a `next` of this call"))
}

/// The answer to `complete` and `settle`.
fn acknowledge(completed: Completed) -> Result<Response, ApiProblem> {
    let result = match completed {
        Completed::Ok => CommitResult::Ok,
        Completed::Duplicate => CommitResult::Duplicate,
        Completed::Conflict(why) => return Err(ApiProblem::new(Code::Conflict, why)),
        Completed::NoSuchCall => {
            return Err(ApiProblem::new(
                Code::NotFound,
                "the run has no call of this id; claim it before its tool runs",
            ));
        }
        Completed::TooLarge => return Err(ApiProblem::calls_too_large()),
        Completed::Fenced => return Err(ApiProblem::fenced()),
        Completed::Finished => return Err(ApiProblem::finished()),
        Completed::NotFound => return Err(ApiProblem::no_such_run()),
    };
    response::ok(&Acknowledgement { result })
}
