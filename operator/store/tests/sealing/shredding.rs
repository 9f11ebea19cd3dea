//! A run whose data key was deleted: nobody can read it, and everybody is told so.

use dalsegno_store::proof::bundle;
use dalsegno_store::reading::BoundaryKey;
use dalsegno_store::{CallFilter, Error, Gone, RecordQuery, Shredded, audit, verify};
use uuid::Uuid;

use crate::{CANARY, Face, Worker, World, batch, check, on_both, read_all, worked};

on_both! {
    a_shredded_run_can_be_read_by_nobody_and_the_audit_says_why,
    a_run_that_lives_or_is_not_there_is_not_shredded,
    a_shredded_run_is_no_damage_and_is_said_to_be_shredded,
    a_bundle_of_a_shredded_run_proves_its_chains,
    a_data_key_that_is_gone_without_a_word_in_the_audit_is_told,
    a_reading_hands_no_shredded_key_to_its_process,
    a_bundle_that_was_begun_before_the_shredding_is_whole,
    what_was_never_sealed_outlives_the_shredding,
    a_run_that_was_never_sealed_is_not_said_to_be_shredded,
}

async fn finished(world: &World) -> Worker {
    let worker = worked(world, 12).await;
    world.finish(&worker.finish()).await.unwrap();
    worker
}

async fn shredded(face: &Face) -> (World, Worker) {
    let world = face.sealed().await;
    let worker = finished(&world).await;
    let answer = world.shred(worker.run, "its user asked for it", "somebody").await.unwrap();
    assert_eq!(answer, Shredded::Done);
    (world, worker)
}

async fn a_shredded_run_can_be_read_by_nobody_and_the_audit_says_why(face: &Face) {
    let (world, worker) = shredded(face).await;
    for world in [&world, &face.sealed().await] {
        match read_all(world, worker.run).await {
            Err(Error::Gone { detail, .. }) => assert!(detail.contains("shredded"), "{detail}"),
            other => panic!("{other:?}"),
        }
        let query =
            RecordQuery { space: "s".into(), prefix: String::new(), after: None, limit: 9, bytes: 999 };
        let records = world.read_records(worker.run, &query).await;
        assert!(matches!(records, Err(Error::Gone { .. })), "{records:?}");
        let late = world.write_records(&batch(&worker)).await;
        assert!(matches!(late, Err(Error::Gone { .. })), "{late:?}");
        let calls = world.calls(worker.run, CallFilter::All).await.unwrap();
        assert!(calls.iter().all(|call| call.arguments.is_none() && call.result.is_none()));
        assert_eq!(calls.len(), 13, "names and keys stay");
    }
    assert_eq!(face.ask("SELECT CAST(count(wrapped) AS text) FROM data_keys").await, "0");
    assert_eq!(world.shred(worker.run, "again", "another").await.unwrap(), Shredded::GoneBefore);
    let rows = world.audit(worker.run).await.unwrap();
    let told: Vec<_> = rows.iter().filter(|row| row.kind == "shredded").collect();
    assert_eq!((told.len(), &*told[0].actor), (1, "somebody"));
    assert!(told[0].detail.contains("its user asked for it"));
    world.proves_itself(worker.run).await;
    assert_eq!(audit::first_needed(&rows), told[0].seq, "it is never pruned");
}

async fn a_run_that_lives_or_is_not_there_is_not_shredded(face: &Face) {
    let world = face.sealed().await;
    let worker = worked(&world, 2).await;
    assert_eq!(world.shred(worker.run, "why", "who").await.unwrap(), Shredded::Live);
    assert_eq!(world.shred(Uuid::now_v7(), "why", "who").await.unwrap(), Shredded::NotFound);
    read_all(&face.sealed().await, worker.run).await.unwrap();
}

async fn a_shredded_run_is_no_damage_and_is_said_to_be_shredded(face: &Face) {
    let (world, worker) = shredded(face).await;
    let found = verify::survey(&*world.store, &world.of(&worker).await).await.unwrap();
    assert_eq!((found.damage, found.shredded, found.last_good), (vec![], 12, None));
    let (summary, problems) = check(&face.sealed().await).await;
    assert_eq!((problems, summary.shredded), (vec![], 1));
    face.edit("UPDATE boundaries SET tokens_in = 7 WHERE turn = 5").await;
    assert_eq!(check(&world).await.1.len(), 1, "its headers are still proved");
}

