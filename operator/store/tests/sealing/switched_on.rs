//! Encryption that is switched on while runs live.

use std::time::Duration;

use dalsegno_protocol::{CompleteOutcome, Policy};
use dalsegno_store::{
    Claim, Class, Commit, Committed, Complete, Error, RecordBatch, Retention, Rewind, Rewound, Shredded,
    Written,
};
use futures::future::join_all;

use crate::world::{again, person_settles, still};
use crate::{CANARY, Face, Worker, World, batch, check, ok, on_both, read_all, turn, work, worked};

on_both! {
    a_run_goes_on_sealed_and_what_it_wrote_before_is_still_read,
    what_stands_from_before_is_a_duplicate_after,
    what_stands_from_before_is_a_duplicate_though_a_call_is_in_the_way,
    a_late_call_makes_no_data_key_for_a_run_that_is_over,
    a_run_that_ends_meanwhile_gets_no_data_key,
    a_plain_snapshot_is_used_where_its_time_is_proved,
    a_plain_snapshot_is_used_where_there_is_nothing_else,
    a_body_that_differs_is_a_conflict_before_and_after,
    two_processes_that_begin_at_once_share_one_data_key,
    a_process_without_keys_calls_no_retry_a_conflict,
    a_process_without_keys_puts_nothing_plain_beside_what_is_sealed,
    a_late_snapshot_of_a_process_without_keys_replaces_no_sealed_one,
}

async fn a_run_goes_on_sealed_and_what_it_wrote_before_is_still_read(face: &Face) {
    let worker = worked(&face.plain().await, 3).await;
    let world = face.sealed().await;
    read_all(&world, worker.run).await.unwrap();
    work(&world, &worker, 4..=12).await;
    let sealed =
        "SELECT CAST(sum(CASE WHEN substr(ops, 1, 1) >= HIGH THEN 1 ELSE 0 END) AS text) FROM boundaries";
    let high = if face.is_postgres() { "'\\x10'::bytea" } else { "x'10'" };
    assert_eq!(face.ask(&sealed.replace("HIGH", high)).await, "9");
    let all = read_all(&face.sealed().await, worker.run).await.unwrap();
    for turn in 1..=12 {
        assert!(all.contains(&format!("canary of the worker {turn}\\")), "turn {turn}: {all}");
    }
    assert_eq!(check(&world).await.1, []);
}

async fn what_stands_from_before_is_a_duplicate_after(face: &Face) {
    let plain = face.plain().await;
    let worker = plain.worker().await;
    let (commit, records) = (turn(&worker, 1), batch(&worker));
    plain.commit(&commit).await.unwrap();
    assert_eq!(plain.write_records(&records).await.unwrap(), Written::Ok);
    let world = face.sealed().await;
    assert!(matches!(world.commit(&commit).await.unwrap(), Committed::Duplicate(_)));
    assert_eq!(world.write_records(&records).await.unwrap(), Written::Duplicate);

    let finish = worker.finish();
    plain.finish(&finish).await.unwrap();
    assert!(matches!(world.finish(&finish).await.unwrap(), Committed::Duplicate(_)));
    assert!(matches!(world.commit(&commit).await.unwrap(), Committed::Duplicate(_)), "also once it is over");
    assert_eq!(world.write_records(&records).await.unwrap(), Written::Duplicate);

    let worker = plain.worker().await;
    let commit = turn(&worker, 1);
    plain.commit(&commit).await.unwrap();
    plain.next(&worker).await;
    assert_eq!(world.commit(&commit).await.unwrap(), Committed::Fenced { committed: true });
}

