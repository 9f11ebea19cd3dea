//! What people read: the same as the worker, by the name of the run, with a token of their own.

use axum::body::Body;
use dalsegno_gateway::{Config, router};
use dalsegno_store::proof::bundle::verify;
use dalsegno_store::{Admin as _, AskedBy, Operator as _};
use serde_json::{Value, json};
use tower::ServiceExt;
use uuid::Uuid;

use crate::world::*;

impl World {
    /// `GET` by whoever has this token.
    async fn read(&self, token: &str, path: &str) -> Answer {
        let request = axum::http::Request::builder()
            .method("GET")
            .uri(format!("/v1/namespaces/{path}"))
            .header("authorization", format!("Bearer {token}"));
        self.send(request, "").await
    }
}

/// A run of three turns.
async fn worked() -> World {
    let world = World::attached().await;
    for turn in 1..=3 {
        let id = Uuid::from_u128(turn);
        let body = format!(
            r#"{{"commitId":"{id}","state":{{"turn":  {turn}}},"events":["event {turn}"],"trigger":"TASK_END"}}"#
        );
        world.post(&format!("turns/{turn}"), body).await.ok();
    }
    world
}

#[tokio::test]
async fn a_person_who_may_reads_what_the_worker_reads() {
    let world = worked().await;
    let batch = json!({ "batchId": Uuid::from_u128(9),
        "operations": [{ "put": { "space": "notes", "key": "a", "value": { "json": 1 } } }] });
    world.post("records", batch.to_string()).await.ok();
    for path in [
        "state",
        "state?turn=2",
        "memory-delta?from=1&to=3",
        "events?from=2&limit=1",
        "checkpoint",
        "checkpoint?turn=2",
        "records?space=notes",
    ] {
        let (read, own) =
            (world.read("ada", &format!("shop/agentruns/nightly/{path}")).await, world.get(path).await);
        read.ok();
        assert_eq!(read.text, own.text, "{path}");
    }
    let bundle = world.read("ada", "shop/agentruns/nightly/export").await;
    let found = verify(bundle.text.as_bytes(), None).unwrap();
    assert_eq!((found.run.as_str(), found.boundaries, found.problems), ("shop/nightly", 3, vec![]));
}

#[tokio::test]
async fn a_person_reads_on_when_workers_are_replaced_and_the_run_is_gone() {
    let world = worked().await;
    world.lose_pod(1).await;
    assert_eq!(world.get("state").await.code(), "FENCED");
    world.read("ada", "shop/agentruns/nightly/state").await.ok();
    world.store.mark_deleted("uid-nightly", &AskedBy::default()).await.unwrap();
    world.read("ada", "shop/agentruns/nightly/state").await.ok();
}

#[tokio::test]
async fn a_namespace_that_was_made_again_reads_nothing_of_the_one_before() {
    let world = worked().await;
    for token in ["ada-after-it-was-made-again", "ada-after-it-was-deleted"] {
        for call in ["state", "memory-delta", "events", "checkpoint", "export", "records?space=a"] {
            let (there, nowhere) = (
                world.read(token, &format!("shop/agentruns/nightly/{call}")).await,
                world.read(token, &format!("shop/agentruns/no-such/{call}")).await,
            );
            assert_eq!((there.status, there.code().as_str()), (404, "NOT_FOUND"), "{token} {call}");
            assert_eq!(there.text.replace("nightly", "no-such"), nowhere.text, "{token} {call}");
        }
    }
    world.store.adopt_namespace("uid-shop", "uid-later", "root", "it was restored").await.unwrap();
    world.read("ada-after-it-was-made-again", "shop/agentruns/nightly/state").await.ok();
    assert_eq!(world.read("ada", "shop/agentruns/nightly/state").await.code(), "NOT_FOUND");
}

