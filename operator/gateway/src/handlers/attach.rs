//! `POST attach`: a pod proves who it is, and its process takes the attempt.

use axum::extract::{Request, State};
use axum::response::Response;
use dalsegno_protocol::{
    AttachRequest, AttachResponse, Code, Decision, Head, Limits, State as Channels, Warning,
};
use dalsegno_store::{Attached, CallFilter, Digest, Error, RunId, RunRecord, Store, Verdict};
use tokio::time::Instant;

use crate::authenticator::PodIdentity;
use crate::credentials;
use crate::handlers::commit_response::seconds;

use crate::extractors::Run;
use crate::gateway::Gateway;
use crate::limits::request_body;
use crate::limits::response_body;
use crate::limits::shared_limit::Who;
use crate::response::Refusal;

/// Heartbeats in one length of the lease.
const HEARTBEATS_PER_LEASE: i64 = 3;

pub(crate) async fn attach(
    State(gateway): State<Gateway>,
    Run(run): Run,
    request: Request,
) -> Result<Response, Refusal> {
    let pod = credentials::review(&gateway, request.headers()).await?;
    let _place = gateway.calls.take(Who::Pod(pod.pod_uid.clone()), 1)?;
    let request: AttachRequest = request_body::receive_from_pod(&gateway, &pod, request).await?.parse()?;
    if !credentials::is_instance(&request.instance) {
        return Err(Refusal::invalid(
            "`instance` must be 256 random bits in base64url without padding: exactly 43 characters of A-Z a-z 0-9 - _",
        ));
    }
    same_namespace(&gateway, run, &pod).await?;
    let record = take(&gateway, run, &pod, &credentials::capability(&request.instance)).await?;
    let (who, bytes) = (Who::Run(run), gateway.bytes_with_calls(run, None).await?);
    let _room = gateway.resumes.take(&who, bytes).await?;
    response_body::answer(&gateway, &who, &answer(&gateway, &record).await?)
}

/// Takes the attempt, waiting a while for what the operator has not recorded yet.
async fn take(
    gateway: &Gateway,
    run: RunId,
    pod: &PodIdentity,
    instance: &Digest,
) -> Result<RunRecord, Refusal> {
    let started = Instant::now();
    let mut pending_since = None;
    loop {
        let call = || gateway.store.attach(run, &pod.pod_uid, instance);
        match gateway.ask("attaching", call).await? {
            Attached::Ok(record) => return Ok(*record),
            Attached::NotRecorded => {
                pause(gateway, started + gateway.config.record_wait, not_ready).await?;
            }
            Attached::VersionPending => {
                let since = *pending_since.get_or_insert_with(Instant::now);
                pause(gateway, since + gateway.config.verdict_wait, version_pending).await?;
            }
            Attached::Fenced => return Err(Refusal::fenced()),
            Attached::Finished => return Err(Refusal::finished()),
            Attached::VersionIncompatible(why) => return Err(incompatible(&why)),
            Attached::Spent => return Err(Refusal::spent()),
            Attached::NotFound => return Err(Refusal::no_such_run()),
        }
    }
}

/// A pod of another namespace learns nothing of this run and takes nothing of it, not even one that was recorded. No run
/// ever moves to another namespace.
async fn same_namespace(gateway: &Gateway, run: RunId, pod: &PodIdentity) -> Result<(), Refusal> {
    let row = gateway.ask("looking up a run", || gateway.store.get_run(run)).await?;
    if row.ok_or_else(Refusal::no_such_run)?.namespace == pod.namespace {
        return Ok(());
    }
    tracing::warn!(pod_namespace = pod.namespace, "a pod of another namespace tried to attach");
    Err(Refusal::new(
        Code::Forbidden,
        "the token is of a pod in another namespace than this run; use the URL in DALSEGNO_URL as it is",
    ))
}

/// Sleeps until the next try, unless the time is up or the gateway stops.
async fn pause(gateway: &Gateway, until: Instant, up: fn() -> Refusal) -> Result<(), Refusal> {
    if Instant::now() >= until {
        return Err(up());
    }
    tokio::select! {
        () = tokio::time::sleep(gateway.config.poll) => Ok(()),
        () = gateway.closing.cancelled() => Err(Refusal::closing()),
    }
}

async fn answer(gateway: &Gateway, record: &RunRecord) -> Result<AttachResponse, Refusal> {
    let store = &gateway.store;
    let (state, unsettled_calls, completed_calls) = tokio::try_join!(
        async {
            match record.head {
                Some(_) => {
                    let state = gateway.ask("reading the state", || head(&**store, record.id)).await?;
                    Ok(state.filter(is_small))
                }
                None => Ok(None),
            }
        },
        gateway.ask("reading unsettled calls", || store.calls(record.id, CallFilter::Unsettled)),
        gateway.ask("reading completed calls", || store.calls(record.id, CallFilter::OpenTurn)),
    )?;
    let head = record.head.as_ref().map(|head| Head {
        turn: head.turn,
        boundary: head.boundary,
        position: head.position,
        content_hash: head.content_hash.clone(),
    });
    Ok(AttachResponse {
        run: format!("{}/{}", record.namespace, record.name),
        attempt: record.attempt.number,
        decision: if head.is_some() { Decision::Resume } else { Decision::Fresh },
        head,
        state,
        unsettled_calls,
        completed_calls,
        approval: None,
        warnings: warnings(record),
        heartbeat_seconds: seconds(record.deadlines.heartbeat_ms / HEARTBEATS_PER_LEASE),
        lease_seconds: seconds(record.deadlines.heartbeat_ms),
        suspend: false,
        cancel: record.cancel.is_some(),
    })
}

/// The state at the head. Of a run that lives it is kept: what is gone there is damage.
async fn head(store: &dyn Store, run: RunId) -> dalsegno_store::Result<Option<Channels>> {
    store.state(run, None).await.map_err(|error| match error {
        Error::Gone { doing, detail } => Error::Corrupt { doing, detail },
        error => error,
    })
}

fn warnings(record: &RunRecord) -> Vec<Warning> {
    let identity = record.attempt.identity.iter();
    let allowed = identity.filter(|identity| identity.verdict == Verdict::Allowed);
    allowed
        .map(|identity| Warning { code: "VERSION_ALLOWED".into(), message: identity.remark.clone() })
        .collect()
}

/// Whether a state may travel with the answer.
fn is_small(state: &Channels) -> bool {
    response_body::length(state, Limits::INLINE_STATE_BYTES).is_some()
}

fn not_ready() -> Refusal {
    Refusal::new(
        Code::NotReady,
        "the operator has not recorded this pod yet; send the same bytes again, with the same instance",
    )
}

fn version_pending() -> Refusal {
    Refusal::new(
        Code::VersionPending,
        "the operator has not judged this image's version yet; send the same bytes again, with the same instance",
    )
}

fn incompatible(why: &str) -> Refusal {
    Refusal::new(
        Code::VersionIncompatible,
        format!("this image may not go on with the run: {why}; exit, and the run's version policy decides"),
    )
}
