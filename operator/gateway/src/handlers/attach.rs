//! `POST attach`: a pod proves its identity, and its process takes the attempt.

use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::Response;
use dalsegno_model::{
    Attached, CallFilter, Digest, Error, HEARTBEATS_PER_LEASE, RunId, RunRecord, Store, Verdict, Wait,
};
use dalsegno_protocol::{
    AttachRequest, AttachResponse, Code, Decision, Head, Limits, State as Channels, Warning,
};
use tokio::time::Instant;

use crate::authenticator::PodIdentity;
use crate::credentials;
use crate::extractors::Run;
use crate::gateway::Gateway;
use crate::handlers::waits::public;
use crate::limits::connections::peer_of;
use crate::limits::request_body;
use crate::limits::response_body::{json_length, json_response};
use crate::limits::shared_limit::LimitOwner;
use crate::response::{ApiProblem, whole_seconds};

pub(crate) async fn attach(
    State(gateway): State<Gateway>,
    Run(run): Run,
    request: Request,
) -> Result<Response, ApiProblem> {
    let pod =
        credentials::authenticate_pod(&gateway, request.headers(), peer_of(request.extensions())).await?;
    let _call = gateway.worker_calls.acquire(LimitOwner::Pod(pod.pod_uid.clone()), 1)?;
    let request: AttachRequest = request_body::read_from_pod(&gateway, &pod, request).await?.parse()?;
    if !credentials::is_instance(&request.instance) {
        return Err(ApiProblem::invalid(
            "`instance` must be 256 random bits in base64url without padding: exactly 43 characters of A-Z a-z 0-9 - _",
        ));
    }
    gateway.attaching(check_namespace(&gateway, run, &pod)).await?;
    let record = take_attempt(&gateway, run, &pod, &credentials::capability(&request.instance)).await?;
    let owner = LimitOwner::Run(run);
    let bytes = gateway.attaching(gateway.state_and_calls_bytes(run, None)).await?;
    let _read = gateway.resume_reads.acquire(&owner, bytes).await?;
    let response = gateway.attaching(attach_response(&gateway, &record)).await?;
    json_response(&gateway, &owner, &response)
}

/// The longest pause between two looks at an attempt that cannot be taken yet.
const LONGEST_POLL_PAUSE: Duration = Duration::from_secs(1);

/// Takes the attempt. Waits for the operator to record the pod and to check its version, each up to a time-out.
async fn take_attempt(
    gateway: &Gateway,
    run: RunId,
    pod: &PodIdentity,
    capability: &Digest,
) -> Result<RunRecord, ApiProblem> {
    let config = &gateway.config;
    let started = Instant::now();
    let mut pending_since = None;
    loop {
        let attach = || gateway.store.attach(run, &pod.pod_uid, capability);
        match gateway.attaching(gateway.call_with_retry("attaching", attach)).await? {
            Attached::Ok(record) => return Ok(*record),
            Attached::NotRecorded => {
                poll_pause(gateway, started, config.pod_record_timeout, not_ready).await?;
            }
            Attached::VersionPending => {
                let since = *pending_since.get_or_insert_with(Instant::now);
                poll_pause(gateway, since, config.version_verdict_timeout, version_pending).await?;
            }
            Attached::External => return Err(ApiProblem::external()),
            Attached::Fenced => return Err(ApiProblem::fenced()),
            Attached::Finished => return Err(ApiProblem::finished()),
            Attached::VersionIncompatible(why) => return Err(version_incompatible(&why)),
            Attached::Spent => return Err(ApiProblem::attempt_spent()),
            Attached::NotFound => return Err(ApiProblem::no_such_run()),
        }
    }
}

/// Refuses a pod of another namespace, even one that was recorded as the worker: it must neither read nor change this
/// run. A run never moves to another namespace.
async fn check_namespace(gateway: &Gateway, run: RunId, pod: &PodIdentity) -> Result<(), ApiProblem> {
    if gateway.run_record(run).await?.namespace == pod.namespace {
        return Ok(());
    }
    tracing::warn!(pod_namespace = pod.namespace, "a pod of another namespace tried to attach");
    Err(ApiProblem::new(
        Code::Forbidden,
        "the token belongs to a pod in another namespace than this run; use the URL in DALSEGNO_URL unchanged",
    ))
}

/// Sleeps until the next poll. Fails with `timed_out` once `limit` has passed since `since`, and at once if the gateway
/// stops.
async fn poll_pause(
    gateway: &Gateway,
    since: Instant,
    limit: Duration,
    timed_out: fn() -> ApiProblem,
) -> Result<(), ApiProblem> {
    let waited = since.elapsed();
    if waited >= limit {
        return Err(timed_out());
    }
    let pause = pause_after(waited, gateway.config.poll_interval).min(limit - waited);
    tokio::select! {
        () = tokio::time::sleep(pause) => Ok(()),
        () = gateway.stopping.cancelled() => Err(ApiProblem::stopping()),
    }
}

