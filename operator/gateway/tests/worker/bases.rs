//! What a gateway remembers of a run's state is one thing, what others commit another: states come back as they came.

use dalsegno_protocol::Boundary;
use dalsegno_store::{Operator as _, Place, Rewind, Rewound};
use uuid::Uuid;

use crate::world::*;

/// A state that shares so much with every other that a patch pays, each part of it at another place.
fn state(turn: u128) -> String {
    format!(r#"{{"turn":{turn},"text":"{}"}}"#, (turn..500).map(|n| format!("{n:x} ")).collect::<String>())
}

async fn full(world: &World, turn: u128) {
    world.post(&format!("turns/{turn}"), commit(turn, &state(turn))).await.ok();
}

/// A plan that says nothing of the state.
async fn bare(world: &World, turn: u128) {
    let id = Uuid::from_u128(1_000 + turn);
    world.post(&format!("turns/{turn}/plan"), format!(r#"{{"commitId":"{id}"}}"#)).await.ok();
}

async fn comes_back(world: &World, turn: u128) {
    let kept = format!(r#"{{"state":{{"state":{{"value":{{"json":{}}}}}}}}}"#, state(turn));
    assert_eq!(world.get("state").await.text, kept, "turn {turn}");
}

#[tokio::test]
async fn a_state_that_another_gateway_has_overtaken_is_not_taken_for_the_heads() {
    let one = World::attached().await;
    let other = one.beside_it(quick());
    full(&one, 1).await;
    full(&other, 2).await;
    bare(&one, 3).await;
    comes_back(&one, 2).await;
    full(&one, 3).await;
    comes_back(&other, 3).await;
    bare(&other, 4).await;
    full(&other, 4).await;
    comes_back(&one, 4).await;
}

#[tokio::test]
async fn a_state_that_a_rewind_took_back_is_not_taken_for_the_heads() {
    let world = World::attached().await;
    for turn in 1..=3 {
        full(&world, turn).await;
    }
    world.lose_pod(1).await;
    let to = Place { turn: 2, boundary: Boundary::Result, epoch: 1 };
    let epoch = world.record().await.epoch;
    let rewind = Rewind { epoch, to, reason: "it went astray".into(), actor: "ada".into() };
    let rewound = world.store.rewind(world.run, &rewind).await.unwrap();
    assert!(matches!(rewound, Rewound::Done(_)), "{rewound:?}");
    world.record_pod(3, "pod-3", Some(accepted())).await;
    world.attach("pod-3", INSTANCE).await.ok();
    bare(&world, 3).await;
    comes_back(&world, 2).await;
    full(&world, 3).await;
    comes_back(&world, 3).await;
}
