//! `POST park`, and the flag `suspend`.

use dalsegno_model::{AttemptState, Cause, Class, Operator as _, Read as _, RequestedBy, RunOutcome};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::context::*;

fn park(id: u128) -> String {
    json!({ "parkId": Uuid::from_u128(id) }).to_string()
}

fn claim(id: u128, policy: &str) -> String {
    json!({ "claimId": Uuid::from_u128(id), "policy": policy, "key": "k" }).to_string()
}

fn complete(id: u128, outcome: &str) -> String {
    json!({ "claimId": Uuid::from_u128(id), "outcome": outcome }).to_string()
}

fn parked() -> Value {
    json!({ "result": "parked" })
}

fn ready() -> Value {
    json!({ "result": "ready" })
}

impl TestContext {
    async fn suspend(&self) {
        self.store.suspend(self.run, &RequestedBy::default()).await.unwrap();
    }

    async fn resume(&self) {
        self.store.resume(self.run, &RequestedBy::default()).await.unwrap();
    }

    /// A suspended run whose worker has attached.
    async fn suspended() -> Self {
        let ctx = Self::attached().await;
        ctx.suspend().await;
        ctx
    }
}

#[tokio::test]
async fn a_suspend_is_in_the_flags_of_every_answer_until_it_is_lifted() {
    let ctx = TestContext::new().await;
    ctx.suspend().await;
    assert_eq!(ctx.attach("pod-1", INSTANCE).await.ok()["suspend"], true);
    for (n, suspended) in [(1, true), (2, false), (3, true)] {
        if suspended {
            ctx.suspend().await;
        } else {
            ctx.resume().await;
        }
        for (path, body) in [
            (format!("turns/{n}/plan"), commit(n, "1")),
            (format!("turns/{n}"), commit(n + 10, "1")),
            ("heartbeat".into(), String::new()),
        ] {
            let answer = ctx.post(&path, body).await.ok();
            assert_eq!((&answer["suspend"], &answer["cancel"]), (&json!(suspended), &json!(false)), "{path}");
        }
    }
}

#[tokio::test]
async fn a_suspend_is_told_by_the_first_answer_that_carries_it() {
    let ctx = TestContext::suspended().await;
    assert_eq!(ctx.record().await.suspend.unwrap().told_at, None);
    ctx.post("heartbeat", "").await.ok();
    let told_at = ctx.record().await.suspend.unwrap().told_at;
    assert!(told_at.is_some());
    ctx.post("turns/1", commit(1, "1")).await.ok();
    assert_eq!(ctx.record().await.suspend.unwrap().told_at, told_at);
}

#[tokio::test]
async fn a_park_ends_the_attempt_and_its_retry_is_parked_too() {
    let ctx = TestContext::suspended().await;
    ctx.post("turns/1", commit(1, "1")).await.ok();
    for _ in 0..2 {
        assert_eq!(ctx.post("park", park(1)).await.ok(), parked());
    }
    let end = ctx.store.attempt(ctx.run, 1).await.unwrap().unwrap().end.unwrap();
    assert_eq!((end.cause, end.class, end.charged), (Cause::Suspended, Class::Neutral, false));
    let record = ctx.record().await;
    assert_eq!((record.attempt.number, record.attempt.state), (2, AttemptState::Reserved));
    assert_eq!((record.head.unwrap().turn, record.finish), (1, None));
}

