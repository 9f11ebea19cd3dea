//! Request bodies: size, time and memory limits.

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

use crate::context::*;
use crate::faulty_store::Fault;

/// A body of this many bytes in chunks of 64 KiB, and a counter of the bytes read.
pub fn large_body(bytes: usize) -> (Body, Arc<AtomicUsize>) {
    let read = Arc::new(AtomicUsize::new(0));
    let counter = read.clone();
    let chunk = Bytes::from(vec![b' '; 64 << 10]);
    let chunks = stream::iter(0..bytes / chunk.len()).map(move |_| {
        counter.fetch_add(chunk.len(), Ordering::SeqCst);
        Ok::<_, std::io::Error>(chunk.clone())
    });
    (Body::from_stream(chunks), read)
}

/// A body that stalls after this many bytes and does not end.
fn stuck(bytes: usize) -> Body {
    let first = stream::iter([Ok::<_, std::io::Error>(Bytes::from(vec![b' '; bytes]))]);
    Body::from_stream(first.chain(stream::pending()))
}

/// Runs `action` while these calls are under way.
async fn during(calls: impl Iterator<Item = impl Future<Output = Answer>>, action: impl Future<Output = ()>) {
    let action = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        action.await;
    };
    tokio::select! {
        answers = join_all(calls) => panic!("the calls have ended: {answers:?}"),
        () = action => {}
    }
}

/// A gateway with long time-outs that may hold this many bytes of request bodies; its worker has attached.
async fn with_request_bytes(max_request_bytes: usize) -> TestContext {
    let timeout = Duration::from_secs(60);
    let config =
        Config { body_read_timeout: timeout, store_timeout: timeout, max_request_bytes, ..test_config() };
    TestContext::attached().await.with_config(config)
}

/// The body of a commit with a state of this many bytes.
fn large(id: u128, bytes: usize) -> String {
    commit(id, &format!("\"{}\"", "x".repeat(bytes)))
}

#[tokio::test]
async fn a_content_length_of_one_gibibyte_is_refused_before_the_body_is_read() {
    let ctx = TestContext::attached().await;
    let (body, read) = large_body(1 << 30);
    let request = ctx
        .request("POST", "turns/1")
        .header("authorization", format!("Bearer {INSTANCE}"))
        .header("content-length", 1 << 30);
    assert_eq!(ctx.send(request, body).await.code(), "TOO_LARGE");
    assert_eq!(read.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_body_of_exactly_the_limit_is_accepted() {
    let ctx = TestContext::attached().await.with_config(long_timeouts());
    let length = Limits::BODY_BYTES - commit(1, "\"\"").len();
    let body = commit(1, &format!("\"{}\"", "x".repeat(length)));
    assert_eq!(body.len(), Limits::BODY_BYTES);
    assert_eq!(ctx.post("turns/1", format!("{body} ")).await.code(), "TOO_LARGE");
    ctx.post("turns/1", body).await.ok();
}

#[tokio::test]
async fn a_body_that_does_not_arrive_times_out() {
    let ctx = TestContext::attached().await.with_config(short_timeouts());
    let started = Instant::now();
    let first = stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(b"{"))]);
    let answer = ctx.post("turns/1", Body::from_stream(first.chain(stream::pending()))).await;
    assert_eq!((answer.status, answer.code().as_str()), (503, "UNAVAILABLE"));
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn a_body_that_breaks_off_commits_nothing_and_may_be_retried() {
    let ctx = TestContext::attached().await;
    let chunks = [Ok(Bytes::from(commit(1, "1"))), Err(std::io::Error::other("connection reset"))];
    let answer = ctx.post("turns/1", Body::from_stream(stream::iter(chunks))).await;
    assert_eq!((answer.status, answer.code().as_str()), (503, "UNAVAILABLE"));
    assert_eq!(ctx.record().await.head, None);
    assert_eq!(ctx.post("turns/1", commit(1, "1")).await.ok()["result"], "ok");
}

#[tokio::test]
async fn bodies_beyond_the_request_bytes_are_refused_until_some_are_freed() {
    let ctx = TestContext::attached().await.with_config(Config { max_request_bytes: 1_000, ..test_config() });
    ctx.store.set(Fault::Hangs);
    let large = commit(1, &format!("\"{}\"", "x".repeat(800)));
    let (first, ()) = tokio::join!(ctx.post("turns/1", large.clone()), async {
        while ctx.store.waiting.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        let answer = ctx.post("turns/1", large.clone()).await;
        assert_eq!((answer.status, answer.code().as_str()), (503, "UNAVAILABLE"));
        assert!(answer.detail().contains("bytes"), "{}", answer.detail());
        ctx.store.set(Fault::None);
    });
    first.ok();
    assert_eq!(ctx.post("turns/1", large).await.ok()["result"], "duplicate");
    assert_eq!(ctx.get("state").await.status, 200, "a response that fits is sent");
    let answer = ctx.with_config(Config { max_response_bytes: 700, ..test_config() }).get("state").await;
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (413, "TOO_LARGE"),
        "a response that never fits is refused at once"
    );
    assert!(answer.detail().contains("700 bytes"), "{}", answer.detail());
}

