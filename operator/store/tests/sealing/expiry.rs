//! A sealed run that is past its retention: its data key goes with its payloads.

use dalsegno_store::proof::bundle;
use dalsegno_store::{Error, Gone, Retention, Shredded, verify};

use crate::{Face, World, check, on_both, patched, worked};

on_both! {
    the_data_key_of_a_run_goes_with_the_last_of_its_payloads,
    what_is_left_of_a_run_without_its_beginning_can_be_decoded,
    what_is_past_its_retention_was_dropped_and_not_shredded,
}

async fn count_keys(face: &Face) -> String {
    face.ask("SELECT CAST(count(wrapped) AS text) FROM data_keys").await
}

/// A run that is over, with the number of its payloads' rows.
async fn over(world: &World, days: i32) -> crate::Worker {
    let worker = worked(world, 12).await;
    world.finish(&worker.finish()).await.unwrap();
    world.set_retention(worker.run, &Retention { days, ..Retention::default() }).await.unwrap();
    worker
}

async fn the_data_key_of_a_run_goes_with_the_last_of_its_payloads(face: &Face) {
    let world = face.sealed().await;
    over(&world, 1).await;
    over(&world, 0).await;
    assert_eq!(count_keys(face).await, "2");
    while !world.drop_expired(5).await.unwrap().done {
        assert_eq!(count_keys(face).await, "2", "what is left can be opened");
        assert_eq!(check(&face.sealed().await).await.1, []);
    }
    assert_eq!(count_keys(face).await, "1", "the other run's stays");
    assert_eq!(world.rewrap_keys().await.unwrap().count, 0);
}

/// The first boundaries that are left begin at a snapshot.
async fn what_is_left_of_a_run_without_its_beginning_can_be_decoded(face: &Face) {
    for world in [face.plain().await, face.sealed().await] {
        let worker = world.worker().await;
        patched(&world, &worker, 1..=40).await;
        let retention = Retention { days: 0, keep_last: Some(25) };
        world.set_retention(worker.run, &retention).await.unwrap();
        while world.drop_old(worker.run, 500).await.unwrap().run.is_some() {}
        world.finish(&worker.finish()).await.unwrap();
        while !world.drop_expired(3).await.unwrap().done {
            assert_eq!(check(&world).await.1, []);
            let bundle = bundle::verify(&*crate::bundle(&world, worker.run).await, None).unwrap();
            assert_eq!(bundle.problems, []);
        }
    }
}

async fn what_is_past_its_retention_was_dropped_and_not_shredded(face: &Face) {
    let world = face.sealed().await;
    let worker = over(&world, 0).await;
    while world.drop_expired(500).await.unwrap().run.is_some() {}
    for world in [&world, &face.sealed().await] {
        match world.state(worker.run, None).await {
            Err(Error::Gone { detail, .. }) => {
                assert!(detail.contains(&Gone::Dropped.to_string()), "{detail}")
            }
            other => panic!("{other:?}"),
        }
        let found = verify::survey(&*world.store, &world.of(&worker).await).await.unwrap();
        assert_eq!((found.damage, found.dropped, found.shredded), (vec![], 12, 0));
        let (summary, problems) = check(world).await;
        assert_eq!((problems, summary.shredded), (vec![], 0));
    }
    let bytes = crate::bundle(&world, worker.run).await;
    let verified = bundle::verify(&*bytes, None).unwrap();
    assert_eq!((verified.problems, verified.shredded), (vec![], false));
    assert_eq!(world.shred(worker.run, "why", "who").await.unwrap(), Shredded::GoneBefore);
    let rows = world.audit(worker.run).await.unwrap();
    assert_eq!(rows.last().unwrap().kind, "expired");
}
