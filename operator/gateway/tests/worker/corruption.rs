//! Data that is damaged in the store or was deleted from it. A retry does not help, and no problem asks for one.

use axum::body::{Body, to_bytes};
use dalsegno_gateway::router;
use dalsegno_model::{Admin as _, Operator as _, Retention, Shred, Shredded};
use dalsegno_protocol::Limits;
use dalsegno_store::{migrate, open_beside};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, SqliteConnection};
use tempfile::TempDir;
use tower::ServiceExt;
use uuid::Uuid;

use crate::context::*;
use crate::keys;

/// An encrypted run in a SQLite file; its worker has attached.
struct EncryptedRun {
    ctx: TestContext,
    url: String,
    _folders: [TempDir; 2],
}

impl EncryptedRun {
    async fn attached() -> Self {
        let (dir, keys) = (tempfile::tempdir().unwrap(), keys::folder());
        let url = format!("sqlite://{}", dir.path().join("runs.db").display());
        migrate(&url).await.unwrap();
        let store = open_beside(&url, keys::shared(&keys)).await.unwrap();
        let ctx = TestContext::with_store(store, test_config()).await;
        ctx.record_pod(1, "pod-1", Some(accepted())).await;
        ctx.attach("pod-1", INSTANCE).await.ok();
        Self { ctx, url, _folders: [dir, keys] }
    }

    /// Edits rows directly. At least one row must match.
    async fn edit(&self, sql: &str) {
        let mut conn = SqliteConnection::connect(&self.url).await.unwrap();
        let done = conn.execute(AssertSqlSafe(sql.to_owned())).await.unwrap();
        assert!(done.rows_affected() > 0, "{sql}");
    }
}

fn body(id: u128, more: Value) -> String {
    let mut body = json!({ "commitId": Uuid::from_u128(id) });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body.to_string()
}

fn claim(id: u128) -> String {
    json!({ "claimId": Uuid::from_u128(id), "policy": "probe" }).to_string()
}

/// Commits a turn, the plan of the next one, and a record. The call `done` is completed, `begun` is started, `planned`
/// is only planned.
async fn commit_work(ctx: &TestContext) {
    ctx.post("turns/1", body(1, json!({ "state": 1, "events": ["one"] }))).await.ok();
    let call = |id: &str| json!({ "id": id, "policy": "probe", "key": id, "arguments": { "of": id } });
    let calls = json!({ "calls": [call("done"), call("begun"), call("planned")] });
    ctx.post("turns/2/plan", body(2, calls)).await.ok();
    ctx.post("calls/done/claim", claim(1)).await.ok();
    ctx.post("calls/done/complete", completed()).await.ok();
    ctx.post("calls/begun/claim", claim(2)).await.ok();
    let batch = json!({ "batchId": Uuid::from_u128(9),
        "operations": [{ "put": { "space": "notes", "key": "a", "value": { "json": 1 } } }] });
    ctx.post("records", batch.to_string()).await.ok();
}

fn completed() -> String {
    json!({ "claimId": Uuid::from_u128(1), "outcome": "completed", "result": { "receipt": 7 } }).to_string()
}

async fn finish(ctx: &TestContext) {
    let batch = json!({ "outcome": { "finish": { "outcome": "succeeded" } }, "state": 2 });
    let settled = json!({ "claimId": Uuid::from_u128(2), "outcome": "completed" });
    ctx.post("calls/begun/complete", settled.to_string()).await.ok();
    ctx.post("turns/2", body(3, batch)).await.ok();
}

#[track_caller]
fn assert_problem(answer: &Answer, status: u16, code: &str) {
    assert_eq!((answer.status, answer.code().as_str()), (status, code), "{}", answer.text);
}

#[tokio::test]
async fn every_call_that_returns_a_damaged_result_is_checkpoint_corrupt() {
    let encrypted = EncryptedRun::attached().await;
    let ctx = &encrypted.ctx;
    commit_work(ctx).await;
    encrypted.edit("UPDATE calls SET result = arguments WHERE id = 'done'").await;
    let settle = json!({ "outcome": "completed", "reason": "the ledger", "result": { "receipt": 7 } });
    for answer in [
        ctx.attach("pod-1", INSTANCE).await,
        ctx.post("calls/done/claim", claim(3)).await,
        ctx.post("calls/done/complete", completed()).await,
        ctx.post("calls/done/settle", settle.to_string()).await,
    ] {
        assert_problem(&answer, 409, "CHECKPOINT_CORRUPT");
    }
    ctx.post("calls/planned/claim", claim(4)).await.ok();
}

#[tokio::test]
async fn every_call_that_returns_damaged_arguments_is_checkpoint_corrupt() {
    let encrypted = EncryptedRun::attached().await;
    let ctx = &encrypted.ctx;
    commit_work(ctx).await;
    encrypted.edit("UPDATE calls SET arguments = substr(arguments, 1, 20) WHERE id = 'planned'").await;
    assert_problem(&ctx.post("calls/planned/claim", claim(3)).await, 409, "CHECKPOINT_CORRUPT");
    ctx.attach("pod-1", INSTANCE).await.ok();
    encrypted.edit("UPDATE calls SET arguments = substr(arguments, 1, 20) WHERE id = 'begun'").await;
    ctx.lose_pod(1).await;
    assert_problem(&ctx.attach("pod-2", SECOND).await, 409, "CHECKPOINT_CORRUPT");
}

