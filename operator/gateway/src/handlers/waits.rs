//! Waits: `POST waits/{id}` and `GET waits/{id}`.

use std::time::Duration;

use axum::extract::{RawQuery, Request, State};
use axum::response::Response;
use dalsegno_format::header;
use dalsegno_format::proposal::HashedProposal;
use dalsegno_model::{OpenWaitRequest, Wait, WaitAsks, WaitOpened, WaitPolled};
use dalsegno_protocol::{Code, Limits, RawValue, WaitAnswer, WaitKind, WaitRequest};
use jiff::Timestamp;

use crate::extractors::{WaitId, Worker};
use crate::gateway::Gateway;
use crate::limits::request_body;
use crate::limits::response_body::json_response;
use crate::limits::shared_limit::LimitOwner;
use crate::query::Query;
use crate::response::ApiProblem;
use crate::validation::{TextField, check_wait};

pub(crate) async fn open(
    State(gateway): State<Gateway>,
    worker: Worker,
    WaitId(id): WaitId,
    request: Request,
) -> Result<Response, ApiProblem> {
    let body = request_body::read(&gateway, &worker, request).await?;
    let request: WaitRequest = body.parse()?;
    let raw: Box<RawValue> = body.parse()?;
    let (digest, _permit) = body.release();
    check_wait(&request)?;
    let open = OpenWaitRequest {
        run: worker.run,
        capability: worker.capability,
        id,
        digest,
        body: raw,
        asks: asks(&request)?,
        deadline_ms: request.deadline_seconds.map(|seconds| seconds.saturating_mul(1_000)),
        on_timeout: request.on_timeout,
    };
    match gateway.call_with_retry("opening a wait", || gateway.store.open_wait(&open)).await? {
        WaitOpened::Wait(wait) => json_response(&gateway, &LimitOwner::Run(worker.run), &public(*wait)),
        WaitOpened::Invalid(why) => Err(ApiProblem::invalid(why)),
        WaitOpened::TooMany => Err(ApiProblem::new(
            Code::TooManyWaits,
            format!("the run has {} open waits and may have no more; park on them, or finish", Limits::WAITS),
        )),
        WaitOpened::TooLarge => Err(ApiProblem::new(
            Code::TooLarge,
            format!(
                "with this the requests of the run's open waits would have more than {} bytes; store large data \
                 elsewhere and send a reference to it",
                Limits::OPEN_WAIT_BYTES
            ),
        )),
        WaitOpened::Fenced => Err(ApiProblem::fenced()),
        WaitOpened::Finished => Err(ApiProblem::finished()),
        WaitOpened::NotFound => Err(ApiProblem::no_such_run()),
    }
}

pub(crate) async fn poll(
    State(gateway): State<Gateway>,
    worker: Worker,
    WaitId(id): WaitId,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiProblem> {
    let longest = i64::from(Limits::WAIT_POLL_SECONDS);
    let seconds = Query::parse(query.as_deref(), &["seconds"])?.take_number("seconds", 0)?.unwrap_or(longest);
    let longest = Duration::from_secs(seconds.min(longest).unsigned_abs());
    let polled = gateway.wait_poller.poll((worker.run, worker.capability, id.clone()), longest);
    let polled = tokio::select! {
        polled = polled => polled?,
        () = gateway.stopping.cancelled() => return Err(ApiProblem::stopping()),
    };
    match polled {
        WaitPolled::Wait(wait) => json_response(&gateway, &LimitOwner::Run(worker.run), &public(*wait)),
        WaitPolled::NoSuchWait => Err(ApiProblem::no_such_wait(&id)),
        WaitPolled::Fenced => Err(ApiProblem::fenced()),
        WaitPolled::Unreadable(_) => Err(ApiProblem::store_unavailable()),
    }
}

/// What answers the wait, with the fields of its kind. The request was checked.
fn asks(request: &WaitRequest) -> Result<WaitAsks, ApiProblem> {
    Ok(match request.kind {
        WaitKind::Approval => {
            let salt: [u8; 16] = rand::random();
            let hashed = HashedProposal {
                salt: &salt,
                title: request.title.as_deref().unwrap_or_default(),
                summary: request.summary.as_deref().unwrap_or_default(),
                proposal: request.proposal.as_deref().map_or("", RawValue::get),
            };
            WaitAsks::Approval { salt, proposal_hash: hashed.hash() }
        }
        WaitKind::Until => WaitAsks::Until(time("`time`", request.time.as_deref().unwrap_or_default())?),
        WaitKind::Message => WaitAsks::Message(request.topic.clone()),
        WaitKind::RateLimit => WaitAsks::RateLimit {
            provider: request.provider.clone().unwrap_or_default(),
            reset: request.reset_time.as_deref().map(|text| time("`resetTime`", text)).transpose()?,
        },
    })
}

fn time(label: &'static str, text: &str) -> Result<Timestamp, ApiProblem> {
    TextField { label, text }.check_short()?;
    text.parse().map_err(|_| {
        ApiProblem::invalid(format!("{label} must be a time as RFC 3339, such as 2030-01-31T09:00:00Z"))
    })
}

/// The wait as workers see it.
pub(crate) fn public(wait: Wait) -> dalsegno_protocol::Wait {
    let Wait { facts, state, answer } = wait;
    dalsegno_protocol::Wait {
        id: facts.id,
        kind: facts.kind,
        state,
        answer: answer.map(|answer| {
            let (by, reason, changes) =
                answer.decision.map_or((None, None, None), |it| (Some(it.by), it.reason, it.changes));
            WaitAnswer {
                outcome: answer.outcome,
                at: answer.at.to_string(),
                by,
                reason,
                changes,
                position: answer.position,
            }
        }),
        proposal_hash: facts.proposal_hash.map(|hash| header::render(&hash)),
        opened_at: facts.opened_at.to_string(),
        deadline: facts.deadline_at.map(|at| at.to_string()),
        wake_time: facts.wake_at.map(|at| at.to_string()),
    }
}
