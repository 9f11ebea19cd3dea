//! What is damaged in the store, or gone from it: no retry brings it back, and no worker is told to try.

use axum::body::{Body, to_bytes};
use dalsegno_gateway::router;
use dalsegno_protocol::Limits;
use dalsegno_store::{Admin as _, Operator as _, Retention, Shredded, migrate, open_beside};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, SqliteConnection};
use tempfile::TempDir;
use tower::ServiceExt;
use uuid::Uuid;

use crate::keys;
use crate::world::*;

/// A worker that has attached, its run sealed in a file.
struct Sealed {
    world: World,
    url: String,
    _folders: [TempDir; 2],
}

impl Sealed {
    async fn attached() -> Self {
        let (dir, keys) = (tempfile::tempdir().unwrap(), keys::folder());
        let url = format!("sqlite://{}", dir.path().join("runs.db").display());
        migrate(&url).await.unwrap();
        let store = open_beside(&url, keys::shared(&keys)).await.unwrap();
        let world = World::before(store, quick()).await;
        world.record_pod(1, "pod-1", Some(accepted())).await;
        world.attach("pod-1", INSTANCE).await.ok();
        Self { world, url, _folders: [dir, keys] }
    }

    /// Edits rows; at least one must be hit.
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

/// A turn, the plan of another, and a record: the call `done` is completed, `begun` is started, `planned` is neither.
async fn work(world: &World) {
    world.post("turns/1", body(1, json!({ "state": 1, "events": ["one"] }))).await.ok();
    let call = |id: &str| json!({ "id": id, "policy": "probe", "key": id, "arguments": { "of": id } });
    let calls = json!({ "calls": [call("done"), call("begun"), call("planned")] });
    world.post("turns/2/plan", body(2, calls)).await.ok();
    world.post("calls/done/claim", claim(1)).await.ok();
    world.post("calls/done/complete", completed()).await.ok();
    world.post("calls/begun/claim", claim(2)).await.ok();
    let batch = json!({ "batchId": Uuid::from_u128(9),
        "operations": [{ "put": { "space": "notes", "key": "a", "value": { "json": 1 } } }] });
    world.post("records", batch.to_string()).await.ok();
}

fn completed() -> String {
    json!({ "claimId": Uuid::from_u128(1), "outcome": "completed", "result": { "receipt": 7 } }).to_string()
}

async fn finish(world: &World) {
    let batch = json!({ "outcome": { "finish": { "outcome": "succeeded" } }, "state": 2 });
    let settled = json!({ "claimId": Uuid::from_u128(2), "outcome": "completed" });
    world.post("calls/begun/complete", settled.to_string()).await.ok();
    world.post("turns/2", body(3, batch)).await.ok();
}

#[track_caller]
fn is(answer: &Answer, status: u16, code: &str) {
    assert_eq!((answer.status, answer.code().as_str()), (status, code), "{}", answer.text);
}

#[tokio::test]
async fn a_damaged_result_is_refused_as_damage_wherever_it_would_be_handed_out() {
    let sealed = Sealed::attached().await;
    let world = &sealed.world;
    work(world).await;
    sealed.edit("UPDATE calls SET result = arguments WHERE id = 'done'").await;
    let settle = json!({ "outcome": "completed", "reason": "the ledger", "result": { "receipt": 7 } });
    for answer in [
        world.attach("pod-1", INSTANCE).await,
        world.post("calls/done/claim", claim(3)).await,
        world.post("calls/done/complete", completed()).await,
        world.post("calls/done/settle", settle.to_string()).await,
    ] {
        is(&answer, 409, "CHECKPOINT_CORRUPT");
    }
    world.post("calls/planned/claim", claim(4)).await.ok();
}

#[tokio::test]
async fn damaged_arguments_are_refused_as_damage_to_whoever_would_go_on_with_them() {
    let sealed = Sealed::attached().await;
    let world = &sealed.world;
    work(world).await;
    sealed.edit("UPDATE calls SET arguments = substr(arguments, 1, 20) WHERE id = 'planned'").await;
    is(&world.post("calls/planned/claim", claim(3)).await, 409, "CHECKPOINT_CORRUPT");
    world.attach("pod-1", INSTANCE).await.ok();
    sealed.edit("UPDATE calls SET arguments = substr(arguments, 1, 20) WHERE id = 'begun'").await;
    world.lose_pod(1).await;
    is(&world.attach("pod-2", SECOND).await, 409, "CHECKPOINT_CORRUPT");
}

#[tokio::test]
async fn a_damaged_record_is_refused_as_damage() {
    let sealed = Sealed::attached().await;
    work(&sealed.world).await;
    sealed.edit("UPDATE records SET value = substr(value, 1, 20)").await;
    is(&sealed.world.get("records?space=notes").await, 409, "CHECKPOINT_CORRUPT");
}

/// What shows a state or a part of it.
const OF_STATES: [&str; 5] =
    ["state", "state?turn=1", "memory-delta?from=1&to=2", "checkpoint", "checkpoint?turn=1"];

fn metrics(world: &World) -> String {
    let (mut registry, mut text) = (Registry::default(), String::new());
    world.gateway.register(&mut registry);
    encode(&mut text, &registry).unwrap();
    text
}

/// What was gone is not counted among failures.
fn no_failure(world: &World) {
    let text = metrics(world);
    let mut failures = text.lines().filter(|line| line.contains("failure="));
    assert!(failures.all(|line| line.ends_with(" 0")), "{text}");
}

#[tokio::test]
async fn damage_that_a_bundle_meets_on_its_way_out_breaks_it_off_and_is_counted() {
    let sealed = Sealed::attached().await;
    let world = &sealed.world;
    work(world).await;
    sealed.edit("UPDATE boundaries SET ops = substr(ops, 1, 20) WHERE ops IS NOT NULL").await;
    let request = world.request("GET", "export").header("authorization", format!("Bearer {INSTANCE}"));
    let request = request.body(Body::empty()).unwrap();
    let bundle = router(world.gateway.clone()).oneshot(request).await.unwrap();
    assert_eq!(bundle.status(), 200, "it has begun");
    assert!(to_bytes(bundle.into_body(), usize::MAX).await.is_err());
    let text = metrics(world);
    assert!(text.contains(r#"store_failures_total{failure="corrupt"} 1"#), "{text}");
}

#[tokio::test]
async fn damage_that_a_commit_meets_is_counted_as_such() {
    let sealed = Sealed::attached().await;
    let world = &sealed.world;
    world.post("turns/1", body(1, json!({ "state": 1 }))).await.ok();
    // So large, or so it seems, that what follows must be counted with the state before it.
    sealed.edit(&format!("UPDATE runs SET state_bytes = {}", Limits::STATE_BYTES - 1)).await;
    sealed.edit("UPDATE boundaries SET ops = substr(ops, 1, 20)").await;
    let append = json!({ "channels": { "append": { "log": [{ "json": 1 }] } } });
    is(&world.post("turns/2", body(2, append)).await, 409, "CHECKPOINT_CORRUPT");
    let text = metrics(world);
    assert!(text.contains(r#"commit_seconds_count{outcome="corrupt"} 1"#), "{text}");
    assert!(!text.contains(r#"outcome="unavailable""#), "{text}");
    assert!(text.contains(r#"store_failures_total{failure="unavailable"} 0"#), "{text}");
}

#[tokio::test]
async fn of_a_shredded_run_everything_is_gone_and_nothing_is_damaged() {
    let sealed = Sealed::attached().await;
    let world = &sealed.world;
    work(world).await;
    finish(world).await;
    for path in OF_STATES.into_iter().chain(["records?space=notes"]) {
        world.get(path).await.ok();
    }
    assert_eq!(world.store.shred(world.run, "a wish", "ada").await.unwrap(), Shredded::Done);
    for path in OF_STATES.into_iter().chain(["records?space=notes"]) {
        let answer = world.get(path).await;
        is(&answer, 404, "NOT_FOUND");
        assert!(answer.detail().contains("it was there and is gone"), "{path}: {}", answer.text);
    }
    assert_eq!(world.get("events").await.ok()["events"], json!([]));
    for (path, late) in [
        ("turns/3", body(4, json!({ "state": 3 }))),
        (
            "calls/late/claim",
            json!({ "claimId": Uuid::from_u128(5), "policy": "ask", "key": "k", "arguments": 1 }).to_string(),
        ),
    ] {
        is(&world.post(path, late).await, 404, "NOT_FOUND");
    }
    no_failure(world);
}

#[tokio::test]
async fn of_an_expired_run_states_are_gone_and_records_are_none() {
    let world = World::attached().await;
    work(&world).await;
    finish(&world).await;
    let retention = Retention { days: 0, ..Retention::default() };
    world.store.set_retention(world.run, &retention).await.unwrap();
    while world.store.drop_expired(world.run, 500).await.unwrap() != Default::default() {}
    for path in OF_STATES {
        let answer = world.get(path).await;
        is(&answer, 404, "NOT_FOUND");
        assert!(answer.detail().contains("it was there and is gone"), "{path}: {}", answer.text);
    }
    assert_eq!(world.get("records?space=notes").await.ok()["records"], json!([]));
    assert_eq!(world.get("events").await.ok()["events"], json!([]));
    no_failure(&world);
}

#[tokio::test]
async fn what_is_gone_at_the_head_of_a_run_that_lives_is_damage() {
    let sealed = Sealed::attached().await;
    work(&sealed.world).await;
    sealed.edit("UPDATE boundaries SET ops = NULL, events = NULL, dropped = 1").await;
    is(&sealed.world.attach("pod-1", INSTANCE).await, 409, "CHECKPOINT_CORRUPT");
}