#[tokio::test]
async fn a_run_may_have_16_calls_at_once_and_heartbeats_do_not_count() {
    let ctx = TestContext::attached().await;
    ctx.store.set(Fault::Hangs);
    let calls = futures::future::join_all((0..16).map(|_| ctx.post("turns/1", commit(1, "1"))));
    let (answers, ()) = tokio::join!(calls, async {
        while ctx.store.waiting.load(Ordering::SeqCst) < 16 {
            tokio::task::yield_now().await;
        }
        let refused = ctx.post("turns/1", commit(1, "1")).await;
        assert_eq!((refused.status, refused.code().as_str()), (429, "TOO_MANY_REQUESTS"));
        ctx.store.set(Fault::None);
        assert_eq!(ctx.post("heartbeat", "").await.status, 200);
    });
    assert!(answers.iter().all(|answer| answer.status == 200));
    ctx.post("turns/2", commit(2, "1")).await.ok();
}

#[tokio::test]
async fn bodies_of_unverified_peers_do_not_block_workers() {
    let ctx = with_request_bytes(400 << 10).await;
    let peers = (0..8).map(|n| {
        let uri = format!("/v1/runs/{}/turns/1", Uuid::from_u128(n));
        let request = axum::http::Request::builder().method("POST").uri(uri);
        ctx.send(request.header("authorization", format!("Bearer {SECOND}")), stuck(50 << 10))
    });
    during(peers, async {
        ctx.post("turns/1", commit(1, "1")).await.ok();
        ctx.post("turns/2", large(2, 80 << 10)).await.ok();
    })
    .await;
}

#[tokio::test]
async fn only_a_workers_first_large_boundary_needs_a_second_query() {
    let ctx = TestContext::attached().await;
    let queries = || ctx.store.capability_checks.load(Ordering::SeqCst);
    ctx.post("turns/1", large(1, 60 << 10)).await.ok();
    assert_eq!(queries(), 0, "the statement that writes checks the capability");
    for turn in 2..=3 {
        ctx.post(&format!("turns/{turn}"), large(turn, 70 << 10)).await.ok();
        assert_eq!(queries(), 1, "the result is cached");
    }
}

#[tokio::test]
async fn calls_with_a_wrong_bearer_do_not_use_up_the_workers_share() {
    let ctx = with_request_bytes(Config::default().max_request_bytes).await;
    let peers = (0..16).map(|_| ctx.post_as(SECOND, "turns/1", stuck(1)));
    during(peers, async {
        ctx.post("turns/1", commit(1, "1")).await.ok();
    })
    .await;
}

#[tokio::test]
async fn one_run_may_hold_a_quarter_of_the_request_bytes() {
    let ctx = with_request_bytes(800 << 10).await;
    let other = ctx.other_run("bakery", SECOND).await;
    during((0..5).map(|_| ctx.post("turns/1", stuck(150 << 10))), async {
        let answer = ctx.post("turns/1", large(1, 150 << 10)).await;
        assert_eq!((answer.status, answer.code().as_str()), (429, "TOO_MANY_REQUESTS"));
        other.post_as(SECOND, "turns/1", large(1, 150 << 10)).await.ok();
    })
    .await;
}

#[tokio::test]
async fn a_large_commit_of_a_fenced_worker_still_learns_whether_it_is_committed() {
    let ctx = TestContext::attached().await;
    let body = large(1, 100 << 10);
    ctx.post("turns/1", body.clone()).await.ok();
    ctx.lose_pod(1).await;
    for (turn, body, committed) in [("turns/1", body, true), ("turns/2", large(2, 100 << 10), false)] {
        let answer = ctx.post(turn, body).await;
        assert_eq!((answer.code().as_str(), &answer.json()["committed"]), ("FENCED", &json!(committed)));
    }
}

#[tokio::test]
async fn an_attach_body_has_a_smaller_limit() {
    let ctx = TestContext::new().await;
    let padded = |bytes: usize| {
        let attach = json!({ "instance": INSTANCE }).to_string();
        format!("{attach}{}", " ".repeat(bytes - attach.len()))
    };
    let refused = ctx.post_as("token-of-pod-1", "attach", padded(Limits::ATTACH_BYTES + 1)).await;
    assert_eq!(refused.code(), "TOO_LARGE");
    ctx.post_as("token-of-pod-1", "attach", padded(Limits::ATTACH_BYTES)).await.ok();
}
