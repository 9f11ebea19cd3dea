//! Bodies: how large, how slow, and how many at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use dalsegno_gateway::Config;
use dalsegno_protocol::Limits;
use futures::future::join_all;
use futures::{StreamExt, stream};
use serde_json::json;
use uuid::Uuid;

use crate::faults::Fault;
use crate::world::*;

/// A stream of this many bytes in pieces of 64 KiB, and how much of it was read.
pub fn endless(bytes: usize) -> (Body, Arc<AtomicUsize>) {
    let read = Arc::new(AtomicUsize::new(0));
    let counter = read.clone();
    let piece = Bytes::from(vec![b' '; 64 << 10]);
    let pieces = stream::iter(0..bytes / piece.len()).map(move |_| {
        counter.fetch_add(piece.len(), Ordering::SeqCst);
        Ok::<_, std::io::Error>(piece.clone())
    });
    (Body::from_stream(pieces), read)
}

/// A body that stops after this many bytes and does not end.
fn stuck(bytes: usize) -> Body {
    let first = stream::iter([Ok::<_, std::io::Error>(Bytes::from(vec![b' '; bytes]))]);
    Body::from_stream(first.chain(stream::pending()))
}

/// What is done while these calls are under way.
async fn during(calls: impl Iterator<Item = impl Future<Output = Answer>>, done: impl Future<Output = ()>) {
    let done = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        done.await;
    };
    tokio::select! {
        answers = join_all(calls) => panic!("none of them is under way: {answers:?}"),
        () = done => {}
    }
}

/// A worker before a gateway that waits for bodies, and holds this many bytes of them.
async fn holding(max_request_bytes: usize) -> World {
    let patient = Duration::from_secs(60);
    let config = Config { body_read_timeout: patient, store_timeout: patient, max_request_bytes, ..quick() };
    World::attached().await.with(config)
}

/// A commit with a state of so many bytes.
fn large(id: u128, bytes: usize) -> String {
    commit(id, &format!("\"{}\"", "x".repeat(bytes)))
}

#[tokio::test]
async fn a_body_that_says_it_is_a_gibibyte_is_refused_before_a_byte_is_read() {
    let world = World::attached().await;
    let (body, read) = endless(1 << 30);
    let request = world
        .request("POST", "turns/1")
        .header("authorization", format!("Bearer {INSTANCE}"))
        .header("content-length", 1 << 30);
    assert_eq!(world.send(request, body).await.code(), "TOO_LARGE");
    assert_eq!(read.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_body_of_exactly_the_limit_is_taken() {
    let world = World::attached().await.with(unhurried());
    let room = Limits::BODY_BYTES - commit(1, "\"\"").len();
    let body = commit(1, &format!("\"{}\"", "x".repeat(room)));
    assert_eq!(body.len(), Limits::BODY_BYTES);
    assert_eq!(world.post("turns/1", format!("{body} ")).await.code(), "TOO_LARGE");
    world.post("turns/1", body).await.ok();
}

#[tokio::test]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let world = World::attached().await.with(hasty());
    let started = Instant::now();
    let first = stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(b"{"))]);
    let answer = world.post("turns/1", Body::from_stream(first.chain(stream::pending()))).await;
    assert_eq!((answer.status, answer.code().as_str()), (503, "UNAVAILABLE"));
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn a_body_that_breaks_off_commits_nothing_and_its_sender_hears_to_send_it_again() {
    let world = World::attached().await;
    let pieces = [Ok(Bytes::from(commit(1, "1"))), Err(std::io::Error::other("the connection is gone"))];
    let answer = world.post("turns/1", Body::from_stream(stream::iter(pieces))).await;
    assert_eq!((answer.status, answer.code().as_str()), (503, "UNAVAILABLE"));
    assert_eq!(world.record().await.head, None);
    assert_eq!(world.post("turns/1", commit(1, "1")).await.ok()["result"], "ok");
}

#[tokio::test]
async fn when_the_process_holds_as_many_bytes_as_it_may_further_ones_are_refused_until_it_has_room() {
    let world = World::attached().await.with(Config { max_request_bytes: 1_000, ..quick() });
    world.store.set(Fault::Hangs);
    let large = commit(1, &format!("\"{}\"", "x".repeat(800)));
    let (first, ()) = tokio::join!(world.post("turns/1", large.clone()), async {
        while world.store.waiting.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        let answer = world.post("turns/1", large.clone()).await;
        assert_eq!((answer.status, answer.code().as_str()), (503, "UNAVAILABLE"));
        assert!(answer.detail().contains("bytes"), "{}", answer.detail());
        world.store.set(Fault::None);
    });
    first.ok();
    assert_eq!(world.post("turns/1", large).await.ok()["result"], "duplicate");
    assert_eq!(world.get("state").await.status, 200, "a state that fits has room");
    let answer = world.with(Config { max_response_bytes: 700, ..quick() }).get("state").await;
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (413, "TOO_LARGE"),
        "one that never will is not held"
    );
    assert!(answer.detail().contains("700 bytes"), "{}", answer.detail());
}

