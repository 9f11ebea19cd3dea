//! `POST attach`.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::body::Body;
use dalsegno_gateway::{Config, router};
use dalsegno_model::{Operator as _, RequestedBy, Verdict};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::context::*;
use crate::faulty_store::Fault;

#[tokio::test]
async fn attach_to_a_new_run_returns_a_fresh_decision() {
    let ctx = TestContext::new().await;
    let answer = ctx.attach("pod-1", INSTANCE).await.ok();
    let expected = json!({
        "run": "shop/nightly", "attempt": 1, "decision": "fresh", "branch": 0, "contract": 1,
        "unsettledCalls": [], "completedCalls": [], "waits": [], "warnings": [],
        "heartbeatSeconds": 5, "leaseSeconds": 15, "suspend": false, "cancel": false, "limit": false, "inbox": 0,
    });
    assert_eq!(answer, expected);
}

#[tokio::test]
async fn the_next_attempt_resumes_after_the_head() {
    let ctx = TestContext::attached().await;
    ctx.post("turns/1", commit(1, r#"{"step":1}"#)).await.ok();
    ctx.lose_pod(1).await;
    let answer = ctx.attach("pod-2", SECOND).await.ok();
    assert_eq!(answer["decision"], "resume");
    assert_eq!(answer["attempt"], 2);
    assert_eq!(answer["head"]["turn"], 1);
    assert_eq!(answer["head"]["boundary"], "result");
    assert!(answer["head"]["contentHash"].as_str().unwrap().starts_with("sha256:"));
    assert_eq!(answer["state"], json!({ "state": { "value": { "json": { "step": 1 } } } }));
}

#[tokio::test]
async fn the_same_process_may_attach_again() {
    let ctx = TestContext::new().await;
    let first = ctx.attach("pod-1", INSTANCE).await.ok();
    assert_eq!(ctx.attach("pod-1", INSTANCE).await.ok(), first);
}

#[tokio::test]
async fn a_second_process_of_the_attempt_is_refused_and_recorded() {
    let ctx = TestContext::attached().await;
    let answer = ctx.attach("pod-1", SECOND).await;
    assert_eq!((answer.status, answer.code().as_str()), (409, "ATTEMPT_SPENT"));
    assert!(answer.detail().contains("exit"));
    assert!(ctx.record().await.attempt.spent);
}

#[tokio::test]
async fn a_pod_of_the_same_name_with_another_uid_is_fenced() {
    let ctx = TestContext::new().await;
    let answer = ctx.attach("pod-of-the-same-name", INSTANCE).await;
    assert_eq!((answer.status, answer.code().as_str()), (409, "FENCED"));
    assert!(answer.detail().contains("exit"));
}

#[tokio::test]
async fn a_token_of_another_runs_pod_is_fenced() {
    let ctx = TestContext::new().await;
    create(&*ctx.store, "other").await;
    assert_eq!(ctx.attach("pod-of-other", INSTANCE).await.code(), "FENCED");
}

#[tokio::test]
async fn the_pod_of_an_earlier_attempt_is_fenced() {
    let ctx = TestContext::attached().await;
    ctx.lose_pod(1).await;
    assert_eq!(ctx.attach("pod-1", INSTANCE).await.code(), "FENCED");
}

#[tokio::test]
async fn a_token_of_another_namespace_is_forbidden_and_reveals_nothing() {
    let ctx = TestContext::new().await;
    let answer = ctx.attach("pod-9-in-bank", INSTANCE).await;
    assert_eq!((answer.status, answer.code().as_str()), (403, "FORBIDDEN"));
    assert!(!answer.text.contains("shop") && !answer.text.contains("nightly"), "{}", answer.text);

    let reserved = TestContext::reserved(long_attach_timeouts()).await;
    let started = Instant::now();
    assert_eq!(reserved.attach("pod-9-in-bank", INSTANCE).await.code(), "FORBIDDEN");
    assert!(
        started.elapsed() < long_attach_timeouts().pod_record_timeout / 2,
        "a pod of another namespace does not wait"
    );
}

#[tokio::test]
async fn a_recorded_pod_of_another_namespace_is_forbidden_whatever_its_verdict() {
    for verdict in [None, Some(identity(Verdict::Refused, "another image")), Some(accepted())] {
        let ctx = TestContext::reserved(test_config()).await;
        ctx.record_pod(1, "pod-1", verdict.clone()).await;
        let before = ctx.stored_run().await;
        let answer = ctx.attach("pod-1-in-bank", INSTANCE).await;
        assert_eq!((answer.status, answer.code().as_str()), (403, "FORBIDDEN"), "{verdict:?}");
        assert_eq!(ctx.stored_run().await, before, "{verdict:?}");
    }
}

#[tokio::test]
async fn an_invalid_token_or_one_for_another_audience_is_refused() {
    let ctx = TestContext::new().await;
    let body = json!({ "instance": INSTANCE }).to_string();
    for (token, why) in [("for-another-audience", "audience"), ("forged", "not genuine")] {
        let answer = ctx.post_as(token, "attach", body.clone()).await;
        assert_eq!((answer.status, answer.code().as_str()), (401, "UNAUTHENTICATED"));
        assert!(answer.detail().contains(why) && answer.detail().contains("DALSEGNO_TOKEN_FILE"));
        assert!(!answer.text.contains(token));
    }
}

#[tokio::test]
async fn a_call_without_a_bearer_is_refused() {
    let ctx = TestContext::new().await;
    for header in [None, Some("Basic dXNlcjpwYXNz"), Some("Bearer "), Some("Bearer")] {
        for path in ["attach", "turns/1", "heartbeat", "finish"] {
            let mut request = ctx.request("POST", path);
            if let Some(header) = header {
                request = request.header("authorization", header);
            }
            assert_eq!(ctx.send(request, "{}").await.code(), "UNAUTHENTICATED", "{header:?} {path}");
        }
    }
}

#[tokio::test]
async fn a_failed_token_review_is_unavailable() {
    let ctx = TestContext::new().await;
    let answer = ctx.post_as("review-fails", "attach", json!({ "instance": INSTANCE }).to_string()).await;
    assert_eq!((answer.status, answer.code().as_str()), (503, "UNAVAILABLE"));
}

#[tokio::test]
async fn attach_to_an_unknown_run_is_not_found() {
    let ctx = TestContext::new().await;
    let known = ctx.run.to_string();
    for run in [uuid::Uuid::now_v7().to_string(), "nightly".into(), "%FF".into()] {
        let path = ctx.request("POST", "attach").body(()).unwrap().uri().path().replace(&known, &run);
        let request = axum::http::Request::builder()
            .method("POST")
            .uri(path)
            .header("authorization", "Bearer token-of-pod-1");
        let answer = ctx.send(request, json!({ "instance": INSTANCE }).to_string()).await;
        assert!(matches!(answer.code().as_str(), "NOT_FOUND" | "INVALID"), "{run}: {}", answer.text);
    }
}

#[tokio::test]
async fn an_attach_before_the_pod_is_recorded_times_out_with_not_ready() {
    let ctx = TestContext::reserved(test_config()).await;
    let started = Instant::now();
    let answer = ctx.attach("pod-1", INSTANCE).await;
    assert_eq!((answer.status, answer.code().as_str()), (503, "NOT_READY"));
    assert!(started.elapsed() >= test_config().pod_record_timeout);
    assert!(answer.detail().contains("send the same bytes again"));
}

#[tokio::test]
async fn an_attach_succeeds_once_the_pod_is_recorded() {
    let ctx = TestContext::reserved(long_attach_timeouts()).await;
    let record = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        ctx.record_pod(1, "pod-1", Some(accepted())).await;
    };
    let (answer, ()) = tokio::join!(ctx.attach("pod-1", INSTANCE), record);
    assert_eq!(answer.ok()["decision"], "fresh");
}

#[tokio::test]
async fn an_instance_must_be_43_characters_of_base64url() {
    let ctx = TestContext::new().await;
    let long = "A".repeat(44);
    for instance in ["", "short", &INSTANCE[1..], &long, &INSTANCE.replacen('A', "+", 1)] {
        let answer = ctx.attach("pod-1", instance).await;
        assert_eq!(answer.code(), "INVALID", "{instance}");
        assert!(answer.detail().contains("43 characters"));
    }
    assert_eq!(ctx.record().await.attempt.attached_at, None);
}

#[tokio::test]
async fn a_bearer_that_is_not_an_instance_is_refused_with_the_expected_form() {
    let ctx = TestContext::attached().await;
    let answer = ctx.post_as("token-of-pod-1", "turns/1", commit(1, "1")).await;
    assert_eq!((answer.status, answer.code().as_str()), (401, "UNAUTHENTICATED"));
    assert!(answer.detail().contains("instance"));
}

#[tokio::test]
async fn an_instance_that_never_attached_is_fenced() {
    let ctx = TestContext::attached().await;
    assert_eq!(ctx.post_as(SECOND, "turns/1", commit(1, "1")).await.code(), "FENCED");
    assert_eq!(ctx.post_as(SECOND, "heartbeat", "").await.code(), "FENCED");
}

#[tokio::test]
async fn attach_to_a_finished_run_is_refused() {
    let ctx = TestContext::attached().await;
    let body = json!({ "commitId": uuid::Uuid::now_v7(), "finish": { "outcome": "succeeded" } });
    ctx.post("finish", body.to_string()).await.ok();
    assert_eq!(ctx.attach("pod-1", INSTANCE).await.code(), "FINISHED");
    assert_eq!(
        ctx.attach("pod-9-in-bank", INSTANCE).await.code(),
        "FORBIDDEN",
        "a pod of another namespace does not learn it"
    );
}

#[tokio::test]
async fn a_state_above_the_inline_limit_is_fetched() {
    let ctx = TestContext::attached().await;
    let large = format!("\"{}\"", "x".repeat(dalsegno_protocol::Limits::INLINE_STATE_BYTES));
    ctx.post("turns/1", commit(1, &large)).await.ok();
    let answer = ctx.attach("pod-1", INSTANCE).await.ok();
    assert_eq!(answer["head"]["turn"], 1);
    assert_eq!(answer["state"], Value::Null);
    let fetched = ctx.get("state").await;
    assert_eq!(fetched.headers["content-length"], fetched.text.len().to_string());
    assert!(
        fetched.ok()["state"]["state"]["value"]["json"] == serde_json::from_str::<Value>(&large).unwrap()
    );
}

#[tokio::test]
async fn a_resuming_worker_does_not_wait_for_reads_of_earlier_turns() {
    // Room for two of the largest states, for which the reads of earlier turns count.
    let config = Config { max_inspection_bytes: 144 << 20, ..test_config() };
    let ctx = TestContext::attached().await.with_config(config);
    let other = ctx.other_run("bakery", SECOND).await;
    for (ctx, instance) in [(&ctx, INSTANCE), (&other, SECOND)] {
        ctx.post_as(instance, "turns/1", commit(1, "1")).await.ok();
    }
    ctx.store.set_turn_reads(Fault::Hangs);
    let read_turn = async |ctx: &TestContext, instance: &str| {
        let request = ctx.request("GET", "state?turn=1");
        ctx.send(request.header("authorization", format!("Bearer {instance}")), "").await
    };
    let (one, two, ()) = tokio::join!(read_turn(&ctx, INSTANCE), read_turn(&other, SECOND), async {
        while ctx.store.waiting.load(Ordering::SeqCst) < 2 {
            tokio::task::yield_now().await;
        }
        ctx.get("state").await.ok();
        ctx.store.set_turn_reads(Fault::None);
    });
    one.ok();
    two.ok();
}

#[tokio::test]
async fn attach_reports_a_requested_cancel() {
    let ctx = TestContext::new().await;
    ctx.store.request_cancel(ctx.run, &RequestedBy::default()).await.unwrap();
    assert_eq!(ctx.attach("pod-1", INSTANCE).await.ok()["cancel"], true);
}

#[tokio::test]
async fn an_unsent_attach_response_is_charged_to_the_response_bytes() {
    let ctx = TestContext::attached().await;
    let claim = json!({ "claimId": uuid::Uuid::from_u128(1), "policy": "ask", "key": "k",
        "arguments": "x".repeat(5_000) });
    ctx.post("calls/pay/claim", claim.to_string()).await.ok();
    ctx.lose_pod(1).await;
    let ctx = ctx.with_config(Config { max_response_bytes: 6_000, ..test_config() });
    let request = ctx.request("POST", "attach").header("authorization", "Bearer token-of-pod-2");
    let body = json!({ "instance": SECOND }).to_string();
    let held = router(ctx.gateway.clone()).oneshot(request.body(Body::from(body)).unwrap()).await.unwrap();
    assert_eq!(held.status(), 200);
    let answer = ctx.attach("pod-2", SECOND).await;
    assert_eq!((answer.status, answer.code().as_str()), (503, "UNAVAILABLE"));
    assert!(answer.detail().contains("bytes"), "{}", answer.detail());
    drop(held);
    assert_eq!(ctx.attach("pod-2", SECOND).await.ok()["unsettledCalls"][0]["id"], "pay");
}

#[tokio::test]
async fn many_attaches_leave_room_for_the_calls_of_other_workers() {
    let ctx = TestContext::attached().await;
    let ctx = ctx.with_config(Config { max_store_calls: 16, max_calls_per_run: 64, ..test_config() });
    ctx.store.set(Fault::Hangs);
    let waiting = || ctx.store.waiting.load(Ordering::SeqCst);
    let attaches = futures::future::join_all((0..40).map(|_| ctx.attach("pod-1", INSTANCE)));
    let commit = async {
        while waiting() < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(waiting(), 2, "an eighth of the calls");
        let commit = ctx.post("turns/1", commit(1, "1"));
        let release = async {
            while waiting() < 3 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            ctx.store.set(Fault::None);
        };
        tokio::join!(commit, release).0
    };
    let (attached, committed) = tokio::join!(attaches, commit);
    committed.ok();
    for answer in attached {
        answer.ok();
    }
}
