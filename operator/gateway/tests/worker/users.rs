//! Users read the same as the worker, by the run's namespace and name, with a token of their of_worker.

use axum::body::Body;
use dalsegno_gateway::{Config, router};
use dalsegno_model::{Admin as _, NamespaceAdoption, Operator as _, RequestedBy};
use dalsegno_proof::bundle::verify;
use serde_json::{Value, json};
use tower::ServiceExt;
use uuid::Uuid;

use crate::context::*;

impl TestContext {
    /// `GET` with this token.
    async fn read(&self, token: &str, path: &str) -> Answer {
        let request = axum::http::Request::builder()
            .method("GET")
            .uri(format!("/v1/namespaces/{path}"))
            .header("authorization", format!("Bearer {token}"));
        self.send(request, "").await
    }
}

/// A run with three committed turns.
async fn three_turns() -> TestContext {
    let ctx = TestContext::attached().await;
    for turn in 1..=3 {
        let id = Uuid::from_u128(turn);
        let body = format!(
            r#"{{"commitId":"{id}","state":{{"turn":  {turn}}},"events":["event {turn}"],"trigger":"TASK_END"}}"#
        );
        ctx.post(&format!("turns/{turn}"), body).await.ok();
    }
    ctx
}

#[tokio::test]
async fn an_authorized_user_reads_what_the_worker_reads() {
    let ctx = three_turns().await;
    let batch = json!({ "batchId": Uuid::from_u128(9),
        "operations": [{ "put": { "space": "notes", "key": "a", "value": { "json": 1 } } }] });
    ctx.post("records", batch.to_string()).await.ok();
    for path in [
        "state",
        "state?turn=2",
        "memory-delta?from=1&to=3",
        "events?from=2&limit=1",
        "checkpoint",
        "checkpoint?turn=2",
        "records?space=notes",
    ] {
        let (read, of_worker) =
            (ctx.read("ada", &format!("shop/agentruns/nightly/{path}")).await, ctx.get(path).await);
        read.ok();
        assert_eq!(read.text, of_worker.text, "{path}");
    }
    let bundle = ctx.read("ada", "shop/agentruns/nightly/export").await;
    let found = verify(bundle.text.as_bytes(), None).unwrap();
    assert_eq!((found.run.as_str(), found.boundaries, found.problems), ("shop/nightly", 3, vec![]));
}

#[tokio::test]
async fn a_user_may_still_read_after_a_recovery_and_after_deletion() {
    let ctx = three_turns().await;
    ctx.lose_pod(1).await;
    assert_eq!(ctx.get("state").await.code(), "FENCED");
    ctx.read("ada", "shop/agentruns/nightly/state").await.ok();
    ctx.store.mark_deleted("uid-nightly", &RequestedBy::default()).await.unwrap();
    ctx.read("ada", "shop/agentruns/nightly/state").await.ok();
}

#[tokio::test]
async fn users_of_a_recreated_namespace_read_nothing_of_the_earlier_one() {
    let ctx = three_turns().await;
    for token in ["ada-after-recreation", "ada-after-deletion"] {
        for call in ["state", "memory-delta", "events", "checkpoint", "export", "records?space=a"] {
            let (existing, missing) = (
                ctx.read(token, &format!("shop/agentruns/nightly/{call}")).await,
                ctx.read(token, &format!("shop/agentruns/no-such/{call}")).await,
            );
            assert_eq!((existing.status, existing.code().as_str()), (404, "NOT_FOUND"), "{token} {call}");
            assert_eq!(existing.text.replace("nightly", "no-such"), missing.text, "{token} {call}");
        }
    }
    let adoption = NamespaceAdoption {
        from: "uid-shop".into(),
        to: "uid-later".into(),
        actor: "root".into(),
        reason: "it was restored".into(),
    };
    ctx.store.adopt_namespace(&adoption).await.unwrap();
    ctx.read("ada-after-recreation", "shop/agentruns/nightly/state").await.ok();
    assert_eq!(ctx.read("ada", "shop/agentruns/nightly/state").await.code(), "NOT_FOUND");
}