#[tokio::test]
async fn reading_a_damaged_record_is_checkpoint_corrupt() {
    let encrypted = EncryptedRun::attached().await;
    commit_work(&encrypted.ctx).await;
    encrypted.edit("UPDATE records SET value = substr(value, 1, 20)").await;
    assert_problem(&encrypted.ctx.get("records?space=notes").await, 409, "CHECKPOINT_CORRUPT");
}

/// Reads that need a state.
const STATE_READS: [&str; 5] =
    ["state", "state?turn=1", "memory-delta?from=1&to=2", "checkpoint", "checkpoint?turn=1"];

fn metrics(ctx: &TestContext) -> String {
    let (mut registry, mut text) = (Registry::default(), String::new());
    ctx.gateway.register(&mut registry);
    encode(&mut text, &registry).unwrap();
    text
}

/// Asserts that deleted data counts as no failure.
fn assert_no_failure(ctx: &TestContext) {
    let text = metrics(ctx);
    let mut failures = text.lines().filter(|line| line.contains("failure="));
    assert!(failures.all(|line| line.ends_with(" 0")), "{text}");
}

#[tokio::test]
async fn damage_found_during_an_export_cuts_it_off_and_is_counted() {
    let encrypted = EncryptedRun::attached().await;
    let ctx = &encrypted.ctx;
    commit_work(ctx).await;
    encrypted.edit("UPDATE boundaries SET ops = substr(ops, 1, 20) WHERE ops IS NOT NULL").await;
    let request = ctx.request("GET", "export").header("authorization", format!("Bearer {INSTANCE}"));
    let request = request.body(Body::empty()).unwrap();
    let bundle = router(ctx.gateway.clone()).oneshot(request).await.unwrap();
    assert_eq!(bundle.status(), 200, "the response has started");
    assert!(to_bytes(bundle.into_body(), usize::MAX).await.is_err());
    let text = metrics(ctx);
    assert!(text.contains(r#"store_failures_total{failure="corrupt"} 1"#), "{text}");
}

#[tokio::test]
async fn damage_found_by_a_commit_is_counted_as_corrupt() {
    let encrypted = EncryptedRun::attached().await;
    let ctx = &encrypted.ctx;
    ctx.post("turns/1", body(1, json!({ "state": 1 }))).await.ok();
    // So close to the limit that the store must rebuild the state to count the next boundary.
    encrypted.edit(&format!("UPDATE runs SET state_bytes = {}", Limits::STATE_BYTES - 1)).await;
    encrypted.edit("UPDATE boundaries SET ops = substr(ops, 1, 20)").await;
    let append = json!({ "channels": { "append": { "log": [{ "json": 1 }] } } });
    assert_problem(&ctx.post("turns/2", body(2, append)).await, 409, "CHECKPOINT_CORRUPT");
    let text = metrics(ctx);
    assert!(text.contains(r#"commit_seconds_count{outcome="corrupt"} 1"#), "{text}");
    assert!(!text.contains(r#"commit_seconds_count{outcome="unavailable""#), "{text}");
    assert!(text.contains(r#"store_failures_total{failure="unavailable"} 0"#), "{text}");
}

#[tokio::test]
async fn a_shredded_run_is_not_found_and_not_corrupt() {
    let encrypted = EncryptedRun::attached().await;
    let ctx = &encrypted.ctx;
    commit_work(ctx).await;
    finish(ctx).await;
    for path in STATE_READS.into_iter().chain(["records?space=notes"]) {
        ctx.get(path).await.ok();
    }
    let shred = Shred { run: ctx.run, actor: "ada".into(), reason: "requested".into() };
    assert_eq!(ctx.store.shred(&shred).await.unwrap(), Shredded::Done);
    for path in STATE_READS.into_iter().chain(["records?space=notes"]) {
        let answer = ctx.get(path).await;
        assert_problem(&answer, 404, "NOT_FOUND");
        assert!(answer.detail().contains("the data existed and was deleted"), "{path}: {}", answer.text);
    }
    assert_eq!(ctx.get("events").await.ok()["events"], json!([]));
    for (path, late) in [
        ("turns/3", body(4, json!({ "state": 3 }))),
        (
            "calls/late/claim",
            json!({ "claimId": Uuid::from_u128(5), "policy": "ask", "key": "k", "arguments": 1 }).to_string(),
        ),
    ] {
        assert_problem(&ctx.post(path, late).await, 404, "NOT_FOUND");
    }
    assert_no_failure(ctx);
}

#[tokio::test]
async fn an_expired_run_has_no_states_and_no_records() {
    let ctx = TestContext::attached().await;
    commit_work(&ctx).await;
    finish(&ctx).await;
    let retention = Retention { days: 0, ..Retention::default() };
    ctx.store.set_retention(ctx.run, &retention).await.unwrap();
    while ctx.store.expire(ctx.run, 500).await.unwrap() != Default::default() {}
    for path in STATE_READS {
        let answer = ctx.get(path).await;
        assert_problem(&answer, 404, "NOT_FOUND");
        assert!(answer.detail().contains("the data existed and was deleted"), "{path}: {}", answer.text);
    }
    assert_eq!(ctx.get("records?space=notes").await.ok()["records"], json!([]));
    assert_eq!(ctx.get("events").await.ok()["events"], json!([]));
    assert_no_failure(&ctx);
}

#[tokio::test]
async fn a_deleted_head_of_an_unfinished_run_is_checkpoint_corrupt() {
    let encrypted = EncryptedRun::attached().await;
    commit_work(&encrypted.ctx).await;
    encrypted.edit("UPDATE boundaries SET ops = NULL, events = NULL, dropped = 1").await;
    assert_problem(&encrypted.ctx.attach("pod-1", INSTANCE).await, 409, "CHECKPOINT_CORRUPT");
}
