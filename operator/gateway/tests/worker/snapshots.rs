//! Snapshots and patches are the gateway's own business: a worker sees none of it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use dalsegno_store::{SNAPSHOT_DUE, SNAPSHOT_OVERDUE, Worker as _};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use uuid::Uuid;

use crate::faults::Fault;
use crate::serving;
use crate::world::*;

async fn append(world: &World, turn: i32) -> Answer {
    append_as(world, INSTANCE, turn).await
}

async fn append_as(world: &World, instance: &str, turn: i32) -> Answer {
    let id = Uuid::from_u128(turn.unsigned_abs().into());
    let body = format!(r#"{{"commitId":"{id}","channels":{{"append":{{"log":[{{"json":{turn}}}]}}}}}}"#);
    world.post_as(instance, &format!("turns/{turn}"), body).await
}

fn metrics(world: &World) -> String {
    let mut registry = Registry::with_prefix("dalsegno");
    world.gateway.register(&mut registry);
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    text
}

/// Waits until the metrics say this.
async fn until(world: &World, line: &str) {
    for _ in 0..500 {
        if metrics(world).contains(line) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never {line}\n{}", metrics(world));
}

#[tokio::test]
async fn the_gateway_that_commits_the_tenth_boundary_has_a_snapshot_made() {
    let world = World::attached().await;
    for turn in 1..=SNAPSHOT_DUE {
        append(&world, turn).await.ok();
    }
    until(&world, r#"dalsegno_gateway_snapshots_total{outcome="made"} 1"#).await;
    assert_eq!(world.store.snapshot(world.run).await.unwrap().lag, 0);
    for turn in 11..=19 {
        append(&world, turn).await.ok();
    }
    let text = metrics(&world);
    assert!(text.contains(r#"dalsegno_gateway_snapshot_lag_boundaries_bucket{le="10.0"} 19"#), "{text}");
    assert!(!text.contains(r#"{outcome="not-due"}"#) && !text.contains(r#"{outcome="failed"}"#), "{text}");
}

#[tokio::test]
async fn another_gateway_that_has_never_seen_the_run_asks_the_store() {
    let world = World::attached().await;
    for turn in 1..=SNAPSHOT_DUE {
        append(&world, turn).await.ok();
    }
    until(&world, r#"dalsegno_gateway_snapshots_total{outcome="made"} 1"#).await;
    let other = world.with(quick());
    append(&other, 11).await.ok();
    until(&other, r#"dalsegno_gateway_snapshots_total{outcome="not-due"} 1"#).await;
}

#[tokio::test]
async fn a_snapshot_that_fails_costs_no_commit_and_is_asked_for_again_later() {
    let world = World::attached().await;
    for turn in 1..SNAPSHOT_DUE {
        append(&world, turn).await.ok();
    }
    world.store.set_snapshots(Fault::Fails);
    append(&world, 10).await.ok();
    until(&world, r#"dalsegno_gateway_snapshots_total{outcome="failed"} 1"#).await;
    until(&world, r#"dalsegno_gateway_store_failures_total{failure="unavailable"} 1"#).await;
    world.store.set_snapshots(Fault::None);
    for turn in 11..=20 {
        append(&world, turn).await.ok();
    }
    until(&world, r#"dalsegno_gateway_snapshots_total{outcome="made"} 1"#).await;
}

#[tokio::test]
async fn an_overdue_snapshot_is_asked_for_at_each_commit_whatever_became_of_the_last() {
    let world = World::attached().await;
    world.store.set_snapshots(Fault::Fails);
    for turn in 1..=SNAPSHOT_OVERDUE {
        append(&world, turn).await.ok();
        if turn % SNAPSHOT_DUE == 0 {
            let failed = turn / SNAPSHOT_DUE;
            until(&world, &format!(r#"snapshots_total{{outcome="failed"}} {failed}"#)).await;
        }
    }
    for more in 1..=3 {
        append(&world, SNAPSHOT_OVERDUE + more).await.ok();
        let failed = SNAPSHOT_OVERDUE / SNAPSHOT_DUE + more;
        until(&world, &format!(r#"snapshots_total{{outcome="failed"}} {failed}"#)).await;
    }
    let text = metrics(&world);
    assert!(text.contains(r#"snapshot_lag_boundaries_bucket{le="50.0"} 50"#), "{text}");
    assert!(text.contains(r#"snapshot_lag_boundaries_bucket{le="100.0"} 53"#), "{text}");
    world.store.set_snapshots(Fault::None);
    append(&world, SNAPSHOT_OVERDUE + 4).await.ok();
    until(&world, r#"snapshots_total{outcome="made"} 1"#).await;
}

#[tokio::test]
async fn an_overdue_snapshot_waits_while_others_take_all_the_room() {
    let world = World::attached().await;
    world.store.set_snapshots(Fault::Hangs);
    let third = SECOND.replace('B', "C");
    for (namespace, instance) in [("bakery", SECOND), ("forge", &third)] {
        let other = world.beside(namespace, instance).await;
        for turn in 1..=SNAPSHOT_DUE {
            append_as(&other, instance, turn).await.ok();
        }
    }
    for turn in 1..=SNAPSHOT_OVERDUE + 1 {
        append(&world, turn).await.ok();
    }
    assert_eq!(world.store.waiting.load(Ordering::SeqCst), 2, "there is room for two");
    world.store.set_snapshots(Fault::None);
    until(&world, r#"snapshots_total{outcome="made"} 3"#).await;
    assert_eq!(world.store.snapshot(world.run).await.unwrap().lag, 0);
}

#[tokio::test]
async fn a_snapshot_that_is_under_way_is_given_up_when_its_gateway_stops() {
    let world = World::attached().await;
    let serving = serving::start(&world).await;
    world.store.set_snapshots(Fault::Hangs);
    for turn in 1..=SNAPSHOT_DUE {
        append(&world, turn).await.ok();
    }
    serving::until("it is under way", || world.store.waiting.load(Ordering::SeqCst) == 1).await;
    serving.end().await;
    until(&world, r#"snapshots_total{outcome="failed"} 1"#).await;
}

#[tokio::test]
async fn whole_states_come_back_byte_for_byte_however_they_are_kept() {
    let world = World::attached().await;
    let long = "word ".repeat(500);
    for turn in 1..=30_u128 {
        let state = format!(r#"{{ "turn":{turn},  "text":"{long}", "n":1e999, "s":"\ud800" }}"#);
        // Now and then the state comes as channels.
        let body = if turn % 7 == 0 {
            let id = Uuid::from_u128(turn);
            format!(
                r#"{{"commitId":"{id}","channels":{{ "full" : true, "set":{{"state":{{"json":{state}}}}} }}}}"#
            )
        } else {
            commit(turn, &state)
        };
        let answer = world.post(&format!("turns/{turn}"), body.clone()).await;
        answer.ok();
        if turn % 5 == 0 {
            assert_eq!(world.post(&format!("turns/{turn}"), body).await.ok()["result"], "duplicate");
        }
        let kept = format!(r#"{{"state":{{"state":{{"value":{{"json":{state}}}}}}}}}"#);
        assert_eq!(world.get("state").await.text, kept, "turn {turn}");
    }
}
