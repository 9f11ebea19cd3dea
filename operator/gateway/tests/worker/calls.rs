//! `POST calls/{id}/claim`, `complete`, `settle`.

use axum::body::Body;
use dalsegno_gateway::{Config, router};
use dalsegno_model::{Operator as _, Read as _, RunLimits};
use serde_json::{Value, json};
use tower::ServiceExt;
use uuid::Uuid;

use crate::context::*;

fn claim(id: u128, policy: &str, key: Option<&str>) -> String {
    let mut body = json!({ "claimId": Uuid::from_u128(id), "policy": policy, "arguments": { "cents": 5 } });
    if let Some(key) = key {
        body["key"] = key.into();
    }
    body.to_string()
}

fn complete(id: u128, outcome: &str, result: Value) -> String {
    json!({ "claimId": Uuid::from_u128(id), "outcome": outcome, "result": result }).to_string()
}

fn settle(outcome: &str) -> String {
    json!({ "outcome": outcome, "result": { "receipt": 7 }, "reason": "the ledger has the key" }).to_string()
}

#[tokio::test]
async fn a_call_is_claimed_and_completed() {
    let ctx = TestContext::attached().await;
    let go = ctx.post("calls/pay/claim", claim(1, "retrySameKey", Some("k-1"))).await.ok();
    assert_eq!(
        go,
        json!({ "verdict": "go", "call": {
            "id": "pay", "turn": 1, "policy": "retrySameKey", "key": "k-1", "state": "started",
            "arguments": { "cents": 5 },
        }})
    );
    let body = complete(1, "completed", json!({ "receipt": 7 }));
    assert_eq!(ctx.post("calls/pay/complete", body.clone()).await.ok(), json!({ "result": "ok" }));
    assert_eq!(ctx.post("calls/pay/complete", body).await.ok(), json!({ "result": "duplicate" }));
    let done = ctx.post("calls/pay/claim", claim(2, "retrySameKey", Some("k-1"))).await.ok();
    assert_eq!(done["verdict"], "done");
    assert_eq!(done["call"]["state"], "completed");
    assert_eq!(done["call"]["result"], json!({ "receipt": 7 }));
}

#[tokio::test]
async fn a_recovering_worker_finds_the_tool_of_an_open_call() {
    let ctx = TestContext::attached().await;
    let named = |id: u128, tool: Value| {
        let body = json!({ "claimId": Uuid::from_u128(id), "policy": "probe", "key": "k", "tool": tool });
        body.to_string()
    };
    let go = ctx.post("calls/pay/claim", named(1, "bank.pay".into())).await.ok();
    assert_eq!(go["call"]["tool"], "bank.pay");
    ctx.post("calls/tell/claim", named(2, "send mail/é".into())).await.ok();
    ctx.post("calls/tell/complete", complete(2, "completed", Value::Null)).await.ok();
    for (tool, why) in [
        (json!(""), "`tool` must have 1 to 128 characters"),
        (json!("x".repeat(129)), "`tool` must have 1 to 128 characters"),
        (json!("a\nb"), "control character"),
        (json!(7), "expected a string"),
    ] {
        let refused = ctx.post("calls/other/claim", named(3, tool.clone())).await;
        assert_eq!(refused.code(), "INVALID", "{tool}");
        assert!(refused.detail().contains(why), "{why}: {}", refused.detail());
    }
    ctx.lose_pod(1).await;
    let attached = ctx.attach("pod-2", SECOND).await.ok();
    assert_eq!(attached["unsettledCalls"][0]["tool"], "bank.pay");
    assert_eq!(attached["completedCalls"][0]["tool"], "send mail/é");
}

