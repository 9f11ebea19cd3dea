//! A gateway's cached delta base can be older than the head, or on another branch. States are still returned as sent.

use dalsegno_model::{BoundaryId, Operator as _, Rewind, Rewound};
use dalsegno_protocol::Boundary;
use uuid::Uuid;

use crate::context::*;

/// A state that shares much with every other, at other offsets, so that it is stored as a delta.
fn state(turn: u128) -> String {
    format!(r#"{{"turn":{turn},"text":"{}"}}"#, (turn..500).map(|n| format!("{n:x} ")).collect::<String>())
}

async fn commit_full(ctx: &TestContext, turn: u128) {
    ctx.post(&format!("turns/{turn}"), commit(turn, &state(turn))).await.ok();
}

/// A plan that does not change the state.
async fn commit_plan(ctx: &TestContext, turn: u128) {
    let id = Uuid::from_u128(1_000 + turn);
    ctx.post(&format!("turns/{turn}/plan"), format!(r#"{{"commitId":"{id}"}}"#)).await.ok();
}

async fn assert_state(ctx: &TestContext, turn: u128) {
    let expected = format!(r#"{{"state":{{"state":{{"value":{{"json":{}}}}}}}}}"#, state(turn));
    assert_eq!(ctx.get("state").await.text, expected, "turn {turn}");
}

#[tokio::test]
async fn a_cached_state_older_than_the_head_is_not_used_as_delta_base() {
    let one = TestContext::attached().await;
    let other = one.second_gateway(test_config());
    commit_full(&one, 1).await;
    commit_full(&other, 2).await;
    commit_plan(&one, 3).await;
    assert_state(&one, 2).await;
    commit_full(&one, 3).await;
    assert_state(&other, 3).await;
    commit_plan(&other, 4).await;
    commit_full(&other, 4).await;
    assert_state(&one, 4).await;
}

#[tokio::test]
async fn a_cached_state_that_was_rewound_is_not_used_as_delta_base() {
    let ctx = TestContext::attached().await;
    for turn in 1..=3 {
        commit_full(&ctx, turn).await;
    }
    ctx.lose_pod(1).await;
    let to = BoundaryId { turn: 2, boundary: Boundary::Result, epoch: 1 };
    let epoch = ctx.record().await.epoch;
    let rewind = Rewind { epoch, to, reason: "wrong result".into(), actor: "ada".into() };
    let rewound = ctx.store.rewind(ctx.run, &rewind).await.unwrap();
    assert!(matches!(rewound, Rewound::Done(_)), "{rewound:?}");
    ctx.record_pod(3, "pod-3", Some(accepted())).await;
    assert_eq!(ctx.attach("pod-3", INSTANCE).await.ok()["branch"], 1);
    commit_plan(&ctx, 3).await;
    assert_state(&ctx, 2).await;
    commit_full(&ctx, 3).await;
    assert_state(&ctx, 3).await;
}
