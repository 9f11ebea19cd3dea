#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::convert::Infallible;
use std::future::pending;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

use axum::http::{Method, Request, Response};
use kube::client::Body;
use serde_json::Value;

use super::*;
use crate::test_context::lease_response;

/// Leads with an API server that gives these answers.
async fn lead_with<F>(
    answer: impl Fn(usize, Request<Body>) -> F + Send + Sync + 'static,
    stop: &CancellationToken,
) -> Option<LeaderGuard>
where
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let (times, answer) = (AtomicUsize::new(0), Arc::new(answer));
    let server = tower::service_fn(move |request: Request<Body>| {
        let answer = answer(times.fetch_add(1, Ordering::Relaxed), request);
        async { Ok::<_, Infallible>(answer.await) }
    });
    let is_ready = AtomicBool::new(false);
    let client = Client::new(server, "default");
    let candidate = Candidate { client, namespace: "default", identity: "dalsegno" };
    let leading = candidate.lead(&is_ready, stop.clone());
    let guard = tokio::time::timeout(Duration::from_secs(60), leading).await.expect("it leads or stops");
    assert!(is_ready.into_inner());
    guard
}

#[tokio::test]
async fn a_lease_that_cannot_be_read_at_first_is_held_in_the_end_and_then_released() {
    let lease = Arc::new(Mutex::new(Value::Null));
    let (there, stop) = (lease.clone(), CancellationToken::new());
    let answer = move |time, request| {
        let there = there.clone();
        async move {
            match time {
                0 => pending().await,
                1 => Response::builder().status(403).body(Body::empty()).unwrap(),
                _ => lease_response(&there, request).await,
            }
        }
    };
    let guard = lead_with(answer, &stop).await.unwrap();
    assert_eq!(lease.lock().unwrap()["spec"]["holderIdentity"], "dalsegno");
    assert!(!stop.is_cancelled());
    guard.release().await;
    assert_eq!(lease.lock().unwrap()["spec"]["holderIdentity"], Value::Null);
}

#[tokio::test]
async fn a_lease_that_was_deleted_is_created_again() {
    let lease = Arc::new(Mutex::new(Value::Null));
    let (there, made) = (lease.clone(), AtomicUsize::new(0));
    let answer = move |_, request: Request<Body>| {
        let is_first = request.method() == Method::POST && made.fetch_add(1, Ordering::Relaxed) == 0;
        let there = there.clone();
        async move {
            let answer = lease_response(&there, request).await;
            if is_first {
                *there.lock().unwrap() = Value::Null;
            }
            answer
        }
    };
    let guard = lead_with(answer, &CancellationToken::new()).await.unwrap();
    assert_eq!(lease.lock().unwrap()["spec"]["holderIdentity"], "dalsegno");
    guard.release().await;
}

#[tokio::test]
async fn a_stop_while_the_lease_is_acquired_releases_it() {
    let lease = Arc::new(Mutex::new(Value::Null));
    let (there, stop) = (lease.clone(), CancellationToken::new());
    let stops = stop.clone();
    let answer = move |_, request: Request<Body>| {
        let (there, stops) = (there.clone(), stops.clone());
        async move {
            let taken = request.method() == Method::PATCH && !stops.is_cancelled();
            let answer = lease_response(&there, request).await;
            if taken {
                assert_eq!(there.lock().unwrap()["spec"]["holderIdentity"], "dalsegno");
                stops.cancel();
                pending::<()>().await;
            }
            answer
        }
    };
    assert!(lead_with(answer, &stop).await.is_none());
    assert_eq!(lease.lock().unwrap()["spec"]["holderIdentity"], Value::Null);
}

/// Whether `stop` is cancelled within twice the time in which the Lease expires.
async fn loses_leadership(stop: &CancellationToken) -> bool {
    tokio::time::timeout(
        Duration::from_secs(2 * (LEASE_SECONDS + RENEW_SECONDS_BEFORE_EXPIRY)),
        stop.cancelled(),
    )
    .await
    .is_ok()
}

#[tokio::test]
async fn a_leader_that_gets_no_answer_leads_no_longer_than_its_lease() {
    let lease = Arc::new(Mutex::new(Value::Null));
    let (silent, stop) = (Arc::new(AtomicBool::new(false)), CancellationToken::new());
    let (there, is_silent) = (lease.clone(), silent.clone());
    let answer = move |_, request| {
        let (there, is_silent) = (there.clone(), is_silent.load(Ordering::Relaxed));
        async move { if is_silent { pending().await } else { lease_response(&there, request).await } }
    };
    let _guard = lead_with(answer, &stop).await.unwrap();
    silent.store(true, Ordering::Relaxed);
    assert!(loses_leadership(&stop).await);
}

#[tokio::test]
async fn a_leader_whose_lease_another_process_holds_leads_no_longer() {
    let lease = Arc::new(Mutex::new(Value::Null));
    let (there, stop) = (lease.clone(), CancellationToken::new());
    let answer = move |_, request: Request<Body>| {
        let there = there.clone();
        async move {
            // Its own renewal is too late.
            if request.method() == Method::PATCH
                && there.lock().unwrap()["spec"]["holderIdentity"] == "another"
            {
                return Response::builder().status(409).body(Body::empty()).unwrap();
            }
            lease_response(&there, request).await
        }
    };
    let _guard = lead_with(answer, &stop).await.unwrap();
    assert!(!stop.is_cancelled());
    lease.lock().unwrap()["spec"]["holderIdentity"] = "another".into();
    assert!(loses_leadership(&stop).await);
}

#[test]
fn two_renewals_without_an_answer_leave_time_for_a_third() {
    assert!(
        (REQUEST_TIMEOUT + RETRY_INTERVAL) * 2 + REQUEST_TIMEOUT
            <= Duration::from_secs(RENEW_SECONDS_BEFORE_EXPIRY)
    );
    const { assert!(RENEW_SECONDS_BEFORE_EXPIRY < LEASE_SECONDS) };
}

#[tokio::test]
async fn a_lease_that_another_process_renews_by_a_clock_an_hour_behind_is_taken_only_when_it_is_renewed_no_more()
 {
    let hour = jiff::SignedDuration::from_hours(1);
    let renewed = move || (jiff::Timestamp::now() - hour).to_string();
    let spec =
        serde_json::json!({ "holderIdentity": "another", "leaseDurationSeconds": 4, "renewTime": renewed() });
    let metadata = serde_json::json!({ "name": LEASE });
    let lease = Arc::new(Mutex::new(serde_json::json!({ "metadata": metadata, "spec": spec })));
    let (there, stop) = (lease.clone(), CancellationToken::new());
    let answer = move |_, request| {
        let there = there.clone();
        async move { lease_response(&there, request).await }
    };
    let stops = stop.clone();
    let leading = tokio::spawn(async move { lead_with(answer, &stops).await });
    for _ in 0..16 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let mut lease = lease.lock().unwrap();
        assert_eq!(lease["spec"]["holderIdentity"], "another", "it is renewed all the time");
        lease["spec"]["renewTime"] = renewed().into();
    }
    let guard = leading.await.unwrap().unwrap();
    assert_eq!(lease.lock().unwrap()["spec"]["holderIdentity"], "dalsegno");
    guard.release().await;
}
