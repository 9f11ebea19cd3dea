//! `GET export`: the signed bundle of a run.

use std::time::{Duration, Instant};

use axum::body::Body;
use axum::response::Response;
use dalsegno_gateway::{Config, router};
use dalsegno_proof::bundle::verify;
use futures::StreamExt;
use tower::ServiceExt;

use crate::context::*;

#[tokio::test]
async fn a_worker_exports_a_bundle_that_verifies() {
    let ctx = TestContext::attached().await;
    for turn in 1..=3 {
        ctx.post(&format!("turns/{turn}"), commit(turn, r#"{"text":  "hello"}"#)).await.ok();
    }
    let answer = ctx.get("export").await;
    assert_eq!(
        (answer.status, &answer.headers["content-type"]),
        (200, &"application/x-ndjson".parse().unwrap())
    );
    let found = verify(answer.text.as_bytes(), None).unwrap();
    assert_eq!((found.run.as_str(), found.boundaries, found.problems), ("shop/nightly", 3, vec![]));
    assert!(answer.text.contains(r#"{\"text\":  \"hello\"}"#), "payloads are unchanged");

    let truncated = &answer.text[..answer.text.len() / 2];
    assert!(!verify(truncated.as_bytes(), None).unwrap().problems.is_empty());
}

#[tokio::test]
async fn only_the_current_worker_may_export() {
    let ctx = TestContext::attached().await;
    let other = ctx.other_run("bakery", SECOND).await;
    ctx.lose_pod(1).await;
    assert_eq!(ctx.get("export").await.code(), "FENCED");
    let request = other.request("GET", "export").header("authorization", format!("Bearer {INSTANCE}"));
    assert_eq!(other.send(request, "").await.code(), "FENCED");
    assert_eq!(ctx.get("export?turn=1").await.code(), "INVALID");
}

#[tokio::test]
async fn exports_beyond_the_total_are_refused() {
    let ctx = TestContext::attached().await.with_config(Config { max_exports: 0, ..test_config() });
    assert_eq!(ctx.get("export").await.code(), "UNAVAILABLE");
}

/// Starts an export whose body is not read yet.
async fn begin(ctx: &TestContext, bearer: &str) -> Response {
    let request = ctx.request("GET", "export").header("authorization", format!("Bearer {bearer}"));
    router(ctx.gateway.clone()).oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
}

/// Reads the body; returns whether it is complete.
async fn is_complete(bundle: Response) -> bool {
    let chunks = bundle.into_body().into_data_stream();
    chunks.all(async |chunk| chunk.is_ok()).await
}

#[tokio::test]
async fn a_run_has_one_export_at_a_time() {
    let ctx = TestContext::attached().await;
    let other = ctx.other_run("bakery", SECOND).await;
    let held = begin(&ctx, INSTANCE).await;
    assert_eq!(ctx.get("export").await.code(), "TOO_MANY_REQUESTS");
    let other = begin(&other, SECOND).await;
    assert!(is_complete(held).await && is_complete(other).await);
    assert!(is_complete(begin(&ctx, INSTANCE).await).await);
}

#[tokio::test]
async fn an_export_is_cut_off_when_its_worker_is_fenced() {
    let ctx = TestContext::attached().await;
    ctx.post("turns/1", commit(1, "1")).await.ok();
    let bundle = begin(&ctx, INSTANCE).await;
    ctx.lose_pod(1).await;
    assert!(!is_complete(bundle).await);
}

#[tokio::test]
async fn an_export_that_is_not_read_in_time_is_cut_off_and_frees_its_permit() {
    let limit = Duration::from_secs(5);
    let ctx =
        TestContext::attached().await.with_config(Config { max_response_duration: limit, ..test_config() });
    let bundle = begin(&ctx, INSTANCE).await;
    let started = Instant::now();
    let next = loop {
        let next = begin(&ctx, INSTANCE).await;
        if next.status() == 200 {
            break next;
        }
        // Sooner than a client that reads nothing is cut off.
        assert!(started.elapsed() < 4 * limit, "the permit is not freed");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert!(is_complete(next).await);
    assert!(!is_complete(bundle).await);
}

#[tokio::test]
async fn the_unsent_part_of_an_export_is_charged_to_the_response_bytes() {
    let config = Config { max_response_bytes: 8_000, ..test_config() };
    let ctx = TestContext::attached().await.with_config(config);
    ctx.post("turns/1", commit(1, &format!("\"{}\"", "x".repeat(5_000)))).await.ok();
    let bundle = begin(&ctx, INSTANCE).await;
    let mut chunks = bundle.into_body().into_data_stream();
    chunks.next().await.unwrap().unwrap();
    chunks.next().await.unwrap().unwrap();
    assert_eq!(ctx.get("state").await.code(), "UNAVAILABLE");
    while let Some(chunk) = chunks.next().await {
        chunk.unwrap();
    }
    ctx.get("state").await.ok();
}

#[tokio::test]
async fn an_unusable_signing_key_is_reported_as_such_and_not_as_a_store_failure() {
    let missing = Some("/no/such/key.pem".into());
    let ctx = TestContext::attached().await.with_config(Config { signing_key: missing, ..test_config() });
    let refused = ctx.get("export").await;
    assert_eq!(refused.code(), "UNAVAILABLE");
    assert!(refused.detail().contains("cannot use its signing key"), "{}", refused.detail());
    assert!(!refused.detail().contains("store"), "{}", refused.detail());
}
