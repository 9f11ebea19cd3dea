//! The store is unavailable, or the gateway has a defect.

use std::time::Instant;

use dalsegno_gateway::Config;

use crate::context::*;
use crate::faulty_store::Fault;

const CALLS: [(&str, &str); 10] = [
    ("turns/1", r#"{"commitId":"00000000-0000-0000-0000-000000000001","state":1}"#),
    ("turns/1/plan", r#"{"commitId":"00000000-0000-0000-0000-000000000001","state":1}"#),
    ("heartbeat", ""),
    ("cancelled", ""),
    ("park", r#"{"parkId":"00000000-0000-0000-0000-000000000001"}"#),
    ("finish", r#"{"commitId":"00000000-0000-0000-0000-000000000001","finish":{"outcome":"succeeded"}}"#),
    ("calls/a/claim", r#"{"claimId":"00000000-0000-0000-0000-000000000001","policy":"ask","key":"k"}"#),
    ("calls/a/complete", r#"{"claimId":"00000000-0000-0000-0000-000000000001","outcome":"failed"}"#),
    ("calls/a/settle", r#"{"outcome":"failed","reason":"seen"}"#),
    ("attach", r#"{"instance":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}"#),
];

async fn call(ctx: &TestContext, path: &str, body: &'static str) -> Answer {
    let bearer = if path == "attach" { "token-of-pod-1" } else { INSTANCE };
    ctx.post_as(bearer, path, body).await
}

#[tokio::test]
async fn every_call_may_be_retried_while_the_store_is_unavailable() {
    let ctx = TestContext::attached().await;
    ctx.store.set(Fault::Fails);
    for (path, body) in CALLS {
        let answer = call(&ctx, path, body).await;
        assert_eq!((answer.status, answer.code().as_str()), (503, "UNAVAILABLE"), "{path}");
        assert!(answer.detail().contains("send the same bytes again"), "{}", answer.detail());
    }
    assert_eq!(ctx.get("state").await.code(), "UNAVAILABLE");
    ctx.store.set(Fault::None);
    assert_eq!(call(&ctx, "turns/1", CALLS[0].1).await.ok()["result"], "ok");
}

#[tokio::test]
async fn calls_to_a_store_that_does_not_answer_time_out() {
    let ctx = TestContext::attached().await.with_config(short_timeouts());
    ctx.store.set(Fault::Hangs);
    for (path, body) in CALLS {
        let started = Instant::now();
        assert_eq!(call(&ctx, path, body).await.code(), "UNAVAILABLE", "{path}");
        assert!(started.elapsed() < Config::default().store_timeout, "{path}");
    }
}

#[tokio::test]
async fn a_panic_is_answered_with_a_problem() {
    let ctx = TestContext::attached().await;
    ctx.store.set(Fault::Panics);
    let answer = ctx.post("turns/1", CALLS[0].1).await;
    assert_eq!((answer.status, answer.code().as_str()), (500, "INTERNAL"));
    ctx.store.set(Fault::None);
    assert_eq!(ctx.post("turns/1", CALLS[0].1).await.ok()["result"], "ok");
}

#[tokio::test]
async fn a_state_that_cannot_be_rebuilt_is_checkpoint_corrupt_and_not_unavailable() {
    let ctx = TestContext::attached().await;
    ctx.post("turns/1", CALLS[0].1).await.ok();
    ctx.store.set(Fault::Corrupt);
    for answer in [ctx.attach("pod-1", INSTANCE).await, ctx.get("state").await] {
        assert_eq!((answer.status, answer.code().as_str()), (409, "CHECKPOINT_CORRUPT"));
        assert!(
            answer.detail().contains("exit: if the next attempt needs the data too, the operator holds"),
            "{}",
            answer.detail()
        );
    }
}

#[tokio::test]
async fn on_a_full_volume_a_call_is_refused_at_once_and_accepted_when_there_is_space() {
    let ctx = TestContext::attached().await;
    ctx.store.set(Fault::Full);
    let began = Instant::now();
    for (path, body) in CALLS.into_iter().filter(|(path, _)| !["attach", "heartbeat"].contains(path)) {
        let answer = call(&ctx, path, body).await;
        assert_eq!((answer.status, answer.code().as_str()), (503, "STORAGE_FULL"), "{path}");
        assert!(answer.detail().contains("send the same bytes again"), "{}", answer.detail());
    }
    assert!(began.elapsed() < test_config().store_timeout, "the gateway does not retry by itself");
    ctx.store.set(Fault::None);
    assert_eq!(call(&ctx, "turns/1", CALLS[0].1).await.ok()["result"], "ok");
}
