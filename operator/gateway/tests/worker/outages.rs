//! The store is away, or the gateway has a defect.

use std::time::Instant;

use dalsegno_gateway::Config;

use crate::faults::Fault;
use crate::world::*;

const CALLS: [(&str, &str); 9] = [
    ("turns/1", r#"{"commitId":"00000000-0000-0000-0000-000000000001","state":1}"#),
    ("turns/1/plan", r#"{"commitId":"00000000-0000-0000-0000-000000000001","state":1}"#),
    ("heartbeat", ""),
    ("cancelled", ""),
    ("finish", r#"{"commitId":"00000000-0000-0000-0000-000000000001","finish":{"outcome":"succeeded"}}"#),
    ("calls/a/claim", r#"{"claimId":"00000000-0000-0000-0000-000000000001","policy":"ask","key":"k"}"#),
    ("calls/a/complete", r#"{"claimId":"00000000-0000-0000-0000-000000000001","outcome":"failed"}"#),
    ("calls/a/settle", r#"{"outcome":"failed","reason":"seen"}"#),
    ("attach", r#"{"instance":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}"#),
];

async fn call(world: &World, path: &str, body: &'static str) -> Answer {
    let bearer = if path == "attach" { "token-of-pod-1" } else { INSTANCE };
    world.post_as(bearer, path, body).await
}

#[tokio::test]
async fn while_the_store_fails_every_call_says_to_send_the_same_bytes_again() {
    let world = World::attached().await;
    world.store.set(Fault::Fails);
    for (path, body) in CALLS {
        let answer = call(&world, path, body).await;
        assert_eq!((answer.status, answer.code().as_str()), (503, "UNAVAILABLE"), "{path}");
        assert!(answer.detail().contains("send the same bytes again"), "{}", answer.detail());
    }
    assert_eq!(world.get("state").await.code(), "UNAVAILABLE");
    world.store.set(Fault::None);
    assert_eq!(call(&world, "turns/1", CALLS[0].1).await.ok()["result"], "ok");
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_not_waited_for_longer_than_the_deadline() {
    let world = World::attached().await.with(hasty());
    world.store.set(Fault::Hangs);
    for (path, body) in CALLS {
        let started = Instant::now();
        assert_eq!(call(&world, path, body).await.code(), "UNAVAILABLE", "{path}");
        assert!(started.elapsed() < Config::default().store_timeout, "{path}");
    }
}

#[tokio::test]
async fn a_defect_is_an_answer_too() {
    let world = World::attached().await;
    world.store.set(Fault::Panics);
    let answer = world.post("turns/1", CALLS[0].1).await;
    assert_eq!((answer.status, answer.code().as_str()), (500, "INTERNAL"));
    world.store.set(Fault::None);
    assert_eq!(world.post("turns/1", CALLS[0].1).await.ok()["result"], "ok");
}

#[tokio::test]
async fn a_state_that_cannot_be_rebuilt_is_no_outage_and_the_worker_exits() {
    let world = World::attached().await;
    world.post("turns/1", CALLS[0].1).await.ok();
    world.store.set(Fault::Corrupt);
    for answer in [world.attach("pod-1", INSTANCE).await, world.get("state").await] {
        assert_eq!((answer.status, answer.code().as_str()), (409, "CHECKPOINT_CORRUPT"));
        assert!(
            answer.detail().contains("exit: if the next attempt needs the data too, the operator holds"),
            "{}",
            answer.detail()
        );
    }
}
