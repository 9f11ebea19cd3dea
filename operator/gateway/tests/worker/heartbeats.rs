//! `POST heartbeat`: a single one is stored at once, many are batched.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dalsegno_gateway::Config;
use futures::future::join_all;
use serde_json::json;

use crate::context::*;
use crate::faulty_store::Fault;

#[tokio::test]
async fn a_single_heartbeat_renews_the_lease_at_once() {
    let heartbeat_batch_window = Duration::from_secs(60);
    let ctx = TestContext::attached().await.with_config(Config { heartbeat_batch_window, ..test_config() });
    assert_eq!(ctx.record().await.attempt.lease_renewed_at, None);
    let started = Instant::now();
    let answer = ctx.post("heartbeat", "").await.ok();
    assert!(started.elapsed() < heartbeat_batch_window / 2);
    let flags = json!({ "suspend": false, "cancel": false, "limit": false, "inbox": 0, "leaseSeconds": 15 });
    assert_eq!(answer, flags);
    assert!(ctx.record().await.attempt.lease_renewed_at.is_some());
}

#[tokio::test]
async fn two_hundred_concurrent_heartbeats_need_at_most_three_statements() {
    let (heartbeat_batch_window, store_timeout) = (Duration::from_secs(2), Duration::from_secs(30));
    let ctx = TestContext::attached().await.with_config(Config {
        heartbeat_batch_window,
        store_timeout,
        ..test_config()
    });
    let answers = join_all((0..200).map(|_| ctx.post("heartbeat", ""))).await;
    assert!(answers.iter().all(|answer| answer.status == 200));
    assert!(ctx.store.batches.load(Ordering::SeqCst) <= 3);
}

#[tokio::test]
async fn a_fenced_worker_in_a_batch_is_refused_and_the_others_are_not() {
    let ctx = TestContext::attached().await;
    ctx.lose_pod(1).await;
    ctx.attach("pod-2", SECOND).await.ok();
    let heartbeats =
        [INSTANCE, SECOND, INSTANCE, SECOND].map(|instance| ctx.post_as(instance, "heartbeat", ""));
    let answers = join_all(heartbeats).await;
    assert_eq!(answers.iter().map(|answer| answer.status).collect::<Vec<_>>(), [409, 200, 409, 200]);
    assert_eq!(answers[0].code(), "FENCED");
}

#[tokio::test]
async fn a_failed_batch_does_not_stop_the_next_one() {
    let ctx = TestContext::attached().await;
    ctx.store.set(Fault::Fails);
    assert_eq!(ctx.post("heartbeat", "").await.code(), "UNAVAILABLE");
    ctx.store.set(Fault::None);
    ctx.post("heartbeat", "").await.ok();
}