#[tokio::test]
async fn a_call_reports_what_it_has_used_and_a_limit_is_in_the_next_flags() {
    let ctx = TestContext::attached().await;
    let limits = RunLimits { turns: None, tokens: Some(1_000), cost_micro_usd: None, active_ms: None };
    ctx.store.set_limits(ctx.run, &limits).await.unwrap();
    let body = |id: u128, usage: Value| {
        json!({ "claimId": Uuid::from_u128(id), "outcome": "completed", "result": "hello", "usage": usage })
            .to_string()
    };
    ctx.post("calls/model/claim", claim(1, "readOnly", Some("k"))).await.ok();
    for usage in [json!({ "tokensIn": -1 }), json!({ "tokens": 1 }), json!(null)] {
        assert_eq!(
            ctx.post("calls/model/complete", body(1, usage.clone())).await.code(),
            "INVALID",
            "{usage}"
        );
    }
    let first = body(1, json!({ "tokensIn": 900, "costMicroUSD": 3 }));
    assert_eq!(ctx.post("calls/model/complete", first.clone()).await.ok(), json!({ "result": "ok" }));
    assert_eq!(ctx.post("calls/model/complete", first).await.ok(), json!({ "result": "duplicate" }));
    assert_eq!(ctx.post("heartbeat", "").await.ok()["limit"], false, "counted once");
    ctx.post("calls/again/claim", claim(2, "readOnly", Some("k"))).await.ok();
    ctx.post("calls/again/complete", body(2, json!({ "tokensOut": 100 }))).await.ok();
    assert_eq!(ctx.post("heartbeat", "").await.ok()["limit"], true);
    let used = ctx.store.get_run(ctx.run).await.unwrap().unwrap().usage;
    assert_eq!((used.tokens_in, used.tokens_out, used.cost_micro_usd), (900, 100, 3));
}

/// An attach returns all results of the open turn, so they must fit into its response.
#[tokio::test]
async fn results_too_large_for_an_attach_are_refused_and_smaller_ones_accepted() {
    let ctx = TestContext::attached().await.with_config(long_timeouts());
    let large = |id| complete(id, "completed", "x".repeat(14 << 20).into());
    for id in 1..=5 {
        ctx.post(&format!("calls/c{id}/claim"), claim(id, "probe", Some("k"))).await.ok();
    }
    for id in 1..=4 {
        ctx.post(&format!("calls/c{id}/complete"), large(id)).await.ok();
    }
    let refused = ctx.post("calls/c5/complete", large(5)).await;
    assert_eq!((refused.status, refused.code().as_str()), (413, "TOO_LARGE"));
    assert!(refused.detail().contains("1024 bytes"), "{}", refused.detail());
    let planned = json!([{ "id": "c6", "policy": "probe", "key": "k", "arguments": "x".repeat(10 << 20) }]);
    let plan = json!({ "commitId": Uuid::from_u128(1), "calls": planned, "openCalls": ["c5"] }).to_string();
    assert_eq!(ctx.post("turns/1/plan", plan).await.code(), "TOO_LARGE");
    ctx.post("calls/c5/complete", complete(5, "completed", json!({ "record": "c5" }))).await.ok();
    ctx.lose_pod(1).await;
    let attached = ctx.attach("pod-2", SECOND).await.ok();
    assert_eq!(attached["completedCalls"].as_array().unwrap().len(), 5);
}

#[tokio::test]
async fn a_large_response_to_a_claim_is_charged_until_it_is_sent_and_a_small_one_is_not() {
    let ctx = TestContext::attached().await;
    let large = json!({ "claimId": Uuid::from_u128(1), "policy": "probe", "key": "k",
        "arguments": "x".repeat(5_000) });
    let max_response_bytes = ctx.post("calls/large/claim", large.to_string()).await.text.len();
    let ctx = ctx.with_config(Config { max_response_bytes, max_connections: 4, ..test_config() });
    let request = ctx.request("POST", "calls/large/claim");
    let request = request.header("authorization", format!("Bearer {INSTANCE}"));
    let request = request.body(Body::from(large.to_string())).unwrap();
    let held = router(ctx.gateway.clone()).oneshot(request).await.unwrap();
    assert_eq!(held.status(), 200);
    let refused = ctx.post("calls/large/claim", large.to_string()).await;
    assert_eq!((refused.status, refused.code().as_str()), (503, "UNAVAILABLE"));
    ctx.post("calls/small/claim", claim(2, "probe", Some("k"))).await.ok();
    drop(held);
    assert_eq!(ctx.post("calls/large/claim", large.to_string()).await.ok()["verdict"], "go");
}