/// A quarter of the time waited so far. Many pods start at once when a node pool is lost, and their looks must not
/// keep the store from recording them.
fn pause_after(waited: Duration, shortest: Duration) -> Duration {
    (waited / 4).clamp(shortest.min(LONGEST_POLL_PAUSE), LONGEST_POLL_PAUSE)
}

async fn attach_response(gateway: &Gateway, record: &RunRecord) -> Result<AttachResponse, ApiProblem> {
    let store = &gateway.store;
    let (state, unsettled_calls, completed_calls, waits) = tokio::try_join!(
        inline_state(gateway, record),
        gateway.call_with_retry("reading unsettled calls", || store.calls(record.id, CallFilter::Unsettled)),
        gateway.call_with_retry("reading completed calls", || store.calls(record.id, CallFilter::OpenTurn)),
        waits(gateway, record),
    )?;
    let turn = record.head.as_ref().map_or(0, |head| head.turn);
    gateway.snapshot_schedule.attached(record.id, turn, record.retention.snapshot_due());
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
        branch: record.rewinds,
        head,
        state,
        unsettled_calls,
        completed_calls,
        waits: waits.into_iter().map(public).collect(),
        warnings: warnings(record),
        heartbeat_seconds: whole_seconds(record.deadlines.heartbeat_ms / HEARTBEATS_PER_LEASE),
        lease_seconds: whole_seconds(record.deadlines.heartbeat_ms),
        suspend: record.suspend.is_some(),
        cancel: record.cancel.is_some(),
        limit: record.is_limit_reached(),
        inbox: record.inbox.position,
        contract: gateway.contract.load(Ordering::Relaxed),
    })
}

/// The open waits, and those answered since the head. The first attempt has none when it attaches.
async fn waits(gateway: &Gateway, record: &RunRecord) -> Result<Vec<Wait>, ApiProblem> {
    if record.attempt.number == 1 && record.waits.is_empty() {
        return Ok(Vec::new());
    }
    gateway.call_with_retry("reading waits", || gateway.store.waits(record.id)).await
}

/// The state at the head, unless it is too large for this answer; then the worker fetches it with `GET state`.
async fn inline_state(gateway: &Gateway, record: &RunRecord) -> Result<Option<Channels>, ApiProblem> {
    if record.head.is_none() {
        return Ok(None);
    }
    let state = gateway.call_with_retry("reading a state", || head_state(&*gateway.store, record.id)).await?;
    Ok(state.filter(|state| json_length(state, Limits::INLINE_STATE_BYTES).is_some()))
}

/// The state at the head of a run that is not over. Retention never deletes it, so a deleted one is damage.
async fn head_state(store: &dyn Store, run: RunId) -> dalsegno_model::Result<Option<Channels>> {
    store.state(run, None).await.map_err(|error| match error {
        Error::Gone { operation, detail } => Error::Corrupt { operation, detail },
        error => error,
    })
}

/// An image of another version than the checkpoint's has a remark, which names both versions.
fn warnings(record: &RunRecord) -> Vec<Warning> {
    let Some(identity) = record.attempt.identity.as_ref().filter(|it| !it.remark.is_empty()) else {
        return Vec::new();
    };
    let code = match identity.verdict {
        Verdict::Allowed => "VERSION_ALLOWED",
        Verdict::Accepted => "VERSION_COMPATIBLE",
        Verdict::Refused => return Vec::new(),
    };
    vec![Warning { code: code.into(), message: identity.remark.clone() }]
}

fn not_ready() -> ApiProblem {
    ApiProblem::new(
        Code::NotReady,
        "the operator has not recorded this pod yet; send the same bytes again, with the same instance",
    )
}

fn version_pending() -> ApiProblem {
    ApiProblem::new(
        Code::VersionPending,
        "the operator has not checked this image's version yet; send the same bytes again, with the same instance",
    )
}

fn version_incompatible(why: &str) -> ApiProblem {
    ApiProblem::new(
        Code::VersionIncompatible,
        format!("this image may not continue the run: {why}; exit, and the run's version policy decides"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_waits_twenty_seconds_looks_thirty_times_and_not_two_hundred() {
        let shortest = Duration::from_millis(100);
        let (mut waited, mut looks) = (Duration::ZERO, 0);
        while waited < Duration::from_secs(20) {
            let pause = pause_after(waited, shortest);
            assert!(pause >= shortest && pause <= LONGEST_POLL_PAUSE);
            (waited, looks) = (waited + pause, looks + 1);
        }
        assert!((20..=32).contains(&looks), "{looks}");
    }
}
