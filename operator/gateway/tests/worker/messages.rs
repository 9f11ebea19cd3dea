//! Messages: people send them, the worker reads and takes them; and what else people write.

use dalsegno_model::Read as _;
use dalsegno_protocol::Limits;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::context::*;

const MESSAGES: &str = "shop/agentruns/nightly/messages";

impl TestContext {
    async fn write(&self, token: &str, path: &str, body: &Value) -> Answer {
        self.write_text(token, path, body.to_string()).await
    }

    async fn write_text(&self, token: &str, path: &str, body: String) -> Answer {
        let request = axum::http::Request::builder()
            .method("POST")
            .uri(format!("/v1/namespaces/{path}"))
            .header("authorization", format!("Bearer {token}"));
        self.send(request, body).await
    }

    async fn look(&self, token: &str, path: &str) -> Answer {
        let request = axum::http::Request::builder()
            .uri(format!("/v1/namespaces/{path}"))
            .header("authorization", format!("Bearer {token}"));
        self.send(request, "").await
    }
}

fn message(id: &str) -> Value {
    json!({ "id": id, "topic": "price", "value": { "text": id } })
}

fn taking(id: u128, positions: &[i64]) -> String {
    json!({ "commitId": Uuid::from_u128(id), "state": id as u64, "inbox": positions }).to_string()
}

#[tokio::test]
async fn a_person_sends_a_message_and_the_worker_takes_it() {
    let ctx = TestContext::attached().await;
    let sent = ctx.write("ada", MESSAGES, &message("a")).await.ok();
    assert_eq!(sent, json!({ "result": "ok", "position": 1 }));
    assert_eq!(ctx.post("heartbeat", "").await.ok()["inbox"], 1);
    let inbox = ctx.get("inbox?after=0").await.ok();
    let at = inbox["messages"][0]["at"].as_str().unwrap().to_owned();
    at.parse::<jiff::Timestamp>().unwrap();
    let unread = json!({ "position": 1, "id": "a", "topic": "price", "value": { "text": "a" }, "author": "ada", "at": at });
    assert_eq!(inbox, json!({ "messages": [unread] }));

    let committed = ctx.post("turns/1", taking(1, &[1])).await.ok();
    assert_eq!(committed["inbox"], 1);
    assert_eq!(ctx.get("inbox").await.ok(), json!({ "messages": [] }));
    let mut taken = unread.clone();
    taken["takenBy"] = json!({ "turn": 1, "boundary": "result" });
    assert_eq!(ctx.look("ada", MESSAGES).await.ok(), json!({ "messages": [taken] }));
    assert_eq!(ctx.look("ada", &format!("{MESSAGES}?after=1")).await.ok(), json!({ "messages": [] }));

    let run = ctx.store.get_run(ctx.run).await.unwrap().unwrap();
    assert_eq!((run.inbox.position, run.inbox.unread), (1, 0));
}

#[tokio::test]
async fn an_attach_names_the_latest_message_and_the_next_worker_reads_it_again() {
    let ctx = TestContext::attached().await;
    ctx.write("ada", MESSAGES, &message("a")).await.ok();
    ctx.get("inbox").await.ok();
    ctx.lose_pod(1).await;
    assert_eq!(ctx.get("inbox").await.code(), "FENCED");
    let attached = ctx.attach("pod-2", SECOND).await.ok();
    assert_eq!(attached["inbox"], 1);
}

#[tokio::test]
async fn a_message_may_be_sent_again_and_an_id_names_one() {
    let ctx = TestContext::attached().await;
    ctx.write("ada", MESSAGES, &message("a")).await.ok();
    let again = ctx.write("ada", MESSAGES, &message("a")).await.ok();
    assert_eq!(again, json!({ "result": "duplicate", "position": 1 }));
    let other = json!({ "id": "a", "topic": "price", "value": 2 });
    assert_eq!(ctx.write("ada", MESSAGES, &other).await.code(), "CONFLICT");
    assert_eq!(ctx.write("bob", MESSAGES, &message("a")).await.code(), "CONFLICT", "another sender");
}

#[tokio::test]
async fn a_boundary_takes_only_unread_messages() {
    let ctx = TestContext::attached().await;
    ctx.write("ada", MESSAGES, &message("a")).await.ok();
    for (positions, text) in [
        (&[2][..], "`inbox` names 2, which is no unread message"),
        (&[1, 1], "`inbox` names 1 twice"),
        (&[0], "positions of messages are 1, 2, 3"),
    ] {
        let refused = ctx.post("turns/1", taking(1, positions)).await;
        assert_eq!((refused.status, refused.code().as_str()), (400, "INVALID"), "{positions:?}");
        assert!(refused.text.contains(text), "{refused:?}");
    }
    ctx.post("turns/1", taking(1, &[1])).await.ok();
    assert_eq!(ctx.post("turns/2", taking(2, &[1])).await.code(), "INVALID", "it was taken");
}

