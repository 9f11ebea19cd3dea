//! How much is kept, by namespace.

use dalsegno_store::{Commit, Held, NewRun, Retention};

use crate::faces::on_every_face;
use crate::world::*;

on_every_face! {
    the_namespaces_that_hold_most_are_named_and_the_others_summed_up,
    bytes_are_counted_once_and_gone_with_their_retention,
}

/// A run in this namespace whose worker has committed so many turns with an event of many bytes.
async fn written(world: &World, namespace: &str, turns: i32) -> Worker {
    let run = world.take_up(&NewRun { namespace: namespace.into(), ..new_run() }).await;
    let worker = world.work_on(&run).await;
    for turn in 1..=turns {
        ok(world.commit(&long(&worker, turn)).await.unwrap());
    }
    worker
}

fn long(worker: &Worker, turn: i32) -> Commit {
    let noise: String = (0..20).map(|_| uuid::Uuid::new_v4().to_string()).collect();
    Commit { events: vec![json(&format!("{noise:?}"))], ..worker.result(turn) }
}

async fn the_namespaces_that_hold_most_are_named_and_the_others_summed_up(world: &World) {
    assert_eq!(world.capacity(2).await.unwrap(), []);
    for (namespace, turns) in [("a", 1), ("b", 6), ("c", 2), ("d", 9)] {
        written(world, namespace, turns).await;
    }
    written(world, "d", 1).await;
    let all = world.capacity(9).await.unwrap();
    let names: Vec<_> = all.iter().map(|held| held.namespace.as_deref().unwrap()).collect();
    assert_eq!(names, ["a", "b", "c", "d"]);
    let bytes: Vec<_> = all.iter().map(|held| held.bytes).collect();
    assert!(bytes[0] > 400 && bytes[3] > bytes[1] && bytes[1] > bytes[2] && bytes[2] > bytes[0], "{bytes:?}");
    let mut two = world.capacity(2).await.unwrap();
    two.sort_by_key(|held| held.namespace.clone());
    let named = |namespace: &str, bytes| Held { namespace: Some(namespace.into()), bytes };
    assert_eq!(
        two,
        [Held { namespace: None, bytes: bytes[0] + bytes[2] }, named("b", bytes[1]), named("d", bytes[3])]
    );
}

async fn bytes_are_counted_once_and_gone_with_their_retention(world: &World) {
    let worker = written(world, "a", 1).await;
    let before = world.capacity(1).await.unwrap();
    let second = long(&worker, 2);
    ok(world.commit(&second).await.unwrap());
    let after = world.capacity(1).await.unwrap();
    assert!(after[0].bytes > before[0].bytes);
    world.commit(&again(&second)).await.unwrap();
    assert_eq!(world.capacity(1).await.unwrap(), after, "a duplicate adds nothing");
    world.set_retention(worker.run, &Retention { days: 0, keep_last: None }).await.unwrap();
    ok(world.finish(&worker.finish()).await.unwrap());
    assert!(!world.drop_expired(1).await.unwrap().done);
    assert_eq!(world.capacity(1).await.unwrap(), after);
    assert!(world.drop_expired(500).await.unwrap().done);
    assert_eq!(world.capacity(1).await.unwrap()[0].bytes, 0);
}
