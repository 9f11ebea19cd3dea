//! `GET proposal`: what people are asked to decide.

use dalsegno_format::proposal::HashedProposal;
use serde_json::{Value, json};

use crate::context::*;

const PROPOSAL: &str = "shop/agentruns/nightly/proposal";

impl TestContext {
    async fn proposal(&self, token: &str, query: &str) -> Answer {
        let request = axum::http::Request::builder()
            .uri(format!("/v1/namespaces/{PROPOSAL}{query}"))
            .header("authorization", format!("Bearer {token}"));
        self.send(request, "").await
    }
}

/// The body of an approval. Its JSON has spaces that a parser would drop.
const BODY: &str = r#"{"kind":"approval","title":"Pay","summary":"It is due.","proposal":{"cents":  500},"deadlineSeconds":600}"#;

/// A run that has asked, and the answer to its worker.
async fn asked() -> (TestContext, Value) {
    let ctx = TestContext::attached().await;
    ctx.post("turns/1", commit(1, "1")).await.ok();
    let opened = ctx.post("waits/pay", BODY).await.ok();
    (ctx, opened)
}

#[tokio::test]
async fn a_person_reads_the_proposal_as_the_worker_sent_it_and_can_check_its_hash() {
    let (ctx, opened) = asked().await;
    let answer = ctx.proposal("ada", "?wait=pay&epoch=1").await;
    let read = answer.ok();
    assert!(answer.text.contains(BODY), "byte for byte: {}", answer.text);
    assert_eq!((&read["wait"], &read["epoch"], &read["turn"]), (&json!("pay"), &json!(1), &json!(2)));
    assert_eq!(read["proposalHash"], opened["proposalHash"]);
    let deadline: jiff::Timestamp = read["deadlineTime"].as_str().unwrap().parse().unwrap();
    assert!(deadline > jiff::Timestamp::now());

    let salt = u128::from_str_radix(read["salt"].as_str().unwrap(), 16).unwrap().to_be_bytes();
    let hashed =
        HashedProposal { salt: &salt, title: "Pay", summary: "It is due.", proposal: r#"{"cents":  500}"# };
    assert_eq!(read["proposalHash"], dalsegno_format::header::render(&hashed.hash()));
    let other = HashedProposal { proposal: r#"{"cents":  5}"#, ..hashed };
    assert_ne!(read["proposalHash"], dalsegno_format::header::render(&other.hash()));
}

#[tokio::test]
async fn a_proposal_is_found_by_its_wait_and_its_epoch_only() {
    let (ctx, _) = asked().await;
    for query in ["?wait=pay&epoch=2", "?wait=ship&epoch=1"] {
        let answer = ctx.proposal("ada", query).await;
        assert_eq!((answer.status, answer.code().as_str()), (404, "NOT_FOUND"), "{query}");
    }
    for query in
        ["", "?wait=pay", "?epoch=1", "?wait=pay&epoch=0", "?wait=pay&epoch=x", "?wait=pay&epoch=1&turn=2"]
    {
        let answer = ctx.proposal("ada", query).await;
        assert_eq!((answer.status, answer.code().as_str()), (400, "INVALID"), "{query}");
    }
}

#[tokio::test]
async fn who_may_not_get_it_reads_no_proposal() {
    let (ctx, _) = asked().await;
    let denied = ctx.proposal("bob", "?wait=pay&epoch=1").await;
    assert_eq!((denied.status, denied.code().as_str()), (403, "FORBIDDEN"));
    assert!(denied.detail().contains("agentruns/proposal"), "{}", denied.detail());
    let unknown = ctx.proposal("nobody", "?wait=pay&epoch=1").await;
    assert_eq!((unknown.status, unknown.code().as_str()), (401, "UNAUTHENTICATED"));
}

#[tokio::test]
async fn a_wait_that_proposes_nothing_has_no_hash() {
    let ctx = TestContext::attached().await;
    let body = json!({ "kind": "message", "topic": "go" }).to_string();
    ctx.post("waits/go", body).await.ok();
    let read = ctx.proposal("ada", "?wait=go&epoch=1").await.ok();
    assert_eq!((&read["proposalHash"], &read["salt"]), (&Value::Null, &Value::Null));
    assert_eq!(read["request"]["topic"], "go");
}