#[tokio::test]
async fn messages_have_limits() {
    let ctx = TestContext::attached().await;
    let sized = |bytes: usize| format!(r#"{{"id":"large","value":"{}"}}"#, "x".repeat(bytes - 2));
    let refused = ctx.write_text("ada", MESSAGES, sized(Limits::MESSAGE_BYTES + 1)).await;
    assert_eq!((refused.status, refused.code().as_str()), (413, "TOO_LARGE"));
    ctx.write_text("ada", MESSAGES, sized(Limits::MESSAGE_BYTES)).await.ok();
    for body in [
        json!({ "id": "", "value": 1 }),
        json!({ "id": "a b", "value": 1 }),
        json!({ "id": "a", "topic": "a b", "value": 1 }),
        json!({ "id": "a", "topic": "x".repeat(129), "value": 1 }),
        json!({ "id": "a" }),
        json!({ "id": "a", "value": 1, "author": "bob" }),
    ] {
        assert_eq!(ctx.write("ada", MESSAGES, &body).await.code(), "INVALID", "{body}");
    }
}

#[tokio::test]
async fn each_verb_and_document_is_a_right_of_its_own() {
    let ctx = TestContext::attached().await;
    ctx.write("bob", MESSAGES, &message("a")).await.ok();
    for document in ["messages", "audit", "state", "events", "export"] {
        let refused = ctx.look("bob", &format!("shop/agentruns/nightly/{document}")).await;
        assert_eq!((refused.status, refused.code().as_str()), (403, "FORBIDDEN"), "{document}");
        assert!(refused.text.contains(&format!("agentruns/{document}")), "{refused:?}");
    }
    assert_eq!(ctx.write("ada", "bank/agentruns/nightly/messages", &message("a")).await.code(), "FORBIDDEN");
    assert_eq!(ctx.write("ada", "shop/agentruns/no-such/messages", &message("a")).await.code(), "NOT_FOUND");
}

#[tokio::test]
async fn a_pod_of_the_run_is_no_person() {
    let ctx = TestContext::attached().await;
    ctx.lose_pod(1).await;
    let settle = json!({ "call": "pay", "outcome": "completed", "reason": "trust me" });
    for token in ["pod-pod-1", "pod-pod-2"] {
        for (path, body) in [("messages", &message("a")), ("settle", &settle)] {
            let refused = ctx.write(token, &format!("shop/agentruns/nightly/{path}"), body).await;
            assert_eq!((refused.status, refused.code().as_str()), (403, "FORBIDDEN"), "{token} {path}");
        }
    }
    let other = ctx.write("pod-of-a-service", MESSAGES, &message("a")).await.ok();
    assert_eq!(other["result"], "ok", "a service in a pod of its own");
    assert_eq!(ctx.write("token-of-pod-1", MESSAGES, &message("b")).await.code(), "UNAUTHENTICATED");
}

#[tokio::test]
async fn a_person_settles_a_call_and_the_audit_names_the_person() {
    let ctx = TestContext::attached().await;
    let claim = json!({ "claimId": Uuid::from_u128(1), "policy": "ask", "key": "k" });
    ctx.post("calls/pay/claim", claim.to_string()).await.ok();
    let settle = json!({ "call": "pay", "outcome": "completed", "result": { "receipt": 7 }, "reason": "the bank says so" });
    let path = "shop/agentruns/nightly/settle";
    assert_eq!(ctx.write("bob", path, &settle).await.code(), "CONFLICT", "its worker may still complete it");
    ctx.lose_pod(1).await;
    let unknown = json!({ "call": "other", "outcome": "failed", "reason": "x" });
    assert_eq!(ctx.write("bob", path, &unknown).await.code(), "NOT_FOUND");
    assert_eq!(ctx.write("bob", path, &settle).await.ok(), json!({ "result": "ok" }));
    assert_eq!(ctx.write("bob", path, &settle).await.ok(), json!({ "result": "duplicate" }));

    let (mut rows, mut after) = (Vec::new(), 0);
    loop {
        let page = ctx.look("ada", &format!("shop/agentruns/nightly/audit?after={after}")).await.ok();
        let Some(next) = page["next"].as_i64() else { break };
        rows.extend(page["rows"].as_array().unwrap().clone());
        after = next;
    }
    let stored = ctx.store.audit(ctx.run).await.unwrap();
    assert_eq!(rows.len(), stored.len());
    assert_eq!(rows[0]["kind"], "created");
    let settled = rows.iter().find(|row| row["kind"] == "settled").unwrap();
    assert_eq!(settled["actor"], "bob");
    assert!(settled["detail"].as_str().unwrap().contains("the bank says so"), "{settled}");
    assert!(settled["hash"].as_str().unwrap().starts_with("sha256:"));
}

#[tokio::test]
async fn a_run_that_is_over_takes_no_messages() {
    let ctx = TestContext::attached().await;
    let finish = json!({ "commitId": Uuid::nil(), "finish": { "outcome": "succeeded" } });
    ctx.post("finish", finish.to_string()).await.ok();
    let refused = ctx.write("ada", MESSAGES, &message("a")).await;
    assert_eq!((refused.status, refused.code().as_str()), (409, "FINISHED"));
}