#[tokio::test]
async fn more_than_16_calls_of_one_run_at_once_are_too_many_and_heartbeats_do_not_count() {
    let world = World::attached().await;
    world.store.set(Fault::Hangs);
    let calls = futures::future::join_all((0..16).map(|_| world.post("turns/1", commit(1, "1"))));
    let (answers, ()) = tokio::join!(calls, async {
        while world.store.waiting.load(Ordering::SeqCst) < 16 {
            tokio::task::yield_now().await;
        }
        let refused = world.post("turns/1", commit(1, "1")).await;
        assert_eq!((refused.status, refused.code().as_str()), (429, "TOO_MANY_REQUESTS"));
        world.store.set(Fault::None);
        assert_eq!(world.post("heartbeat", "").await.status, 200);
    });
    assert!(answers.iter().all(|answer| answer.status == 200));
    world.post("turns/2", commit(2, "1")).await.ok();
}

#[tokio::test]
async fn bodies_of_strangers_keep_no_worker_from_committing() {
    let world = holding(400 << 10).await;
    let strangers = (0..8).map(|n| {
        let uri = format!("/v1/runs/{}/turns/1", Uuid::from_u128(n));
        let request = axum::http::Request::builder().method("POST").uri(uri);
        world.send(request.header("authorization", format!("Bearer {SECOND}")), stuck(50 << 10))
    });
    during(strangers, async {
        world.post("turns/1", commit(1, "1")).await.ok();
        world.post("turns/2", large(2, 80 << 10)).await.ok();
    })
    .await;
}

#[tokio::test]
async fn the_store_is_asked_once_for_a_boundary_and_twice_for_a_workers_first_large_one() {
    let world = World::attached().await;
    let judged = || world.store.judged.load(Ordering::SeqCst);
    world.post("turns/1", large(1, 60 << 10)).await.ok();
    assert_eq!(judged(), 0, "in the statement that writes");
    for turn in 2..=3 {
        world.post(&format!("turns/{turn}"), large(turn, 70 << 10)).await.ok();
        assert_eq!(judged(), 1, "what was found of the worker is remembered");
    }
}

#[tokio::test]
async fn calls_with_a_false_bearer_take_no_place_of_the_worker() {
    let world = holding(Config::default().max_request_bytes).await;
    let strangers = (0..16).map(|_| world.post_as(SECOND, "turns/1", stuck(1)));
    during(strangers, async {
        world.post("turns/1", commit(1, "1")).await.ok();
    })
    .await;
}

#[tokio::test]
async fn one_run_holds_no_more_than_a_quarter_of_what_the_process_may() {
    let world = holding(800 << 10).await;
    let beside = world.beside("bakery", SECOND).await;
    during((0..5).map(|_| world.post("turns/1", stuck(150 << 10))), async {
        let answer = world.post("turns/1", large(1, 150 << 10)).await;
        assert_eq!((answer.status, answer.code().as_str()), (429, "TOO_MANY_REQUESTS"));
        beside.post_as(SECOND, "turns/1", large(1, 150 << 10)).await.ok();
    })
    .await;
}

#[tokio::test]
async fn a_large_commit_of_a_fenced_worker_is_still_told_whether_it_stands() {
    let world = World::attached().await;
    let body = large(1, 100 << 10);
    world.post("turns/1", body.clone()).await.ok();
    world.lose_pod(1).await;
    for (turn, body, stands) in [("turns/1", body, true), ("turns/2", large(2, 100 << 10), false)] {
        let answer = world.post(turn, body).await;
        assert_eq!((answer.code().as_str(), &answer.json()["committed"]), ("FENCED", &json!(stands)));
    }
}

#[tokio::test]
async fn an_attach_needs_no_large_body() {
    let world = World::new().await;
    let padded = |bytes: usize| {
        let attach = json!({ "instance": INSTANCE }).to_string();
        format!("{attach}{}", " ".repeat(bytes - attach.len()))
    };
    let refused = world.post_as("token-of-pod-1", "attach", padded(Limits::ATTACH_BYTES + 1)).await;
    assert_eq!(refused.code(), "TOO_LARGE");
    world.post_as("token-of-pod-1", "attach", padded(Limits::ATTACH_BYTES)).await.ok();
}