async fn what_stands_from_before_is_a_duplicate_though_a_call_is_in_the_way(face: &Face) {
    let plain = face.plain().await;
    let worker = plain.worker().await;
    let (commit, records) = (turn(&worker, 1), batch(&worker));
    let claim = plain.start_call(&worker, "pay", Policy::Probe).await;
    plain.commit(&commit).await.unwrap();
    plain.write_records(&records).await.unwrap();
    let refused = Complete { outcome: CompleteOutcome::KeyRefused, ..worker.complete(&claim) };
    plain.complete(&refused).await.unwrap();
    let world = face.sealed().await;
    let before = world.of(&worker).await;
    assert!(matches!(world.commit(&commit).await.unwrap(), Committed::Duplicate(_)));
    assert_eq!(world.write_records(&records).await.unwrap(), Written::Duplicate);
    for other in [turn(&worker, 2), Commit { digest: [9; 32], ..again(&commit) }] {
        assert_eq!(world.commit(&other).await.unwrap(), Committed::UnsettledCalls);
    }
    for other in [batch(&worker), RecordBatch { digest: [9; 32], ..records }] {
        assert_eq!(world.write_records(&other).await.unwrap(), Written::UnsettledCalls);
    }
    assert_eq!(still(world.of(&worker).await), still(before), "nothing of it is written");
    world.settle(&person_settles(worker.run, "pay")).await.unwrap();
    ok(world.commit(&turn(&worker, 2)).await.unwrap());
}

async fn a_late_call_makes_no_data_key_for_a_run_that_is_over(face: &Face) {
    let plain = face.plain().await;
    let worker = plain.worker().await;
    turns(&plain, &worker, 1..=11).await;
    let claim = plain.start_call(&worker, "pay", Policy::Probe).await;
    let complete = worker.complete(&claim);
    let (last, records, finish) = (turn(&worker, 12), batch(&worker), worker.finish());
    plain.complete(&complete).await.unwrap();
    plain.write_records(&records).await.unwrap();
    plain.commit(&last).await.unwrap();
    plain.finish(&finish).await.unwrap();

    let (next, more, other) = (turn(&worker, 13), batch(&worker), worker.finish());
    let late = async |world: &World| {
        let told = (
            [world.commit(&last).await.unwrap(), world.commit(&next).await.unwrap()],
            [world.write_records(&records).await.unwrap(), world.write_records(&more).await.unwrap()],
            [world.finish(&finish).await.unwrap(), world.finish(&other).await.unwrap()],
            world.claim(&claim).await.unwrap(),
            world.complete(&complete).await.unwrap(),
            world.settle(&person_settles(worker.run, "pay")).await.unwrap(),
            world.attach(worker.run, &worker.pod_uid, &worker.capability).await.unwrap(),
        );
        format!("{told:?}")
    };
    let world = face.sealed().await;
    let told = late(&world).await;
    assert_eq!(told.matches("Duplicate").count(), 4, "{told}");
    assert_eq!(told, late(&plain).await);
    plain.mark_deleted(&worker.object_uid).await.unwrap();
    assert_eq!(late(&world).await, late(&plain).await);
    assert!(world.snapshot(worker.run).await.unwrap().made);
    assert_eq!(data_keys(face).await, "0");
    assert_eq!(world.shred(worker.run, "why", "who").await.unwrap(), Shredded::NeverSealed);
    read_all(&world, worker.run).await.unwrap();
    assert_eq!(check(&world).await.1, []);
}

async fn a_run_that_ends_meanwhile_gets_no_data_key(face: &Face) {
    let worker = face.plain().await.worker().await;
    let world = face.sealed().await;
    let records = batch(&worker);
    let mut session = face.session().await;
    session.execute("BEGIN").await;
    session.execute("UPDATE runs SET lifecycle = 'finished'").await;
    let ends = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        session.execute("COMMIT").await;
    };
    let (written, ()) = tokio::join!(world.write_records(&records), ends);
    assert_eq!(written.unwrap(), Written::Finished);
    assert_eq!(data_keys(face).await, "0");
}

async fn data_keys(face: &Face) -> String {
    face.ask("SELECT CAST(count(*) AS text) FROM data_keys").await
}

