//! `GET export`: the bundle of a run, for its own worker.

use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use dalsegno_gateway::{Config, router};
use dalsegno_store::proof::bundle::verify;
use futures::StreamExt;
use tower::ServiceExt;

use crate::world::*;

#[tokio::test]
async fn a_worker_gets_its_run_as_a_bundle_that_proves_itself() {
    let world = World::attached().await;
    for turn in 1..=3 {
        world.post(&format!("turns/{turn}"), commit(turn, r#"{"said":  "hello"}"#)).await.ok();
    }
    let answer = world.get("export").await;
    assert_eq!(
        (answer.status, &answer.headers["content-type"]),
        (200, &"application/x-ndjson".parse().unwrap())
    );
    let found = verify(answer.text.as_bytes(), None).unwrap();
    assert_eq!((found.run.as_str(), found.boundaries, found.problems), ("shop/nightly", 3, vec![]));
    assert!(answer.text.contains(r#"{\"said\":  \"hello\"}"#), "payloads are in it as they came");

    let cut = &answer.text[..answer.text.len() / 2];
    assert!(!verify(cut.as_bytes(), None).unwrap().problems.is_empty());
}

#[tokio::test]
async fn a_bundle_is_for_the_current_worker_only() {
    let world = World::attached().await;
    let beside = world.beside("bakery", SECOND).await;
    world.lose_pod(1).await;
    assert_eq!(world.get("export").await.code(), "FENCED");
    let stranger = beside.request("GET", "export").header("authorization", format!("Bearer {INSTANCE}"));
    assert_eq!(beside.send(stranger, "").await.code(), "FENCED");
    assert_eq!(world.get("export?turn=1").await.code(), "INVALID");
}

#[tokio::test]
async fn no_more_bundles_go_out_at_once_than_may() {
    let world = World::attached().await.with(Config { max_exports: 0, ..quick() });
    assert_eq!(world.get("export").await.code(), "UNAVAILABLE");
}

/// A bundle that has begun, and of which nothing was taken yet.
async fn begin(world: &World, bearer: &str) -> Response {
    let request = world.request("GET", "export").header("authorization", format!("Bearer {bearer}"));
    router(world.gateway.clone()).oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
}

/// Whether it comes whole.
async fn is_whole(bundle: Response) -> bool {
    let pieces = bundle.into_body().into_data_stream();
    pieces.all(async |piece| piece.is_ok()).await
}

#[tokio::test]
async fn of_one_run_a_single_bundle_goes_out_at_once() {
    let world = World::attached().await;
    let beside = world.beside("bakery", SECOND).await;
    let held = begin(&world, INSTANCE).await;
    assert_eq!(world.get("export").await.code(), "TOO_MANY_REQUESTS");
    let beside = begin(&beside, SECOND).await;
    assert!(is_whole(held).await && is_whole(beside).await);
    assert!(is_whole(begin(&world, INSTANCE).await).await);
}

#[tokio::test]
async fn a_bundle_breaks_off_when_its_worker_is_fenced() {
    let world = World::attached().await;
    world.post("turns/1", commit(1, "1")).await.ok();
    let bundle = begin(&world, INSTANCE).await;
    world.lose_pod(1).await;
    assert!(!is_whole(bundle).await);
}

#[tokio::test]
async fn a_bundle_that_is_not_taken_in_time_breaks_off_and_gives_its_place_back() {
    let limit = Duration::from_secs(1);
    let world = World::attached().await.with(Config { max_response_duration: limit, ..quick() });
    let bundle = begin(&world, INSTANCE).await;
    tokio::time::sleep(2 * limit).await;
    assert!(is_whole(begin(&world, INSTANCE).await).await);
    assert!(!is_whole(bundle).await);
}

#[tokio::test]
async fn what_a_bundle_has_not_sent_yet_takes_its_place_among_the_answers() {
    let config = Config { max_response_bytes: 8_000, ..quick() };
    let world = World::attached().await.with(config);
    world.post("turns/1", commit(1, &format!("\"{}\"", "x".repeat(5_000)))).await.ok();
    let bundle = begin(&world, INSTANCE).await;
    let mut pieces = bundle.into_body().into_data_stream();
    pieces.next().await.unwrap().unwrap();
    pieces.next().await.unwrap().unwrap();
    assert_eq!(world.get("state").await.code(), "UNAVAILABLE");
    while let Some(piece) = pieces.next().await {
        piece.unwrap();
    }
    world.get("state").await.ok();
}

#[tokio::test]
async fn a_gateway_that_cannot_read_its_signing_key_says_that_and_does_not_blame_the_store() {
    let missing = Some("/no/such/key.pem".into());
    let world = World::attached().await.with(Config { signing_key: missing, ..quick() });
    let refused = world.get("export").await;
    assert_eq!(refused.code(), "UNAVAILABLE");
    assert!(refused.detail().contains("cannot use its signing key"), "{}", refused.detail());
    assert!(!refused.detail().contains("store"), "{}", refused.detail());
}
