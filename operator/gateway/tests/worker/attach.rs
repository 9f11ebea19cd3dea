//! `POST attach`.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::body::Body;
use dalsegno_gateway::{Config, router};
use dalsegno_store::{AskedBy, Operator as _, Verdict};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::faults::Fault;
use crate::world::*;

#[tokio::test]
async fn a_fresh_run_begins_at_turn_1() {
    let world = World::new().await;
    let answer = world.attach("pod-1", INSTANCE).await.ok();
    let expected = json!({
        "run": "shop/nightly", "attempt": 1, "decision": "fresh",
        "unsettledCalls": [], "completedCalls": [], "approval": null, "warnings": [],
        "heartbeatSeconds": 5, "leaseSeconds": 15, "suspend": false, "cancel": false,
    });
    assert_eq!(answer, expected);
}

#[tokio::test]
async fn the_next_attempt_resumes_after_the_head() {
    let world = World::attached().await;
    world.post("turns/1", commit(1, r#"{"step":1}"#)).await.ok();
    world.lose_pod(1).await;
    let answer = world.attach("pod-2", SECOND).await.ok();
    assert_eq!(answer["decision"], "resume");
    assert_eq!(answer["attempt"], 2);
    assert_eq!(answer["head"]["turn"], 1);
    assert_eq!(answer["head"]["boundary"], "result");
    assert!(answer["head"]["contentHash"].as_str().unwrap().starts_with("sha256:"));
    assert_eq!(answer["state"], json!({ "state": { "value": { "json": { "step": 1 } } } }));
}

#[tokio::test]
async fn the_same_process_may_attach_again() {
    let world = World::new().await;
    let first = world.attach("pod-1", INSTANCE).await.ok();
    assert_eq!(world.attach("pod-1", INSTANCE).await.ok(), first);
}

#[tokio::test]
async fn another_process_of_the_attempt_is_refused_and_the_operator_hears_of_it() {
    let world = World::attached().await;
    let answer = world.attach("pod-1", SECOND).await;
    assert_eq!((answer.status, answer.code().as_str()), (409, "ATTEMPT_SPENT"));
    assert!(answer.detail().contains("exit"));
    assert!(world.record().await.attempt.spent);
}

#[tokio::test]
async fn a_look_alike_pod_is_fenced() {
    let world = World::new().await;
    let answer = world.attach("pod-of-the-same-name", INSTANCE).await;
    assert_eq!((answer.status, answer.code().as_str()), (409, "FENCED"));
    assert!(answer.detail().contains("exit"));
}

#[tokio::test]
async fn a_token_of_another_runs_pod_is_fenced() {
    let world = World::new().await;
    create(&*world.store, "other").await;
    assert_eq!(world.attach("pod-of-other", INSTANCE).await.code(), "FENCED");
}

#[tokio::test]
async fn the_pod_of_an_earlier_attempt_is_fenced() {
    let world = World::attached().await;
    world.lose_pod(1).await;
    assert_eq!(world.attach("pod-1", INSTANCE).await.code(), "FENCED");
}

#[tokio::test]
async fn a_token_of_another_namespace_is_forbidden_and_learns_nothing() {
    let world = World::new().await;
    let answer = world.attach("pod-9-in-bank", INSTANCE).await;
    assert_eq!((answer.status, answer.code().as_str()), (403, "FORBIDDEN"));
    assert!(!answer.text.contains("shop") && !answer.text.contains("nightly"), "{}", answer.text);

    let reserved = World::reserved(patient()).await;
    let started = Instant::now();
    assert_eq!(reserved.attach("pod-9-in-bank", INSTANCE).await.code(), "FORBIDDEN");
    assert!(started.elapsed() < patient().record_wait / 2, "it does not wait for what is not its own");
}

#[tokio::test]
async fn a_recorded_pod_is_forbidden_to_attach_from_another_namespace_however_it_was_judged() {
    for judged in [None, Some(identity(Verdict::Refused, "another image")), Some(accepted())] {
        let world = World::reserved(quick()).await;
        world.record_pod(1, "pod-1", judged.clone()).await;
        let before = world.look().await;
        let answer = world.attach("pod-1-in-bank", INSTANCE).await;
        assert_eq!((answer.status, answer.code().as_str()), (403, "FORBIDDEN"), "{judged:?}");
        assert_eq!(world.look().await, before, "{judged:?}");
    }
}

#[tokio::test]
async fn a_token_for_another_audience_or_of_nobody_is_refused() {
    let world = World::new().await;
    let body = json!({ "instance": INSTANCE }).to_string();
    for (token, why) in [("for-another-audience", "audience"), ("forged", "not genuine")] {
        let answer = world.post_as(token, "attach", body.clone()).await;
        assert_eq!((answer.status, answer.code().as_str()), (401, "UNAUTHENTICATED"));
        assert!(answer.detail().contains(why) && answer.detail().contains("DALSEGNO_TOKEN_FILE"));
        assert!(!answer.text.contains(token));
    }
}

#[tokio::test]
async fn a_call_without_a_bearer_is_refused() {
    let world = World::new().await;
    for header in [None, Some("Basic dXNlcjpwYXNz"), Some("Bearer "), Some("Bearer")] {
        for path in ["attach", "turns/1", "heartbeat", "finish"] {
            let mut request = world.request("POST", path);
            if let Some(header) = header {
                request = request.header("authorization", header);
            }
            assert_eq!(world.send(request, "{}").await.code(), "UNAUTHENTICATED", "{header:?} {path}");
        }
    }
}

#[tokio::test]
async fn while_tokens_cannot_be_reviewed_the_worker_tries_again() {
    let world = World::new().await;
    let answer = world.post_as("nobody-knows", "attach", json!({ "instance": INSTANCE }).to_string()).await;
    assert_eq!((answer.status, answer.code().as_str()), (503, "UNAVAILABLE"));
}

#[tokio::test]
async fn a_run_that_nobody_knows_is_not_found() {
    let world = World::new().await;
    let known = world.run.to_string();
    for run in [uuid::Uuid::now_v7().to_string(), "nightly".into(), "%FF".into()] {
        let path = world.request("POST", "attach").body(()).unwrap().uri().path().replace(&known, &run);
        let request = axum::http::Request::builder()
            .method("POST")
            .uri(path)
            .header("authorization", "Bearer token-of-pod-1");
        let answer = world.send(request, json!({ "instance": INSTANCE }).to_string()).await;
        assert!(matches!(answer.code().as_str(), "NOT_FOUND" | "INVALID"), "{run}: {}", answer.text);
    }
}

#[tokio::test]
async fn a_pod_that_is_not_recorded_yet_waits_and_then_is_told_to_try_again() {
    let world = World::reserved(quick()).await;
    let started = Instant::now();
    let answer = world.attach("pod-1", INSTANCE).await;
    assert_eq!((answer.status, answer.code().as_str()), (503, "NOT_READY"));
    assert!(started.elapsed() >= quick().record_wait);
    assert!(answer.detail().contains("send the same bytes again"));
}

#[tokio::test]
async fn a_pod_that_is_recorded_meanwhile_attaches() {
    let world = World::reserved(patient()).await;
    let record = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        world.record_pod(1, "pod-1", Some(accepted())).await;
    };
    let (answer, ()) = tokio::join!(world.attach("pod-1", INSTANCE), record);
    assert_eq!(answer.ok()["decision"], "fresh");
}

#[tokio::test]
async fn an_instance_is_43_characters_of_base64url() {
    let world = World::new().await;
    let long = "A".repeat(44);
    for instance in ["", "short", &INSTANCE[1..], &long, &INSTANCE.replacen('A', "+", 1)] {
        let answer = world.attach("pod-1", instance).await;
        assert_eq!(answer.code(), "INVALID", "{instance}");
        assert!(answer.detail().contains("43 characters"));
    }
    assert_eq!(world.record().await.attempt.attached_at, None);
}

#[tokio::test]
async fn a_bearer_that_is_no_instance_is_told_what_to_send() {
    let world = World::attached().await;
    let answer = world.post_as("token-of-pod-1", "turns/1", commit(1, "1")).await;
    assert_eq!((answer.status, answer.code().as_str()), (401, "UNAUTHENTICATED"));
    assert!(answer.detail().contains("instance"));
}

#[tokio::test]
async fn an_instance_that_never_attached_is_fenced() {
    let world = World::attached().await;
    assert_eq!(world.post_as(SECOND, "turns/1", commit(1, "1")).await.code(), "FENCED");
    assert_eq!(world.post_as(SECOND, "heartbeat", "").await.code(), "FENCED");
}

#[tokio::test]
async fn a_run_that_is_over_takes_no_worker() {
    let world = World::attached().await;
    let body = json!({ "commitId": uuid::Uuid::now_v7(), "finish": { "outcome": "succeeded" } });
    world.post("finish", body.to_string()).await.ok();
    assert_eq!(world.attach("pod-1", INSTANCE).await.code(), "FINISHED");
    assert_eq!(
        world.attach("pod-9-in-bank", INSTANCE).await.code(),
        "FORBIDDEN",
        "which others do not learn"
    );
}

#[tokio::test]
async fn a_state_above_the_inline_limit_is_fetched() {
    let world = World::attached().await;
    let large = format!("\"{}\"", "x".repeat(dalsegno_protocol::Limits::INLINE_STATE_BYTES));
    world.post("turns/1", commit(1, &large)).await.ok();
    let answer = world.attach("pod-1", INSTANCE).await.ok();
    assert_eq!(answer["head"]["turn"], 1);
    assert_eq!(answer["state"], Value::Null);
    let fetched = world.get("state").await;
    assert_eq!(fetched.headers["content-length"], fetched.text.len().to_string());
    assert!(
        fetched.ok()["state"]["state"]["value"]["json"] == serde_json::from_str::<Value>(&large).unwrap()
    );
}

#[tokio::test]
async fn a_large_state_is_fetched_while_others_look_at_earlier_turns() {
    let world = World::attached().await;
    let other = world.beside("bakery", SECOND).await;
    for (world, instance) in [(&world, INSTANCE), (&other, SECOND)] {
        world.post_as(instance, "turns/1", commit(1, "1")).await.ok();
    }
    world.store.set_lookups(Fault::Hangs);
    let look = async |world: &World, instance: &str| {
        let request = world.request("GET", "state?turn=1");
        world.send(request.header("authorization", format!("Bearer {instance}")), "").await
    };
    let (one, two, ()) = tokio::join!(look(&world, INSTANCE), look(&other, SECOND), async {
        while world.store.waiting.load(Ordering::SeqCst) < 2 {
            tokio::task::yield_now().await;
        }
        world.get("state").await.ok();
        world.store.set_lookups(Fault::None);
    });
    one.ok();
    two.ok();
}

#[tokio::test]
async fn a_worker_hears_at_attach_that_the_run_is_cancelled() {
    let world = World::new().await;
    world.store.request_cancel(world.run, &AskedBy::default()).await.unwrap();
    assert_eq!(world.attach("pod-1", INSTANCE).await.ok()["cancel"], true);
}

#[tokio::test]
async fn an_answer_to_attach_that_has_not_gone_out_takes_its_place_in_the_budget() {
    let world = World::attached().await;
    let claim = json!({ "claimId": uuid::Uuid::from_u128(1), "policy": "ask", "key": "k",
        "arguments": "x".repeat(5_000) });
    world.post("calls/pay/claim", claim.to_string()).await.ok();
    world.lose_pod(1).await;
    let world = world.with(Config { answer_budget: 6_000, ..quick() });
    let request = world.request("POST", "attach").header("authorization", "Bearer token-of-pod-2");
    let body = json!({ "instance": SECOND }).to_string();
    let held = router(world.gateway.clone()).oneshot(request.body(Body::from(body)).unwrap()).await.unwrap();
    assert_eq!(held.status(), 200);
    let answer = world.attach("pod-2", SECOND).await;
    assert_eq!((answer.status, answer.code().as_str()), (503, "UNAVAILABLE"));
    assert!(answer.detail().contains("bytes"), "{}", answer.detail());
    drop(held);
    assert_eq!(world.attach("pod-2", SECOND).await.ok()["unsettledCalls"][0]["id"], "pay");
}