/// Turns without a snapshot.
async fn turns(world: &World, worker: &Worker, turns: std::ops::RangeInclusive<i32>) {
    for number in turns {
        ok(world.commit(&turn(worker, number)).await.unwrap());
    }
}

async fn count(world: &World, worker: &Worker) -> dalsegno_store::Result<usize> {
    let state = world.state(worker.run, None).await?;
    Ok(format!("{state:?}").matches(CANARY).count())
}

async fn a_plain_snapshot_is_used_where_its_time_is_proved(face: &Face) {
    let plain = face.plain().await;
    let worker = plain.worker().await;
    turns(&plain, &worker, 1..=10).await;
    assert!(plain.snapshot(worker.run).await.unwrap().made);
    turns(&plain, &worker, 11..=11).await;
    let world = face.sealed().await;
    turns(&world, &worker, 12..=13).await;
    face.edit("UPDATE boundaries SET ops = NULL WHERE turn = 3").await;
    assert_eq!(count(&world, &worker).await.unwrap(), 13, "turn 11 is plain: the snapshot before it may be");
    face.edit("DELETE FROM snapshots").await;
    assert!(count(&world, &worker).await.is_err());
}

async fn a_plain_snapshot_is_used_where_there_is_nothing_else(face: &Face) {
    let plain = face.plain().await;
    let worker = plain.worker().await;
    turns(&plain, &worker, 1..=20).await;
    let retention = Retention { keep_last: Some(1), ..Retention::default() };
    plain.set_retention(worker.run, &retention).await.unwrap();
    while plain.drop_old(worker.run, 500).await.unwrap().run.is_some() {}
    let run = plain.of(&worker).await;
    let rewind =
        Rewind { epoch: run.epoch, to: run.dropped_to.unwrap(), reason: String::new(), actor: "ada".into() };
    assert!(matches!(plain.rewind(worker.run, &rewind).await.unwrap(), Rewound::Done(_)));
    let world = face.sealed().await;
    let worker = world.work_on(&world.of(&worker).await).await;
    turns(&world, &worker, 20..=21).await;
    assert_eq!(count(&world, &worker).await.unwrap(), 21);
}

async fn a_body_that_differs_is_a_conflict_before_and_after(face: &Face) {
    let plain = face.plain().await;
    let worker = plain.worker().await;
    let (mut commit, mut records) = (turn(&worker, 1), batch(&worker));
    plain.commit(&commit).await.unwrap();
    plain.write_records(&records).await.unwrap();
    let world = face.sealed().await;
    commit.digest = [9; 32];
    assert!(matches!(world.commit(&commit).await.unwrap(), Committed::Conflict { .. }));
    records.digest = [9; 32];
    assert_eq!(world.write_records(&records).await.unwrap(), Written::Conflict);
    // And of what was sealed.
    let mut commit = turn(&worker, 2);
    world.commit(&commit).await.unwrap();
    assert!(matches!(world.commit(&commit).await.unwrap(), Committed::Duplicate(_)));
    commit.digest = [9; 32];
    assert!(matches!(world.commit(&commit).await.unwrap(), Committed::Conflict { .. }));
}

async fn two_processes_that_begin_at_once_share_one_data_key(face: &Face) {
    let worker = face.plain().await.worker().await;
    let (one, two) = (face.sealed().await, face.sealed().await);
    let (batches, others) = (batch(&worker), batch(&worker));
    let both = tokio::join!(one.write_records(&batches), two.write_records(&others));
    assert_eq!((both.0.unwrap(), both.1.unwrap()), (Written::Ok, Written::Ok));
    read_all(&one, worker.run).await.unwrap();
    read_all(&face.sealed().await, worker.run).await.unwrap();
    assert_eq!(data_keys(face).await, "1");
}

