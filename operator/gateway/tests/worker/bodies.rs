//! Bodies: how large, how slow, and how many at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use dalsegno_gateway::Config;
use dalsegno_protocol::Limits;
use futures::{StreamExt, stream};

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
    let world = World::attached().await;
    let room = Limits::BODY_BYTES - commit(1, "\"\"").len();
    let body = commit(1, &format!("\"{}\"", "x".repeat(room)));
    assert_eq!(body.len(), Limits::BODY_BYTES);
    assert_eq!(world.post("turns/1", format!("{body} ")).await.code(), "TOO_LARGE");
    world.with(Config::default()).post("turns/1", body).await.ok();
}

#[tokio::test]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let world = World::attached().await;
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
    let patient = Config { store_deadline: Duration::from_secs(20), body_budget: 1_000, ..quick() };
    let world = World::attached().await.with(patient);
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
    let answer = world.with(Config { body_budget: 700, ..quick() }).get("state").await;
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (413, "TOO_LARGE"),
        "one that never will is not held"
    );
    assert!(answer.detail().contains("700 bytes"), "{}", answer.detail());
}

#[tokio::test]
async fn more_than_16_calls_of_one_run_at_once_are_too_many_and_heartbeats_do_not_count() {
    let patient = Config { store_deadline: Duration::from_secs(20), ..quick() };
    let world = World::attached().await.with(patient);
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