#[tokio::test]
async fn a_user_may_read_a_stream_of_events() {
    let ctx = three_turns().await;
    let finish = json!({ "commitId": Uuid::nil(), "finish": { "outcome": "succeeded" } });
    ctx.post("finish", finish.to_string()).await.ok();
    let request = axum::http::Request::builder()
        .uri("/v1/namespaces/shop/agentruns/nightly/events?from=3")
        .header("accept", "text/event-stream")
        .header("authorization", "Bearer ada");
    let answer = ctx.send(request, "").await;
    assert!(
        answer.text.contains(r#"data: {"position":3,"turn":3,"attempt":1,"event":"event 3"}"#),
        "{answer:?}"
    );
}

#[tokio::test]
async fn an_unauthorized_user_cannot_tell_whether_a_run_exists() {
    let ctx = three_turns().await;
    ctx.other_run("bank", SECOND).await;
    for (token, status, code) in [
        ("ada", 403, "FORBIDDEN"),
        ("token-of-pod-1", 401, "UNAUTHENTICATED"),
        (INSTANCE, 401, "UNAUTHENTICATED"),
        ("for-another-audience", 401, "UNAUTHENTICATED"),
        ("review-fails", 503, "UNAVAILABLE"),
        ("", 401, "UNAUTHENTICATED"),
    ] {
        for call in ["state", "memory-delta", "events", "checkpoint", "export", "records?space=a"] {
            let (existing, missing) = (
                ctx.read(token, &format!("bank/agentruns/nightly/{call}")).await,
                ctx.read(token, &format!("bank/agentruns/no-such/{call}")).await,
            );
            assert_eq!((existing.status, existing.code().as_str()), (status, code), "{token} {call}");
            assert_eq!(existing.text.replace("nightly", "no-such"), missing.text, "{token} {call}");
        }
    }
    assert_eq!(ctx.read("ada", "shop/agentruns/no-such/state").await.code(), "NOT_FOUND");
}

#[tokio::test]
async fn a_user_may_not_write() {
    let ctx = three_turns().await;
    for path in ["state", "events", "export", "records", "turns/4", "attach", "finish"] {
        let request = axum::http::Request::builder()
            .method("POST")
            .uri(format!("/v1/namespaces/shop/agentruns/nightly/{path}"))
            .header("authorization", "Bearer ada");
        assert_eq!(ctx.send(request, commit(4, "1")).await.code(), "NOT_FOUND", "{path}");
    }
}

#[tokio::test]
async fn user_calls_beyond_the_total_are_refused_and_workers_are_not() {
    let ctx = three_turns().await.with_config(Config { max_user_calls: 0, ..test_config() });
    assert_eq!(ctx.read("ada", "shop/agentruns/nightly/state").await.code(), "UNAVAILABLE");
    ctx.get("state").await.ok();
}

#[tokio::test]
async fn one_user_may_have_half_of_the_user_calls() {
    let ctx = three_turns().await.with_config(Config { max_user_calls: 4, ..test_config() });
    let state = "shop/agentruns/nightly/state";
    let stream = || {
        let request = axum::http::Request::builder()
            .uri("/v1/namespaces/shop/agentruns/nightly/events")
            .header("accept", "text/event-stream")
            .header("authorization", "Bearer ada");
        router(ctx.gateway.clone()).oneshot(request.body(Body::empty()).unwrap())
    };
    let held = [stream().await.unwrap(), stream().await.unwrap()];
    assert_eq!(ctx.read("ada", state).await.code(), "TOO_MANY_REQUESTS");
    drop(held);
    ctx.read("ada", state).await.ok();
}

#[tokio::test]
async fn a_checkpoint_shows_one_boundary_while_the_run_commits_the_next() {
    let ctx = TestContext::attached().await;
    let body = |id, reference| {
        let channels = json!({ "append": { "memoryReferences": [{ "json": reference }] } });
        json!({ "commitId": Uuid::from_u128(id), "channels": channels }).to_string()
    };
    ctx.post("turns/1/plan", body(1, "of the plan")).await.ok();
    let second = ctx.second_gateway(test_config());
    let result = body(2, "of the result");
    ctx.store.run_after_next_read(async move {
        second.post("turns/1", result).await.ok();
    });
    let checkpoint = ctx.get("checkpoint").await.ok();
    assert_eq!(checkpoint["boundary"], "plan");
    assert_eq!(checkpoint["memoryReferences"], json!([{ "json": "of the plan" }]));
    assert_eq!(ctx.get("checkpoint").await.ok()["boundary"], "result");
}

#[tokio::test]
async fn only_the_current_worker_may_read_a_checkpoint() {
    let ctx = TestContext::attached().await;
    assert_eq!(ctx.get("checkpoint").await.code(), "NOT_FOUND");
    ctx.post("turns/1", commit(1, "1")).await.ok();
    let checkpoint = ctx.get("checkpoint").await.ok();
    assert_eq!((&checkpoint["run"], &checkpoint["turn"]), (&json!("shop/nightly"), &json!(1)));
    assert_eq!(checkpoint["trigger"], Value::Null);
    assert_eq!(ctx.get("checkpoint?turn=2").await.code(), "NOT_FOUND");
    assert_eq!(ctx.get("checkpoint?turn=0").await.code(), "INVALID");
    ctx.lose_pod(1).await;
    assert_eq!(ctx.get("checkpoint").await.code(), "FENCED");
}

#[tokio::test]
async fn the_facts_of_a_run_are_its_row_without_what_its_worker_has_written() {
    let ctx = three_turns().await;
    let claim = json!({ "claimId": Uuid::from_u128(7), "policy": "ask", "key": "secret-key" });
    ctx.post("calls/pay/claim", claim.to_string()).await.ok();
    let facts = ctx.read("ada", "shop/agentruns/nightly/facts").await;
    facts.ok();
    let found: dalsegno_model::Facts = serde_json::from_str(&facts.text).unwrap();
    assert_eq!((found.run.name.as_str(), found.run.head.map(|head| head.turn)), ("nightly", Some(3)));
    assert!(found.calls_to_settle.is_empty(), "the call is of the current attempt");
    for secret in ["secret-key", "event 3", "nonce"] {
        assert!(!facts.text.contains(secret), "{secret}: {}", facts.text);
    }
    ctx.lose_pod(1).await;
    let facts = ctx.read("ada", "shop/agentruns/nightly/facts").await;
    let found: dalsegno_model::Facts = serde_json::from_str(&facts.text).unwrap();
    assert_eq!(found.calls_to_settle, ["pay"]);
    assert_eq!(ctx.read("ada", "shop/agentruns/nightly/facts?turn=1").await.code(), "INVALID");
}

#[tokio::test]
async fn every_checkpoint_is_listed_with_an_id_that_finds_it() {
    let ctx = TestContext::attached().await;
    for (path, turn) in [("turns/1/plan", 1), ("turns/1", 2), ("turns/2", 3)] {
        let id = Uuid::from_u128(turn);
        ctx.post(path, format!(r#"{{"commitId":"{id}","state":{turn}}}"#)).await.ok();
    }
    let list = ctx.read("ada", "shop/agentruns/nightly/turns").await.ok();
    let listed = list["turns"].as_array().unwrap();
    assert_eq!(listed.len(), 3);
    for (state, entry) in (1..).zip(listed) {
        let id = entry["id"].as_str().unwrap();
        let found = ctx.read("ada", &format!("shop/agentruns/nightly/checkpoint?id={id}")).await.ok();
        assert_eq!((&found["id"], &found["contentHash"]), (&entry["id"], &entry["contentHash"]));
        assert_eq!(found["workingMemory"]["state"], json!({ "value": { "json": state } }), "{id}");
        assert_eq!(ctx.get(&format!("checkpoint?id={id}")).await.ok(), found, "the worker reads the same");
    }
    assert_eq!(ctx.get("checkpoint?id=9.2.1").await.code(), "NOT_FOUND");
    for query in ["id=9", "id=1.result.1", "id=1.2.1&turn=1"] {
        assert_eq!(ctx.get(&format!("checkpoint?{query}")).await.code(), "INVALID", "{query}");
    }
}

#[tokio::test]
async fn a_state_that_is_too_large_for_a_checkpoint_is_read_by_itself() {
    let ctx = TestContext::attached().await;
    let text = "x".repeat(dalsegno_protocol::Limits::INLINE_STATE_BYTES);
    let body = format!(r#"{{"commitId":"{}","state":"{text}"}}"#, Uuid::from_u128(1));
    ctx.post("turns/1", body).await.ok();
    let checkpoint = ctx.get("checkpoint").await.ok();
    assert_eq!(checkpoint["workingMemory"], Value::Null);
    assert_eq!(checkpoint["memoryDelta"]["added"]["state"]["items"], 1);
}
