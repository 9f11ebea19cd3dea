//! `GET export`: the bundle of a run, for its own worker.

use dalsegno_gateway::Config;
use dalsegno_store::proof::bundle::verify;

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
    let world = World::attached().await.with(Config { exports: 0, ..quick() });
    assert_eq!(world.get("export").await.code(), "UNAVAILABLE");
}

#[tokio::test]
async fn a_gateway_that_cannot_read_its_signing_key_says_that_and_does_not_blame_the_store() {
    let missing = Some("/no/such/key.pem".into());
    let world = World::attached().await.with(Config { signing_key: missing, ..quick() });
    let refused = world.get("export").await;
    assert_eq!(refused.code(), "UNAVAILABLE");
    assert!(refused.detail().contains("key that signs bundles"), "{}", refused.detail());
    assert!(!refused.detail().contains("store"), "{}", refused.detail());
}