#[tokio::test]
async fn after_a_park_nothing_more_is_accepted() {
    let ctx = TestContext::suspended().await;
    ctx.post("turns/1", commit(1, "1")).await.ok();
    ctx.post("park", park(1)).await.ok();
    let before = ctx.stored_run().await;
    let batch = json!({ "batchId": Uuid::nil(), "operations": [{ "delete": { "space": "s", "key": "k" } }] });
    let finish = json!({ "commitId": Uuid::nil(), "finish": { "outcome": "succeeded" } });
    for (path, body) in [
        ("park", park(2)),
        ("turns/1", commit(1, "1")),
        ("turns/2", commit(2, "2")),
        ("turns/2/plan", commit(2, "2")),
        ("calls/pay/claim", claim(1, "readOnly")),
        ("records", batch.to_string()),
        ("finish", finish.to_string()),
        ("heartbeat", String::new()),
        ("cancelled", String::new()),
    ] {
        let answer = ctx.post(path, body).await;
        assert_eq!((answer.status, answer.code().as_str()), (409, "FENCED"), "{path}");
    }
    assert_eq!(ctx.stored_run().await, before);
}

#[tokio::test]
async fn after_a_resume_the_next_attempt_continues_at_the_next_turn() {
    let ctx = TestContext::suspended().await;
    ctx.post("turns/1", commit(1, "1")).await.ok();
    ctx.post("park", park(1)).await.ok();
    ctx.resume().await;
    ctx.record_pod(2, "pod-2", Some(accepted())).await;
    let attached = ctx.attach("pod-2", SECOND).await.ok();
    assert_eq!((&attached["decision"], &attached["attempt"]), (&json!("resume"), &json!(2)));
    assert_eq!((&attached["head"]["turn"], &attached["suspend"]), (&json!(1), &json!(false)));
    // A late retry of the first attempt is still answered. It says nothing about the second attempt.
    assert_eq!(ctx.post("park", park(1)).await.ok(), parked());
    assert_eq!(ctx.post_as(SECOND, "park", park(1)).await.ok(), ready());
    ctx.post_as(SECOND, "turns/2", commit(2, "2")).await.ok();
}

#[tokio::test]
async fn a_worker_that_nobody_suspends_is_ready_and_goes_on() {
    let ctx = TestContext::attached().await;
    assert_eq!(ctx.post("park", park(1)).await.ok(), ready());
    ctx.suspend().await;
    ctx.post("heartbeat", "").await.ok();
    ctx.resume().await;
    assert_eq!(ctx.post("park", park(1)).await.ok(), ready());
    ctx.post("turns/1", commit(1, "1")).await.ok();
    // `ready` is not stored: the same id parks once there is a suspend.
    ctx.suspend().await;
    assert_eq!(ctx.post("park", park(1)).await.ok(), parked());
}

#[tokio::test]
async fn a_worker_parks_between_plan_and_result() {
    let ctx = TestContext::suspended().await;
    ctx.post("turns/1/plan", commit(1, "1")).await.ok();
    assert_eq!(ctx.post("park", park(1)).await.ok(), parked());
    let head = ctx.record().await.head.unwrap();
    assert_eq!((head.turn, head.boundary), (1, dalsegno_protocol::Boundary::Plan));
}

#[tokio::test]
async fn unsettled_calls_of_an_earlier_attempt_stop_a_park() {
    let ctx = TestContext::attached().await;
    ctx.post("calls/pay/claim", claim(1, "probe")).await.ok();
    ctx.lose_pod(1).await;
    ctx.attach("pod-2", SECOND).await.ok();
    ctx.suspend().await;
    let refused = ctx.post_as(SECOND, "park", park(1)).await;
    assert_eq!((refused.status, refused.code().as_str()), (409, "UNSETTLED_CALLS"));
    assert!(refused.detail().contains("settle"), "{}", refused.detail());
    let settle = json!({ "outcome": "completed", "reason": "the ledger has the key" }).to_string();
    ctx.post_as(SECOND, "calls/pay/settle", settle).await.ok();
    assert_eq!(ctx.post_as(SECOND, "park", park(1)).await.ok(), parked());
}

#[tokio::test]
async fn a_refused_key_stops_a_park() {
    let ctx = TestContext::suspended().await;
    ctx.post("calls/pay/claim", claim(1, "retrySameKey")).await.ok();
    ctx.post("calls/pay/complete", complete(1, "keyRefused")).await.ok();
    assert_eq!(ctx.post("park", park(1)).await.code(), "UNSETTLED_CALLS");
}

