//! `POST finish`, `POST cancelled`, and a finish that is sent with the last boundary.

use dalsegno_model::{Operator as _, RequestedBy, RunOutcome};
use dalsegno_protocol::Limits;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::context::*;

fn finish(id: u128, finish: Value) -> String {
    json!({ "commitId": Uuid::from_u128(id), "finish": finish }).to_string()
}

#[tokio::test]
async fn a_finish_closes_the_run_and_its_retry_is_a_duplicate() {
    let ctx = TestContext::attached().await;
    ctx.post("turns/1", commit(1, "1")).await.ok();
    let body = finish(2, json!({ "outcome": "failed", "reason": "Stuck", "message": "no progress" }));
    let first = ctx.post("finish", body.clone()).await.ok();
    assert_eq!((&first["result"], &first["head"]["turn"]), (&json!("ok"), &json!(1)));
    assert_eq!(ctx.post("finish", body).await.ok()["result"], "duplicate");
    let record = ctx.record().await;
    let end = record.finish.unwrap();
    assert_eq!(
        (end.outcome, end.reason.as_str(), end.message.as_str()),
        (RunOutcome::Failed, "Stuck", "no progress")
    );
}

/// The output is shown in the AgentRun's status, and some Kubernetes clients cannot parse deeper JSON.
#[tokio::test]
async fn a_finish_output_has_its_own_nesting_limit() {
    let ctx = TestContext::attached().await;
    let output = |levels: usize| (0..levels).fold(json!(1), |inner, _| json!([inner]));
    let deep = json!({ "outcome": "succeeded", "output": output(Limits::SHOWN_DEPTH + 1) });
    let boundary = json!({ "commitId": Uuid::from_u128(1), "state": 1, "outcome": { "finish": deep } });
    for (path, body) in [("finish", finish(1, deep)), ("turns/1", boundary.to_string())] {
        let answer = ctx.post(path, body).await;
        assert_eq!((answer.status, answer.code().as_str()), (400, "INVALID"), "{path}");
        assert!(answer.detail().contains("`output` is nested deeper than 64 levels"), "{}", answer.detail());
    }
    let fits = json!({ "outcome": "succeeded", "output": output(Limits::SHOWN_DEPTH) });
    ctx.post("finish", finish(1, fits)).await.ok();
}

#[tokio::test]
async fn all_calls_after_a_finish_are_refused() {
    let ctx = TestContext::attached().await;
    ctx.post("finish", finish(1, json!({ "outcome": "succeeded" }))).await.ok();
    let claim = json!({ "claimId": Uuid::nil(), "policy": "ask", "key": "k" }).to_string();
    for (path, body) in [
        ("turns/1", commit(2, "1")),
        ("turns/1/plan", commit(2, "1")),
        ("finish", finish(2, json!({ "outcome": "failed" }))),
        ("calls/pay/claim", claim),
        ("park", json!({ "parkId": Uuid::nil() }).to_string()),
        ("heartbeat", String::new()),
        ("cancelled", String::new()),
    ] {
        let answer = ctx.post(path, body).await;
        assert_eq!((answer.status, answer.code().as_str()), (409, "FINISHED"), "{path}");
    }
    assert_eq!(ctx.record().await.finish.unwrap().reason, "Completed");
}

#[tokio::test]
async fn a_retried_boundary_with_a_finish_is_a_duplicate() {
    let ctx = TestContext::attached().await;
    let body = json!({
        "commitId": Uuid::from_u128(1), "state": 1, "outcome": { "finish": { "outcome": "succeeded" } },
    });
    let first = ctx.post("turns/1", body.to_string()).await.ok();
    let again = ctx.post("turns/1", body.to_string()).await.ok();
    assert_eq!((&again["result"], &again["head"]), (&json!("duplicate"), &first["head"]));
    assert_eq!(ctx.post("turns/1", commit(2, "2")).await.code(), "FINISHED");
}

#[tokio::test]
async fn a_run_without_a_commit_may_finish() {
    let ctx = TestContext::attached().await;
    let answer = ctx.post("finish", finish(1, json!({ "outcome": "succeeded", "output": null }))).await.ok();
    assert_eq!(answer.get("head"), None);
}