#[tokio::test]
async fn a_repeated_claim_is_go_and_another_claim_is_uncertain() {
    let ctx = TestContext::attached().await;
    ctx.post("calls/pay/claim", claim(1, "retrySameKey", Some("k-1"))).await.ok();
    let again = ctx.post("calls/pay/claim", claim(1, "retrySameKey", Some("k-1"))).await.ok();
    assert_eq!(again["verdict"], "go");
    let other = ctx.post("calls/pay/claim", claim(2, "retrySameKey", Some("k-1"))).await.ok();
    assert_eq!(other["verdict"], "uncertain");
}

#[tokio::test]
async fn claiming_a_planned_call_without_a_key_returns_the_planned_key() {
    let ctx = TestContext::attached().await;
    let call = json!({ "id": "pay", "policy": "probe", "key": "k-9", "arguments": [1] });
    let plan = json!({ "commitId": Uuid::from_u128(1), "calls": [call] }).to_string();
    ctx.post("turns/1/plan", plan).await.ok();
    let body = json!({ "claimId": Uuid::from_u128(1), "policy": "probe" }).to_string();
    let go = ctx.post("calls/pay/claim", body).await.ok();
    assert_eq!((&go["verdict"], &go["call"]["key"]), (&json!("go"), &json!("k-9")));
    assert_eq!(go["call"]["arguments"], json!([1]));
}

#[tokio::test]
async fn the_key_that_sdks_derive_from_the_longest_id_is_accepted() {
    let ctx = TestContext::attached().await;
    let [planned, claimed] = ["plan", "pay:"].map(|id| format!("{id:x<128}"));
    let key = |id: &str| format!("{}:{id}", ctx.run);
    let call = json!({ "id": planned, "policy": "probe", "key": key(&planned) });
    let plan = json!({ "commitId": Uuid::from_u128(1), "calls": [call] }).to_string();
    ctx.post("turns/1/plan", plan).await.ok();
    for (n, id) in [(1, planned), (2, claimed)] {
        let path = format!("calls/{}", id.replace(':', "%3A"));
        let go = ctx.post(&format!("{path}/claim"), claim(n, "probe", Some(&key(&id)))).await.ok();
        assert_eq!((&go["call"]["id"], &go["call"]["key"]), (&json!(id), &json!(key(&id))));
        ctx.post(&format!("{path}/complete"), complete(n, "completed", json!(1))).await.ok();
    }
}

#[tokio::test]
async fn a_new_call_without_a_key_is_invalid() {
    let ctx = TestContext::attached().await;
    let answer = ctx.post("calls/pay/claim", claim(1, "probe", None)).await;
    assert_eq!((answer.status, answer.code().as_str()), (400, "INVALID"));
}

#[tokio::test]
async fn the_next_attempt_claims_an_unsettled_call_with_the_stored_key() {
    let ctx = TestContext::attached().await;
    ctx.post("calls/pay/claim", claim(1, "retrySameKey", Some("k-1"))).await.ok();
    ctx.post("calls/search/claim", claim(2, "readOnly", Some("k-2"))).await.ok();
    ctx.post("calls/search/complete", complete(2, "completed", json!([1]))).await.ok();
    ctx.lose_pod(1).await;
    let attached = ctx.attach("pod-2", SECOND).await.ok();
    assert_eq!(attached["unsettledCalls"][0]["id"], "pay");
    assert_eq!(attached["unsettledCalls"][0]["key"], "k-1");
    assert_eq!(attached["completedCalls"][0]["result"], json!([1]));

    let refused = ctx.post_as(SECOND, "turns/1", commit(1, "1")).await;
    assert_eq!((refused.status, refused.code().as_str()), (409, "UNSETTLED_CALLS"));
    assert!(refused.detail().contains("settle"));

    let go = ctx.post_as(SECOND, "calls/pay/claim", claim(3, "retrySameKey", Some("k-1"))).await.ok();
    assert_eq!((&go["verdict"], &go["call"]["key"]), (&json!("go"), &json!("k-1")));
    ctx.post_as(SECOND, "calls/pay/complete", complete(3, "completed", json!(1))).await.ok();
    ctx.post_as(SECOND, "turns/1", commit(1, "1")).await.ok();
}

