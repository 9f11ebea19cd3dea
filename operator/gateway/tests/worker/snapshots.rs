//! The gateway requests snapshots, and stores deltas; a worker notices neither.

use std::sync::atomic::Ordering;
use std::time::Duration;

use dalsegno_model::{Operator as _, Retention, SNAPSHOT_DUE, SNAPSHOT_OVERDUE, Worker as _};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use uuid::Uuid;

use crate::context::*;
use crate::faulty_store::Fault;
use crate::server;

async fn append(ctx: &TestContext, turn: i32) -> Answer {
    append_as(ctx, INSTANCE, turn).await
}

async fn append_as(ctx: &TestContext, instance: &str, turn: i32) -> Answer {
    let id = Uuid::from_u128(turn.unsigned_abs().into());
    let body = format!(r#"{{"commitId":"{id}","channels":{{"append":{{"log":[{{"json":{turn}}}]}}}}}}"#);
    ctx.post_as(instance, &format!("turns/{turn}"), body).await
}

fn metrics(ctx: &TestContext) -> String {
    let mut registry = Registry::with_prefix("dalsegno");
    ctx.gateway.register(&mut registry);
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    text
}

/// Waits until the metrics contain this line.
async fn until(ctx: &TestContext, line: &str) {
    for _ in 0..500 {
        if metrics(ctx).contains(line) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never {line}\n{}", metrics(ctx));
}

#[tokio::test]
async fn the_gateway_that_commits_the_tenth_boundary_requests_a_snapshot() {
    let ctx = TestContext::attached().await;
    for turn in 1..=SNAPSHOT_DUE {
        append(&ctx, turn).await.ok();
    }
    until(&ctx, r#"dalsegno_gateway_snapshots_total{outcome="made"} 1"#).await;
    assert_eq!(ctx.store.snapshot(ctx.run).await.unwrap().lag, 0);
    for turn in 11..=19 {
        append(&ctx, turn).await.ok();
    }
    let text = metrics(&ctx);
    assert!(text.contains(r#"dalsegno_gateway_snapshot_lag_boundaries_bucket{le="10.0"} 19"#), "{text}");
    assert!(!text.contains(r#"{outcome="not-due"}"#) && !text.contains(r#"{outcome="failed"}"#), "{text}");
}

#[tokio::test]
async fn a_run_with_a_number_of_its_own_has_a_snapshot_after_as_many_boundaries() {
    let ctx = TestContext::new().await;
    let retention = Retention { snapshot_every: Some(3), ..Retention::default() };
    ctx.store.set_retention(ctx.run, &retention).await.unwrap();
    ctx.attach("pod-1", INSTANCE).await.ok();
    for turn in 1..=3 {
        append(&ctx, turn).await.ok();
    }
    until(&ctx, r#"dalsegno_gateway_snapshots_total{outcome="made"} 1"#).await;
    assert!(!metrics(&ctx).contains(r#"{outcome="not-due"}"#), "it does not ask before");
}

#[tokio::test]
async fn a_gateway_that_does_not_know_a_runs_lag_asks_the_store() {
    let ctx = TestContext::attached().await;
    for turn in 1..=SNAPSHOT_DUE {
        append(&ctx, turn).await.ok();
    }
    until(&ctx, r#"dalsegno_gateway_snapshots_total{outcome="made"} 1"#).await;
    let other = ctx.with_config(test_config());
    append(&other, 11).await.ok();
    until(&other, r#"dalsegno_gateway_snapshots_total{outcome="not-due"} 1"#).await;
}

#[tokio::test]
async fn a_failed_snapshot_fails_no_commit_and_is_requested_again_later() {
    let ctx = TestContext::attached().await;
    for turn in 1..SNAPSHOT_DUE {
        append(&ctx, turn).await.ok();
    }
    ctx.store.set_snapshots(Fault::Fails);
    append(&ctx, 10).await.ok();
    until(&ctx, r#"dalsegno_gateway_snapshots_total{outcome="failed"} 1"#).await;
    until(&ctx, r#"dalsegno_gateway_store_failures_total{failure="unavailable"} 1"#).await;
    ctx.store.set_snapshots(Fault::None);
    for turn in 11..=20 {
        append(&ctx, turn).await.ok();
    }
    until(&ctx, r#"dalsegno_gateway_snapshots_total{outcome="made"} 1"#).await;
}

#[tokio::test]
async fn an_overdue_snapshot_is_requested_at_every_commit() {
    let ctx = TestContext::attached().await;
    ctx.store.set_snapshots(Fault::Fails);
    for turn in 1..=SNAPSHOT_OVERDUE {
        append(&ctx, turn).await.ok();
        if turn % SNAPSHOT_DUE == 0 {
            let failed = turn / SNAPSHOT_DUE;
            until(&ctx, &format!(r#"snapshots_total{{outcome="failed"}} {failed}"#)).await;
        }
    }
    for more in 1..=3 {
        append(&ctx, SNAPSHOT_OVERDUE + more).await.ok();
        let failed = SNAPSHOT_OVERDUE / SNAPSHOT_DUE + more;
        until(&ctx, &format!(r#"snapshots_total{{outcome="failed"}} {failed}"#)).await;
    }
    let text = metrics(&ctx);
    assert!(text.contains(r#"snapshot_lag_boundaries_bucket{le="50.0"} 50"#), "{text}");
    assert!(text.contains(r#"snapshot_lag_boundaries_bucket{le="100.0"} 53"#), "{text}");
    ctx.store.set_snapshots(Fault::None);
    append(&ctx, SNAPSHOT_OVERDUE + 4).await.ok();
    until(&ctx, r#"snapshots_total{outcome="made"} 1"#).await;
}

#[tokio::test]
async fn an_overdue_snapshot_waits_for_a_permit() {
    let ctx = TestContext::attached().await;
    ctx.store.set_snapshots(Fault::Hangs);
    let third = SECOND.replace('B', "C");
    for (namespace, instance) in [("bakery", SECOND), ("forge", &third)] {
        let other = ctx.other_run(namespace, instance).await;
        for turn in 1..=SNAPSHOT_DUE {
            append_as(&other, instance, turn).await.ok();
        }
    }
    for turn in 1..=SNAPSHOT_OVERDUE + 1 {
        append(&ctx, turn).await.ok();
    }
    assert_eq!(ctx.store.waiting.load(Ordering::SeqCst), 2, "two permits are in use");
    ctx.store.set_snapshots(Fault::None);
    until(&ctx, r#"snapshots_total{outcome="made"} 3"#).await;
    assert_eq!(ctx.store.snapshot(ctx.run).await.unwrap().lag, 0);
}

#[tokio::test]
async fn a_snapshot_in_progress_is_cancelled_when_the_gateway_stops() {
    let ctx = TestContext::attached().await;
    let server = server::start(&ctx).await;
    ctx.store.set_snapshots(Fault::Hangs);
    for turn in 1..=SNAPSHOT_DUE {
        append(&ctx, turn).await.ok();
    }
    server::until("the snapshot is in progress", || ctx.store.waiting.load(Ordering::SeqCst) == 1).await;
    server.end().await;
    until(&ctx, r#"snapshots_total{outcome="failed"} 1"#).await;
}

#[tokio::test]
async fn full_states_are_returned_byte_for_byte_however_they_are_stored() {
    let ctx = TestContext::attached().await;
    let long = "word ".repeat(500);
    for turn in 1..=30_u128 {
        let state = format!(r#"{{ "turn":{turn},  "text":"{long}", "n":1e999, "s":"\ud800" }}"#);
        // Sometimes the state is sent as channels.
        let body = if turn % 7 == 0 {
            let id = Uuid::from_u128(turn);
            format!(
                r#"{{"commitId":"{id}","channels":{{ "full" : true, "set":{{"state":{{"json":{state}}}}} }}}}"#
            )
        } else {
            commit(turn, &state)
        };
        let answer = ctx.post(&format!("turns/{turn}"), body.clone()).await;
        answer.ok();
        if turn % 5 == 0 {
            assert_eq!(ctx.post(&format!("turns/{turn}"), body).await.ok()["result"], "duplicate");
        }
        let expected = format!(r#"{{"state":{{"state":{{"value":{{"json":{state}}}}}}}}}"#);
        assert_eq!(ctx.get("state").await.text, expected, "turn {turn}");
    }
}