#[tokio::test]
async fn a_fenced_worker_cannot_finish() {
    let ctx = TestContext::attached().await;
    ctx.lose_pod(1).await;
    let answer = ctx.post("finish", finish(1, json!({ "outcome": "succeeded" }))).await;
    assert_eq!((answer.code().as_str(), &answer.json()["committed"]), ("FENCED", &json!(false)));
}

#[tokio::test]
async fn a_cancel_is_reported_by_the_next_call_and_nothing_is_accepted_after_its_acknowledgement() {
    let ctx = TestContext::attached().await;
    ctx.store.request_cancel(ctx.run, &RequestedBy::default()).await.unwrap();
    assert_eq!(ctx.post("turns/1", commit(1, "1")).await.ok()["cancel"], true);
    assert_eq!(ctx.post("heartbeat", "").await.ok()["cancel"], true);
    assert_eq!(ctx.post("cancelled", "").await.ok(), json!({ "result": "ok" }));
    assert_eq!(ctx.post("cancelled", "").await.ok(), json!({ "result": "ok" }));
    assert_eq!(ctx.record().await.finish.unwrap().outcome, RunOutcome::Cancelled);
    for path in ["turns/2", "turns/2/plan"] {
        let answer = ctx.post(path, commit(2, "2")).await;
        assert!(matches!(answer.code().as_str(), "FENCED" | "FINISHED"), "{}", answer.text);
    }
    let answer = ctx.post("heartbeat", "").await;
    assert!(matches!(answer.code().as_str(), "FENCED" | "FINISHED"), "{}", answer.text);
}

#[tokio::test]
async fn acknowledging_a_cancel_that_was_not_requested_is_a_conflict() {
    let ctx = TestContext::attached().await;
    let answer = ctx.post("cancelled", "").await;
    assert_eq!((answer.status, answer.code().as_str()), (409, "CONFLICT"));
    ctx.post("turns/1", commit(1, "1")).await.ok();
}

#[tokio::test]
async fn a_run_that_finished_after_a_cancel_request_stays_finished() {
    let ctx = TestContext::attached().await;
    ctx.store.request_cancel(ctx.run, &RequestedBy::default()).await.unwrap();
    ctx.post("finish", finish(1, json!({ "outcome": "succeeded" }))).await.ok();
    assert_eq!(ctx.post("cancelled", "").await.code(), "FINISHED");
    assert_eq!(ctx.record().await.finish.unwrap().outcome, RunOutcome::Succeeded);
}

#[tokio::test]
async fn control_characters_in_a_finish_message_are_replaced_by_spaces() {
    let message = json!({ "outcome": "failed", "message": "\u{1b}[2Jgone\r\n\u{0}\u{9b}H" });
    let with_boundary = json!({ "commitId": Uuid::nil(), "outcome": { "finish": message } }).to_string();
    for (path, body) in [("finish", finish(1, message)), ("turns/1", with_boundary)] {
        let ctx = TestContext::attached().await;
        ctx.post(path, body.clone()).await.ok();
        assert_eq!(ctx.post(path, body).await.ok()["result"], "duplicate");
        assert_eq!(ctx.record().await.finish.unwrap().message, " [2Jgone \n  H");
    }
}

#[tokio::test]
async fn an_invalid_finish_is_refused_with_a_reason() {
    let ctx = TestContext::attached().await;
    let output = Value::from("x".repeat(4 << 10));
    for (bad, why) in [
        (json!({ "outcome": "cancelled" }), "unknown variant"),
        (json!({ "reason": "Done" }), "outcome"),
        (json!({ "outcome": "failed", "reason": "two words" }), "CamelCase"),
        (json!({ "outcome": "failed", "reason": "" }), "`reason`"),
        (json!({ "outcome": "failed", "message": "é".repeat(513) }), "1026 are too many, the limit is 1024"),
        (json!({ "outcome": "failed", "output": output }), "the limit is 4096"),
        (json!({ "outcome": "failed", "extra": 1 }), "unknown field"),
    ] {
        let with_boundary = json!({ "commitId": Uuid::nil(), "outcome": { "finish": bad } }).to_string();
        for answer in
            [ctx.post("finish", finish(1, bad.clone())).await, ctx.post("turns/1", with_boundary).await]
        {
            assert_eq!(answer.code(), "INVALID", "{bad}");
            assert!(answer.detail().contains(why), "{bad}: {}", answer.detail());
        }
    }
    assert_eq!(ctx.record().await.finish, None);
}