async fn a_bundle_of_a_shredded_run_proves_its_chains(face: &Face) {
    let (world, worker) = shredded(face).await;
    let bytes = crate::bundle(&world, worker.run).await;
    let verified = bundle::verify(&*bytes, None).unwrap();
    assert_eq!((verified.problems, verified.boundaries, verified.shredded), (vec![], 12, true));
    assert!(!String::from_utf8(bytes.clone()).unwrap().contains(CANARY));
    let refused = bundle::state(&*bytes, 7).unwrap_err().to_string();
    assert!(refused.contains(&Gone::Shredded.to_string()), "{refused}");
}

async fn a_data_key_that_is_gone_without_a_word_in_the_audit_is_told(face: &Face) {
    finished(&face.sealed().await).await;
    face.edit("UPDATE data_keys SET wrapped = NULL, key_id = NULL, shredded_at = 1 WHERE key_id = 'k1'")
        .await;
    let (_, problems) = check(&face.sealed().await).await;
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].what.contains("does not say that they were shredded"), "{}", problems[0]);
}

async fn a_reading_hands_no_shredded_key_to_its_process(face: &Face) {
    let world = face.sealed().await;
    let worker = finished(&world).await;
    let other = face.sealed().await;
    let mut reading = other.reading().await.unwrap();
    assert_eq!(reading.runs(None).await.unwrap().len(), 1, "its moment has begun");
    world.shred(worker.run, "why", "who").await.unwrap();
    let boundaries = reading.boundaries(BoundaryKey::before(worker.run), worker.run).await.unwrap();
    assert!(boundaries.iter().all(|it| it.kept.row.ops.is_some()), "it reads what stood there then");
    let refused = read_all(&other, worker.run).await;
    assert!(matches!(refused, Err(Error::Gone { .. })), "{refused:?}");
}

async fn a_bundle_that_was_begun_before_the_shredding_is_whole(face: &Face) {
    let world = face.sealed().await;
    let worker = finished(&world).await;
    let export = crate::export(&world, worker.run).await.unwrap();
    world.shred(worker.run, "why", "who").await.unwrap();
    assert!(matches!(read_all(&world, worker.run).await, Err(Error::Gone { .. })), "the process knows");
    let bytes = crate::written(export).await;
    let verified = bundle::verify(&*bytes, None).unwrap();
    assert_eq!((verified.problems, verified.boundaries, verified.shredded), (vec![], 12, false));
    assert!(String::from_utf8(bytes).unwrap().contains(CANARY));
}

async fn what_was_never_sealed_outlives_the_shredding(face: &Face) {
    let plain = face.plain().await;
    let worker = worked(&plain, 3).await;
    let world = face.sealed().await;
    crate::work(&world, &worker, 4..=12).await;
    world.finish(&worker.finish()).await.unwrap();
    // Of three turns with a planned call and a record each: these, a claimed call, and a batch of one record.
    let (before, plain) = (world.unsealed(worker.run).await.unwrap(), 3 + 3 + 3 + 1 + 1);
    world.shred(worker.run, "why", "who").await.unwrap();
    assert_eq!(
        (before, world.unsealed(worker.run).await.unwrap()),
        (plain, plain),
        "and everybody can be told of it"
    );
    assert!(world.state(worker.run, Some(3)).await.unwrap().is_some());
    assert!(matches!(world.state(worker.run, Some(4)).await, Err(Error::Gone { .. })));
    let (summary, problems) = check(&world).await;
    assert_eq!((problems, summary.shredded), (vec![], 1));
}

async fn a_run_that_was_never_sealed_is_not_said_to_be_shredded(face: &Face) {
    let plain = face.plain().await;
    let worker = finished(&plain).await;
    let world = face.sealed().await;
    let before = world.audit(worker.run).await.unwrap().len();
    assert_eq!(world.shred(worker.run, "why", "who").await.unwrap(), Shredded::NeverSealed);
    assert_eq!(world.audit(worker.run).await.unwrap().len(), before);
    assert_eq!(face.ask("SELECT CAST(count(*) AS text) FROM data_keys").await, "0");
    // 12 turns, each with a planned call and a record; a claimed call, a batch of one record, and a snapshot.
    assert_eq!(world.unsealed(worker.run).await.unwrap(), 3 * 12 + 3);
    read_all(&world, worker.run).await.unwrap();
}