#[tokio::test]
async fn a_stream_of_events_goes_to_a_person_too() {
    let world = worked().await;
    let finish = json!({ "commitId": Uuid::nil(), "finish": { "outcome": "succeeded" } });
    world.post("finish", finish.to_string()).await.ok();
    let request = axum::http::Request::builder()
        .uri("/v1/namespaces/shop/agentruns/nightly/events?from=3")
        .header("accept", "text/event-stream")
        .header("authorization", "Bearer ada");
    let answer = world.send(request, "").await;
    assert!(
        answer.text.contains(r#"data: {"position":3,"turn":3,"attempt":1,"event":"event 3"}"#),
        "{answer:?}"
    );
}

#[tokio::test]
async fn who_may_not_read_learns_not_even_whether_there_is_such_a_run() {
    let world = worked().await;
    world.beside("bank", SECOND).await;
    for (token, status, code) in [
        ("ada", 403, "FORBIDDEN"),
        ("token-of-pod-1", 401, "UNAUTHENTICATED"),
        (INSTANCE, 401, "UNAUTHENTICATED"),
        ("for-another-audience", 401, "UNAUTHENTICATED"),
        ("nobody-knows", 503, "UNAVAILABLE"),
        ("", 401, "UNAUTHENTICATED"),
    ] {
        for call in ["state", "memory-delta", "events", "checkpoint", "export", "records?space=a"] {
            let (there, nowhere) = (
                world.read(token, &format!("bank/agentruns/nightly/{call}")).await,
                world.read(token, &format!("bank/agentruns/no-such/{call}")).await,
            );
            assert_eq!((there.status, there.code().as_str()), (status, code), "{token} {call}");
            assert_eq!(there.text.replace("nightly", "no-such"), nowhere.text, "{token} {call}");
        }
    }
    assert_eq!(world.read("ada", "shop/agentruns/no-such/state").await.code(), "NOT_FOUND");
}

#[tokio::test]
async fn a_person_writes_nothing() {
    let world = worked().await;
    for path in ["state", "events", "export", "records", "turns/4", "attach", "finish"] {
        let request = axum::http::Request::builder()
            .method("POST")
            .uri(format!("/v1/namespaces/shop/agentruns/nightly/{path}"))
            .header("authorization", "Bearer ada");
        assert_eq!(world.send(request, commit(4, "1")).await.code(), "NOT_FOUND", "{path}");
    }
}

#[tokio::test]
async fn no_more_people_read_at_once_than_may_and_workers_do_not_wait_for_them() {
    let world = worked().await.with(Config { readers: 0, ..quick() });
    assert_eq!(world.read("ada", "shop/agentruns/nightly/state").await.code(), "UNAVAILABLE");
    world.get("state").await.ok();
}

#[tokio::test]
async fn one_person_takes_no_more_than_half_of_the_places_for_people() {
    let world = worked().await.with(Config { readers: 4, ..quick() });
    let state = "shop/agentruns/nightly/state";
    let stream = || {
        let request = axum::http::Request::builder()
            .uri("/v1/namespaces/shop/agentruns/nightly/events")
            .header("accept", "text/event-stream")
            .header("authorization", "Bearer ada");
        router(world.gateway.clone()).oneshot(request.body(Body::empty()).unwrap())
    };
    let held = [stream().await.unwrap(), stream().await.unwrap()];
    assert_eq!(world.read("ada", state).await.code(), "TOO_MANY_REQUESTS");
    drop(held);
    world.read("ada", state).await.ok();
}

#[tokio::test]
async fn a_checkpoint_is_of_one_boundary_while_the_run_goes_on() {
    let world = World::attached().await;
    let body = |id, reference| {
        let channels = json!({ "append": { "memoryReferences": [{ "json": reference }] } });
        json!({ "commitId": Uuid::from_u128(id), "channels": channels }).to_string()
    };
    world.post("turns/1/plan", body(1, "of the plan")).await.ok();
    let beside = world.beside_it(quick());
    let result = body(2, "of the result");
    world.store.set_meanwhile(async move {
        beside.post("turns/1", result).await.ok();
    });
    let checkpoint = world.get("checkpoint").await.ok();
    assert_eq!(checkpoint["boundary"], "plan");
    assert_eq!(checkpoint["memoryReferences"], json!([{ "json": "of the plan" }]));
    assert_eq!(world.get("checkpoint").await.ok()["boundary"], "result");
}

#[tokio::test]
async fn a_checkpoint_is_told_to_the_current_worker_only() {
    let world = World::attached().await;
    assert_eq!(world.get("checkpoint").await.code(), "NOT_FOUND");
    world.post("turns/1", commit(1, "1")).await.ok();
    let checkpoint = world.get("checkpoint").await.ok();
    assert_eq!((&checkpoint["run"], &checkpoint["turn"]), (&json!("shop/nightly"), &json!(1)));
    assert_eq!(checkpoint["trigger"], Value::Null);
    assert_eq!(world.get("checkpoint?turn=2").await.code(), "NOT_FOUND");
    assert_eq!(world.get("checkpoint?turn=0").await.code(), "INVALID");
    world.lose_pod(1).await;
    assert_eq!(world.get("checkpoint").await.code(), "FENCED");
}
