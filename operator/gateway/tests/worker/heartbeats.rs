//! `POST heartbeat`: answered alone at once, and many in few statements.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dalsegno_gateway::Config;
use futures::future::join_all;
use serde_json::json;

use crate::faults::Fault;
use crate::world::*;

#[tokio::test]
async fn a_lone_heartbeat_renews_the_lease_at_once() {
    let heartbeat_batch_window = Duration::from_secs(60);
    let world = World::attached().await.with(Config { heartbeat_batch_window, ..quick() });
    assert_eq!(world.record().await.attempt.lease_renewed_at, None);
    let started = Instant::now();
    let answer = world.post("heartbeat", "").await.ok();
    assert!(started.elapsed() < heartbeat_batch_window / 2);
    assert_eq!(answer, json!({ "suspend": false, "cancel": false, "leaseSeconds": 15 }));
    assert!(world.record().await.attempt.lease_renewed_at.is_some());
}

#[tokio::test]
async fn two_hundred_heartbeats_at_once_are_a_few_statements() {
    let (heartbeat_batch_window, store_timeout) = (Duration::from_secs(2), Duration::from_secs(30));
    let world = World::attached().await.with(Config { heartbeat_batch_window, store_timeout, ..quick() });
    let answers = join_all((0..200).map(|_| world.post("heartbeat", ""))).await;
    assert!(answers.iter().all(|answer| answer.status == 200));
    assert!(world.store.batches.load(Ordering::SeqCst) <= 3);
}

#[tokio::test]
async fn a_fenced_worker_in_a_batch_hears_it_and_the_others_live_on() {
    let world = World::attached().await;
    world.lose_pod(1).await;
    world.attach("pod-2", SECOND).await.ok();
    let beats = [INSTANCE, SECOND, INSTANCE, SECOND].map(|instance| world.post_as(instance, "heartbeat", ""));
    let answers = join_all(beats).await;
    assert_eq!(answers.iter().map(|answer| answer.status).collect::<Vec<_>>(), [409, 200, 409, 200]);
    assert_eq!(answers[0].code(), "FENCED");
}

#[tokio::test]
async fn a_batch_that_failed_does_not_stop_the_next_one() {
    let world = World::attached().await;
    world.store.set(Fault::Fails);
    assert_eq!(world.post("heartbeat", "").await.code(), "UNAVAILABLE");
    world.store.set(Fault::None);
    world.post("heartbeat", "").await.ok();
}
