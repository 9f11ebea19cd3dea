//! Stored bytes by namespace.

use dalsegno_model::{Commit, NamespaceUsage, NewRun, Retention};

use crate::context::*;
use crate::engines::on_every_engine;

on_every_engine! {
    the_largest_namespaces_are_listed_and_the_others_summed_up,
    bytes_are_counted_once_and_subtracted_when_they_expire,
}

/// A run in this namespace whose worker has committed this number of turns, each with one large event.
async fn written(cx: &TestContext, namespace: &str, turns: i32) -> Worker {
    let run = cx.create(&NewRun { namespace: namespace.into(), ..new_run() }).await;
    let worker = cx.start_worker(&run).await;
    for turn in 1..=turns {
        ok(cx.commit(&long(&worker, turn)).await.unwrap());
    }
    worker
}

fn long(worker: &Worker, turn: i32) -> Commit {
    let noise: String = (0..20).map(|_| uuid::Uuid::new_v4().to_string()).collect();
    Commit { events: vec![json(&format!("{noise:?}"))], ..worker.result(turn) }
}

async fn the_largest_namespaces_are_listed_and_the_others_summed_up(cx: &TestContext) {
    assert_eq!(cx.namespace_usage(2).await.unwrap(), []);
    for (namespace, turns) in [("a", 1), ("b", 6), ("c", 2), ("d", 9)] {
        written(cx, namespace, turns).await;
    }
    written(cx, "d", 1).await;
    let all = cx.namespace_usage(9).await.unwrap();
    let names: Vec<_> = all.iter().map(|held| held.namespace.as_deref().unwrap()).collect();
    assert_eq!(names, ["a", "b", "c", "d"]);
    let bytes: Vec<_> = all.iter().map(|held| held.bytes).collect();
    assert!(bytes[0] > 400 && bytes[3] > bytes[1] && bytes[1] > bytes[2] && bytes[2] > bytes[0], "{bytes:?}");
    let mut two = cx.namespace_usage(2).await.unwrap();
    two.sort_by_key(|held| held.namespace.clone());
    let named = |namespace: &str, bytes| NamespaceUsage { namespace: Some(namespace.into()), bytes };
    assert_eq!(
        two,
        [
            NamespaceUsage { namespace: None, bytes: bytes[0] + bytes[2] },
            named("b", bytes[1]),
            named("d", bytes[3])
        ]
    );
}

async fn bytes_are_counted_once_and_subtracted_when_they_expire(cx: &TestContext) {
    let worker = written(cx, "a", 1).await;
    let before = cx.namespace_usage(1).await.unwrap();
    let second = long(&worker, 2);
    ok(cx.commit(&second).await.unwrap());
    let after = cx.namespace_usage(1).await.unwrap();
    assert!(after[0].bytes > before[0].bytes);
    cx.commit(&resend(&second)).await.unwrap();
    assert_eq!(cx.namespace_usage(1).await.unwrap(), after, "a duplicate adds nothing");
    cx.set_retention(worker.run, &Retention { days: 0, ..Retention::default() }).await.unwrap();
    ok(cx.finish(&worker.finish()).await.unwrap());
    assert!(!cx.drop_expired(1).await.unwrap().done);
    assert_eq!(cx.namespace_usage(1).await.unwrap(), after);
    assert!(cx.drop_expired(500).await.unwrap().done);
    assert_eq!(cx.namespace_usage(1).await.unwrap(), [], "a namespace without bytes is not listed");
}