async fn a_process_without_keys_calls_no_retry_a_conflict(face: &Face) {
    let world = face.sealed().await;
    let worker = world.worker().await;
    let (commit, records, finish) = (turn(&worker, 1), batch(&worker), worker.finish());
    world.commit(&commit).await.unwrap();
    world.write_records(&records).await.unwrap();
    let blind = face.plain().await;
    assert!(matches!(blind.commit(&commit).await, Err(Error::Unfit(_))));
    assert!(matches!(blind.write_records(&records).await, Err(Error::Unfit(_))));
    world.finish(&finish).await.unwrap();
    assert!(matches!(blind.finish(&finish).await, Err(Error::Unfit(_))));
}

async fn a_process_without_keys_puts_nothing_plain_beside_what_is_sealed(face: &Face) {
    fn is_refused<T>(done: dalsegno_store::Result<T>) -> bool {
        matches!(done, Err(Error::Unfit(why)) if why.contains("--encryption-keys"))
    }
    let (world, blind) = (face.sealed().await, face.plain().await);
    let worker = worked(&world, 3).await;
    let claim = world.start_call(&worker, "pay", Policy::Probe).await;
    let before = world.of(&worker).await;
    // Among others, that are kept by the same statements.
    let mut commits = Vec::new();
    for _ in 0..8 {
        commits.push(blind.worker().await.result(1));
    }
    commits.push(worker.result(4));
    let done = join_all(commits.iter().map(|commit| blind.commit(commit))).await;
    for (commit, done) in commits.iter().zip(done) {
        if commit.run == worker.run {
            assert!(is_refused(done));
        } else {
            ok(done.unwrap());
        }
    }
    assert!(is_refused(blind.commit(&turn(&worker, 4)).await));
    assert!(is_refused(blind.write_records(&batch(&worker)).await));
    let claim_of = |id: &str| worker.claim(id, Policy::RetrySameKey);
    let bare = |id: &str| Claim { arguments: None, ..claim_of(id) };
    for begun in [claim_of("new"), bare("new"), Claim { key: None, ..bare("call-3") }] {
        assert!(is_refused(blind.claim(&begun).await), "{}", begun.id);
    }
    assert!(is_refused(blind.complete(&worker.complete(&claim)).await));
    assert_eq!(still(world.of(&worker).await), still(before), "nothing of it is written");

    world.lose(&worker, Class::Disruption).await;
    assert!(is_refused(blind.settle(&person_settles(worker.run, "pay")).await));
    world.settle(&person_settles(worker.run, "pay")).await.unwrap();
    let worker = world.work_on(&world.of(&worker).await).await;
    ok(world.commit(&turn(&worker, 4)).await.unwrap());
    assert_eq!(check(&world).await.1, []);
}

async fn a_late_snapshot_of_a_process_without_keys_replaces_no_sealed_one(face: &Face) {
    let plain = face.plain().await;
    let worker = plain.worker().await;
    for number in 1..=12 {
        ok(plain.commit(&turn(&worker, number)).await.unwrap());
    }
    let world = face.sealed().await;
    assert!(world.snapshot(worker.run).await.unwrap().made);
    let first = "SELECT CAST(substr(document, 1, 1) AS text) FROM snapshots";
    let sealed = face.ask(first).await;

    // The late one looks while the sealed one is not there yet, and writes when it is.
    let mut session = face.session().await;
    for sql in ["CREATE TABLE aside AS SELECT * FROM snapshots", "DELETE FROM snapshots", "BEGIN"] {
        session.execute(sql).await;
    }
    session.execute("INSERT INTO snapshots SELECT * FROM aside").await;
    let comes = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        session.execute("COMMIT").await;
    };
    let (late, ()) = tokio::join!(plain.snapshot(worker.run), comes);
    assert!(matches!(late, Err(Error::Unfit(_))), "it reads what it finds there back: {late:?}");
    assert_eq!(face.ask(first).await, sealed);
    read_all(&face.sealed().await, worker.run).await.unwrap();
    assert_eq!(check(&world).await.1, []);
}