#[tokio::test]
async fn a_boundary_names_the_open_calls_that_it_passes_and_a_finish_passes_none() {
    let ctx = TestContext::attached().await;
    let boundary = |id: u128, more: Value| {
        let mut body = json!({ "commitId": Uuid::from_u128(id), "state": 1 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body.to_string()
    };
    let finish = json!({ "outcome": "succeeded" });
    ctx.post("calls/pay/claim", claim(1, "ask", Some("k-1"))).await.ok();
    for (path, body) in [
        ("turns/1/plan", boundary(2, json!({}))),
        ("turns/1", boundary(3, json!({ "openCalls": ["ship"] }))),
        ("turns/1", boundary(4, json!({ "openCalls": ["pay"], "outcome": { "finish": finish } }))),
        ("finish", json!({ "commitId": Uuid::from_u128(5), "finish": finish }).to_string()),
    ] {
        let refused = ctx.post(path, body.clone()).await;
        assert_eq!((refused.status, refused.code().as_str()), (409, "UNSETTLED_CALLS"), "{body}");
        assert!(refused.detail().contains("openCalls"), "{}", refused.detail());
    }
    ctx.post("turns/1", boundary(6, json!({ "openCalls": ["pay"] }))).await.ok();
    ctx.post("calls/pay/complete", complete(1, "completed", json!(1))).await.ok();
    ctx.post("turns/2", boundary(7, json!({ "outcome": { "finish": finish } }))).await.ok();
}

#[tokio::test]
async fn a_probe_settles_a_call_of_an_earlier_attempt() {
    let ctx = TestContext::attached().await;
    ctx.post("calls/pay/claim", claim(1, "probe", Some("k-1"))).await.ok();
    ctx.lose_pod(1).await;
    ctx.attach("pod-2", SECOND).await.ok();
    let uncertain = ctx.post_as(SECOND, "calls/pay/claim", claim(2, "probe", Some("k-1"))).await.ok();
    assert_eq!(uncertain["verdict"], "uncertain");
    let settled = ctx.post_as(SECOND, "calls/pay/settle", settle("completed")).await.ok();
    assert_eq!(settled, json!({ "result": "ok" }));
    let again = ctx.post_as(SECOND, "calls/pay/settle", settle("completed")).await.ok();
    assert_eq!(again, json!({ "result": "duplicate" }));
    assert_eq!(ctx.post_as(SECOND, "calls/pay/settle", settle("failed")).await.code(), "CONFLICT");
    let done = ctx.post_as(SECOND, "calls/pay/claim", claim(3, "probe", Some("k-1"))).await.ok();
    assert_eq!((&done["verdict"], &done["call"]["result"]), (&json!("done"), &json!({ "receipt": 7 })));
}

#[tokio::test]
async fn a_worker_cannot_settle_a_call_with_policy_ask() {
    let ctx = TestContext::attached().await;
    ctx.post("calls/pay/claim", claim(1, "ask", Some("k-1"))).await.ok();
    ctx.lose_pod(1).await;
    ctx.attach("pod-2", SECOND).await.ok();
    assert_eq!(ctx.post_as(SECOND, "calls/pay/settle", settle("completed")).await.code(), "CONFLICT");
}

#[tokio::test]
async fn completing_a_call_without_its_claim_is_refused() {
    let ctx = TestContext::attached().await;
    let body = complete(1, "completed", json!(1));
    let answer = ctx.post("calls/pay/complete", body.clone()).await;
    assert_eq!((answer.status, answer.code().as_str()), (404, "NOT_FOUND"));
    ctx.post("calls/pay/claim", claim(2, "probe", Some("k-1"))).await.ok();
    assert_eq!(ctx.post("calls/pay/complete", body).await.code(), "CONFLICT");
    ctx.post("calls/pay/complete", complete(2, "completed", json!(1))).await.ok();
    assert_eq!(ctx.post("calls/pay/complete", complete(2, "failed", json!(1))).await.code(), "CONFLICT");
    assert_eq!(ctx.post("calls/else/settle", settle("failed")).await.code(), "NOT_FOUND");
}

#[tokio::test]
async fn a_fenced_worker_claims_completes_and_settles_nothing() {
    let ctx = TestContext::attached().await;
    ctx.post("calls/pay/claim", claim(1, "probe", Some("k-1"))).await.ok();
    ctx.lose_pod(1).await;
    for (call, body) in [
        ("claim", claim(1, "probe", Some("k-1"))),
        ("complete", complete(1, "completed", json!(1))),
        ("settle", settle("completed")),
    ] {
        assert_eq!(ctx.post(&format!("calls/pay/{call}"), body).await.code(), "FENCED", "{call}");
    }
}

#[tokio::test]
async fn an_invalid_call_is_refused_with_a_reason() {
    let ctx = TestContext::attached().await;
    let long_key = claim(1, "probe", Some(&"k".repeat(257)));
    let claims = [
        ("a%20b", claim(1, "probe", Some("k")), "1 to 128 characters"),
        ("%C3%A9", claim(1, "probe", Some("k")), "1 to 128 characters"),
        ("pay", claim(1, "sometimes", Some("k")), "unknown variant"),
        ("pay", claim(1, "probe", Some("")), "`key`"),
        ("pay", claim(1, "probe", Some("a\u{0}b")), "control character"),
        ("pay", long_key, "1 to 256 characters"),
        ("pay", json!({ "policy": "probe", "key": "k" }).to_string(), "claimId"),
        ("pay", json!({ "claimId": "1", "policy": "probe", "key": "k" }).to_string(), "UUID"),
        ("pay", json!({ "claimId": Uuid::nil(), "key": "k" }).to_string(), "policy"),
    ];
    for (id, body, why) in claims {
        let answer = ctx.post(&format!("calls/{id}/claim"), body.clone()).await;
        assert_eq!(answer.code(), "INVALID", "{body}");
        assert!(answer.detail().contains(why), "{body}: {}", answer.detail());
    }
    let no_reason = json!({ "outcome": "completed", "reason": "" }).to_string();
    assert_eq!(ctx.post("calls/pay/settle", no_reason).await.code(), "INVALID");
    let no_outcome = json!({ "claimId": Uuid::nil(), "outcome": "maybe" }).to_string();
    assert_eq!(ctx.post("calls/pay/complete", no_outcome).await.code(), "INVALID");
}

#[tokio::test]
async fn a_refused_key_is_recorded_and_blocks_commits_until_a_person_settles_the_call() {
    let ctx = TestContext::attached().await;
    ctx.post("calls/pay/claim", claim(1, "retrySameKey", Some("k-1"))).await.ok();
    let refused = complete(1, "keyRefused", json!({ "status": 422 }));
    assert_eq!(ctx.post("calls/pay/complete", refused.clone()).await.ok(), json!({ "result": "ok" }));
    assert_eq!(ctx.post("calls/pay/complete", refused).await.ok(), json!({ "result": "duplicate" }));
    let claimed = ctx.post("calls/pay/claim", claim(1, "retrySameKey", Some("k-1"))).await.ok();
    assert_eq!((&claimed["verdict"], &claimed["call"]["state"]), (&json!("uncertain"), &json!("keyRefused")));
    assert_eq!(ctx.post("turns/1", commit(1, "1")).await.code(), "UNSETTLED_CALLS");
    assert_eq!(ctx.post("calls/pay/complete", complete(1, "completed", json!(1))).await.code(), "CONFLICT");
    let settled = ctx.post("calls/pay/settle", settle("completed")).await;
    assert!(settled.code() == "CONFLICT" && settled.detail().contains("only a person"), "{}", settled.text);
    assert_eq!(ctx.post("calls/pay/settle", settle("keyRefused")).await.code(), "INVALID");
    assert_eq!(ctx.record().await.calls.keys_refused, 1);
}
