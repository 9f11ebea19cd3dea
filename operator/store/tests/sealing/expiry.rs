//! Expiry of a sealed run: its data key is deleted with its payloads.

use dalsegno_model::{Error, PayloadLoss, Retention, Shredded};
use dalsegno_proof::bundle;
use dalsegno_proof::verify;

use crate::{Engine, TestContext, check, on_both_databases, patched, shred, worked};

on_both_databases! {
    the_data_key_is_deleted_with_the_last_payload,
    the_rest_of_a_run_without_its_beginning_can_be_decoded,
    an_expired_run_is_dropped_and_not_shredded,
}

async fn count_keys(engine: &Engine) -> String {
    engine.ask("SELECT CAST(count(wrapped) AS text) FROM data_keys").await
}

/// A finished run with this retention.
async fn over(cx: &TestContext, days: i32) -> crate::Worker {
    let worker = worked(cx, 12).await;
    cx.finish(&worker.finish()).await.unwrap();
    cx.set_retention(worker.run, &Retention { days, ..Retention::default() }).await.unwrap();
    worker
}

async fn the_data_key_is_deleted_with_the_last_payload(engine: &Engine) {
    let cx = engine.sealed().await;
    over(&cx, 1).await;
    over(&cx, 0).await;
    assert_eq!(count_keys(engine).await, "2");
    while !cx.drop_expired(5).await.unwrap().done {
        assert_eq!(count_keys(engine).await, "2", "the rest can be opened");
        assert_eq!(check(&engine.sealed().await).await.1, []);
    }
    assert_eq!(count_keys(engine).await, "1", "the other run's key stays");
    assert_eq!(cx.rewrap_keys().await.unwrap().count, 0);
}

/// The first boundaries that are left begin at a snapshot.
async fn the_rest_of_a_run_without_its_beginning_can_be_decoded(engine: &Engine) {
    for cx in [engine.plain().await, engine.sealed().await] {
        let worker = cx.worker().await;
        patched(&cx, &worker, 1..=40).await;
        let retention = Retention { days: 0, keep_last: Some(25), ..Retention::default() };
        cx.set_retention(worker.run, &retention).await.unwrap();
        while cx.compact(worker.run, 500).await.unwrap().run.is_some() {}
        cx.finish(&worker.finish()).await.unwrap();
        while !cx.drop_expired(3).await.unwrap().done {
            assert_eq!(check(&cx).await.1, []);
            let bundle = bundle::verify(&*crate::bundle(&cx, worker.run).await, None).unwrap();
            assert_eq!(bundle.problems, []);
        }
    }
}

async fn an_expired_run_is_dropped_and_not_shredded(engine: &Engine) {
    let cx = engine.sealed().await;
    let worker = over(&cx, 0).await;
    while cx.drop_expired(500).await.unwrap().run.is_some() {}
    for cx in [&cx, &engine.sealed().await] {
        match cx.state(worker.run, None).await {
            Err(Error::Gone { detail, .. }) => {
                assert!(detail.contains(&PayloadLoss::Dropped.to_string()), "{detail}")
            }
            other => panic!("{other:?}"),
        }
        let found = verify::scan(&*cx.store, &cx.run_of(&worker).await).await.unwrap();
        assert_eq!((found.damage, found.dropped, found.shredded), (vec![], 12, 0));
        let (summary, problems) = check(cx).await;
        assert_eq!((problems, summary.shredded), (vec![], 0));
    }
    let bytes = crate::bundle(&cx, worker.run).await;
    let verified = bundle::verify(&*bytes, None).unwrap();
    assert_eq!((verified.problems, verified.shredded), (vec![], false));
    assert_eq!(cx.shred(&shred(worker.run, "why", "who")).await.unwrap(), Shredded::GoneBefore);
    let rows = cx.audit(worker.run).await.unwrap();
    assert_eq!(rows.last().unwrap().kind, "expired");
}