#[tokio::test]
async fn an_open_call_stops_a_park_unless_the_next_attempt_may_make_it_again() {
    for policy in ["probe", "ask"] {
        let ctx = TestContext::suspended().await;
        ctx.post("calls/pay/claim", claim(1, policy)).await.ok();
        let open = json!({ "commitId": Uuid::from_u128(1), "state": 1, "openCalls": ["pay"] });
        ctx.post("turns/1", open.to_string()).await.ok();
        let refused = ctx.post("park", park(1)).await;
        assert_eq!((refused.status, refused.code().as_str()), (409, "UNSETTLED_CALLS"), "{policy}");
        assert!(refused.detail().contains("complete it"), "{}", refused.detail());
        ctx.post("calls/pay/complete", complete(1, "completed")).await.ok();
        assert_eq!(ctx.post("park", park(1)).await.ok(), parked(), "{policy}");
    }
    for policy in ["retrySameKey", "readOnly"] {
        let ctx = TestContext::suspended().await;
        ctx.post("calls/pay/claim", claim(1, policy)).await.ok();
        assert_eq!(ctx.post("park", park(1)).await.ok(), parked(), "{policy}");
        ctx.record_pod(2, "pod-2", Some(accepted())).await;
        assert_eq!(ctx.attach("pod-2", SECOND).await.ok()["unsettledCalls"][0]["id"], "pay");
        assert_eq!(ctx.post_as(SECOND, "calls/pay/claim", claim(2, policy)).await.ok()["verdict"], "go");
    }
}

#[tokio::test]
async fn a_park_acknowledges_a_cancel_and_the_run_is_cancelled() {
    for suspended in [false, true] {
        let ctx = TestContext::attached().await;
        if suspended {
            ctx.suspend().await;
        }
        ctx.store.request_cancel(ctx.run, &RequestedBy::default()).await.unwrap();
        for _ in 0..2 {
            assert_eq!(ctx.post("park", park(1)).await.ok(), parked());
        }
        assert_eq!(ctx.record().await.finish.unwrap().outcome, RunOutcome::Cancelled);
        assert_eq!(ctx.post("park", park(2)).await.code(), "FENCED");
    }
}

#[tokio::test]
async fn a_finished_or_fenced_worker_cannot_park() {
    let ctx = TestContext::suspended().await;
    assert_eq!(ctx.post_as(SECOND, "park", park(1)).await.code(), "FENCED");
    let finish = json!({ "commitId": Uuid::nil(), "finish": { "outcome": "succeeded" } });
    ctx.post("finish", finish.to_string()).await.ok();
    assert_eq!(ctx.post("park", park(1)).await.code(), "FINISHED");

    let ctx = TestContext::suspended().await;
    ctx.lose_pod(1).await;
    assert_eq!(ctx.post("park", park(1)).await.code(), "FENCED");
    assert_eq!(ctx.record().await.attempt.number, 2);
}

#[tokio::test]
async fn a_park_of_an_unknown_run_is_fenced() {
    let ctx = TestContext::suspended().await;
    let unknown = TestContext { store: ctx.store.clone(), gateway: ctx.gateway.clone(), run: Uuid::nil() };
    assert_eq!(unknown.post("park", park(1)).await.code(), "FENCED");
}

#[tokio::test]
async fn an_invalid_park_is_refused_with_a_reason() {
    let ctx = TestContext::suspended().await;
    for (body, why) in [("", "empty"), ("{}", "parkId"), (r#"{"parkId":"1"}"#, "UUID")] {
        let answer = ctx.post("park", body).await;
        assert_eq!(answer.code(), "INVALID", "{body}");
        assert!(answer.detail().contains(why), "{body}: {}", answer.detail());
    }
    assert_eq!(ctx.record().await.attempt.number, 1);
}
