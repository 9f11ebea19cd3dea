//! Encryption that is switched on during a run.

use std::time::Duration;

use dalsegno_model::{
    Claim, Class, Commit, Committed, Complete, Error, RecordBatch, Retention, Rewound, Shredded, Written,
};
use dalsegno_protocol::{CompleteOutcome, Policy};
use futures::future::join_all;

use crate::context::{person_settles, resend, rewind_to, without_times};
use crate::{
    CANARY, Engine, TestContext, Worker, batch, check, ok, on_both_databases, read_all, shred, turn, work,
    worked,
};

on_both_databases! {
    a_run_goes_on_sealed_and_its_plain_payloads_are_still_read,
    a_plain_commit_is_still_a_duplicate,
    a_plain_commit_is_still_a_duplicate_despite_unsettled_calls,
    a_late_call_makes_no_data_key_for_a_closed_run,
    a_run_that_finishes_meanwhile_gets_no_data_key,
    a_plain_snapshot_is_used_if_a_later_boundary_is_plain,
    a_plain_snapshot_is_used_if_its_boundaries_were_dropped,
    another_body_is_a_conflict_before_and_after,
    two_processes_that_start_together_share_one_data_key,
    a_process_without_keys_reports_no_retry_as_a_conflict,
    a_process_without_keys_writes_nothing_plain_to_a_sealed_run,
    a_late_plain_snapshot_does_not_replace_a_sealed_one,
}

async fn a_run_goes_on_sealed_and_its_plain_payloads_are_still_read(engine: &Engine) {
    let worker = worked(&engine.plain().await, 3).await;
    let cx = engine.sealed().await;
    read_all(&cx, worker.run).await.unwrap();
    work(&cx, &worker, 4..=12).await;
    let sealed =
        "SELECT CAST(sum(CASE WHEN substr(ops, 1, 1) >= HIGH THEN 1 ELSE 0 END) AS text) FROM boundaries";
    let high = if engine.is_postgres() { "'\\x10'::bytea" } else { "x'10'" };
    assert_eq!(engine.ask(&sealed.replace("HIGH", high)).await, "9");
    let all = read_all(&engine.sealed().await, worker.run).await.unwrap();
    for turn in 1..=12 {
        assert!(all.contains(&format!("canary of the worker {turn}\\")), "turn {turn}: {all}");
    }
    assert_eq!(check(&cx).await.1, []);
}

async fn a_plain_commit_is_still_a_duplicate(engine: &Engine) {
    let plain = engine.plain().await;
    let worker = plain.worker().await;
    let (commit, records) = (turn(&worker, 1), batch(&worker));
    plain.commit(&commit).await.unwrap();
    assert_eq!(plain.write_records(&records).await.unwrap(), Written::Ok);
    let cx = engine.sealed().await;
    assert!(matches!(cx.commit(&commit).await.unwrap(), Committed::Duplicate(_)));
    assert_eq!(cx.write_records(&records).await.unwrap(), Written::Duplicate);

    let finish = worker.finish();
    plain.finish(&finish).await.unwrap();
    assert!(matches!(cx.finish(&finish).await.unwrap(), Committed::Duplicate(_)));
    assert!(matches!(cx.commit(&commit).await.unwrap(), Committed::Duplicate(_)), "also after the finish");
    assert_eq!(cx.write_records(&records).await.unwrap(), Written::Duplicate);

    let worker = plain.worker().await;
    let commit = turn(&worker, 1);
    plain.commit(&commit).await.unwrap();
    plain.next_worker(&worker).await;
    assert_eq!(cx.commit(&commit).await.unwrap(), Committed::Fenced { committed: true });
}

async fn a_plain_commit_is_still_a_duplicate_despite_unsettled_calls(engine: &Engine) {
    let plain = engine.plain().await;
    let worker = plain.worker().await;
    let (commit, records) = (turn(&worker, 1), batch(&worker));
    let claim = plain.start_call(&worker, "pay", Policy::RetrySameKey).await;
    plain.commit(&commit).await.unwrap();
    plain.write_records(&records).await.unwrap();
    let refused = Complete { outcome: CompleteOutcome::KeyRefused, ..worker.complete(&claim) };
    plain.complete(&refused).await.unwrap();
    let cx = engine.sealed().await;
    let before = cx.run_of(&worker).await;
    assert!(matches!(cx.commit(&commit).await.unwrap(), Committed::Duplicate(_)));
    assert_eq!(cx.write_records(&records).await.unwrap(), Written::Duplicate);
    for other in [turn(&worker, 2), Commit { digest: [9; 32], ..resend(&commit) }] {
        assert_eq!(cx.commit(&other).await.unwrap(), Committed::UnsettledCalls);
    }
    for other in [batch(&worker), RecordBatch { digest: [9; 32], ..records }] {
        assert_eq!(cx.write_records(&other).await.unwrap(), Written::UnsettledCalls);
    }
    assert_eq!(without_times(cx.run_of(&worker).await), without_times(before), "nothing is written");
    cx.settle(&person_settles(worker.run, "pay")).await.unwrap();
    ok(cx.commit(&turn(&worker, 2)).await.unwrap());
}

async fn a_late_call_makes_no_data_key_for_a_closed_run(engine: &Engine) {
    let plain = engine.plain().await;
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
    let late = async |cx: &TestContext| {
        let answers = (
            [cx.commit(&last).await.unwrap(), cx.commit(&next).await.unwrap()],
            [cx.write_records(&records).await.unwrap(), cx.write_records(&more).await.unwrap()],
            [cx.finish(&finish).await.unwrap(), cx.finish(&other).await.unwrap()],
            cx.claim(&claim).await.unwrap(),
            cx.complete(&complete).await.unwrap(),
            cx.settle(&person_settles(worker.run, "pay")).await.unwrap(),
            cx.attach(worker.run, &worker.pod_uid, &worker.capability).await.unwrap(),
        );
        format!("{answers:?}")
    };
    let cx = engine.sealed().await;
    let answers = late(&cx).await;
    assert_eq!(answers.matches("Duplicate").count(), 4, "{answers}");
    assert_eq!(answers, late(&plain).await);
    plain.mark_deleted(&worker.object_uid).await.unwrap();
    assert_eq!(late(&cx).await, late(&plain).await);
    assert!(cx.snapshot(worker.run).await.unwrap().made);
    assert_eq!(data_keys(engine).await, "0");
    assert_eq!(cx.shred(&shred(worker.run, "why", "who")).await.unwrap(), Shredded::NeverSealed);
    read_all(&cx, worker.run).await.unwrap();
    assert_eq!(check(&cx).await.1, []);
}

async fn a_run_that_finishes_meanwhile_gets_no_data_key(engine: &Engine) {
    let worker = engine.plain().await.worker().await;
    let cx = engine.sealed().await;
    let records = batch(&worker);
    let mut session = engine.session().await;
    session.execute("BEGIN").await;
    session.execute("UPDATE runs SET lifecycle = 'finished'").await;
    let ends = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        session.execute("COMMIT").await;
    };
    let (written, ()) = tokio::join!(cx.write_records(&records), ends);
    assert_eq!(written.unwrap(), Written::Finished);
    assert_eq!(data_keys(engine).await, "0");
}

async fn data_keys(engine: &Engine) -> String {
    engine.ask("SELECT CAST(count(*) AS text) FROM data_keys").await
}

/// Turns without a snapshot.
async fn turns(cx: &TestContext, worker: &Worker, turns: std::ops::RangeInclusive<i32>) {
    for number in turns {
        ok(cx.commit(&turn(worker, number)).await.unwrap());
    }
}

async fn count(cx: &TestContext, worker: &Worker) -> dalsegno_model::Result<usize> {
    let state = cx.state(worker.run, None).await?;
    Ok(format!("{state:?}").matches(CANARY).count())
}

async fn a_plain_snapshot_is_used_if_a_later_boundary_is_plain(engine: &Engine) {
    let plain = engine.plain().await;
    let worker = plain.worker().await;
    turns(&plain, &worker, 1..=10).await;
    assert!(plain.snapshot(worker.run).await.unwrap().made);
    turns(&plain, &worker, 11..=11).await;
    let cx = engine.sealed().await;
    turns(&cx, &worker, 12..=13).await;
    engine.edit("UPDATE boundaries SET ops = NULL WHERE turn = 3").await;
    assert_eq!(count(&cx, &worker).await.unwrap(), 13, "turn 11 is plain: the snapshot before it may be");
    engine.edit("DELETE FROM snapshots").await;
    assert!(count(&cx, &worker).await.is_err());
}

async fn a_plain_snapshot_is_used_if_its_boundaries_were_dropped(engine: &Engine) {
    let plain = engine.plain().await;
    let worker = plain.worker().await;
    turns(&plain, &worker, 1..=20).await;
    let retention = Retention { keep_last: Some(1), ..Retention::default() };
    plain.set_retention(worker.run, &retention).await.unwrap();
    while plain.compact(worker.run, 500).await.unwrap().run.is_some() {}
    let run = plain.run_of(&worker).await;
    let rewind = rewind_to(run.epoch, run.dropped_to.unwrap());
    assert!(matches!(plain.rewind(worker.run, &rewind).await.unwrap(), Rewound::Done(_)));
    let cx = engine.sealed().await;
    let worker = cx.start_worker(&cx.run_of(&worker).await).await;
    turns(&cx, &worker, 20..=21).await;
    assert_eq!(count(&cx, &worker).await.unwrap(), 21);
}

async fn another_body_is_a_conflict_before_and_after(engine: &Engine) {
    let plain = engine.plain().await;
    let worker = plain.worker().await;
    let (mut commit, mut records) = (turn(&worker, 1), batch(&worker));
    plain.commit(&commit).await.unwrap();
    plain.write_records(&records).await.unwrap();
    let cx = engine.sealed().await;
    commit.digest = [9; 32];
    assert!(matches!(cx.commit(&commit).await.unwrap(), Committed::Conflict { .. }));
    records.digest = [9; 32];
    assert_eq!(cx.write_records(&records).await.unwrap(), Written::Conflict);
    // The same for a sealed boundary.
    let mut commit = turn(&worker, 2);
    cx.commit(&commit).await.unwrap();
    assert!(matches!(cx.commit(&commit).await.unwrap(), Committed::Duplicate(_)));
    commit.digest = [9; 32];
    assert!(matches!(cx.commit(&commit).await.unwrap(), Committed::Conflict { .. }));
}

async fn two_processes_that_start_together_share_one_data_key(engine: &Engine) {
    let worker = engine.plain().await.worker().await;
    let (one, two) = (engine.sealed().await, engine.sealed().await);
    let (batches, others) = (batch(&worker), batch(&worker));
    let both = tokio::join!(one.write_records(&batches), two.write_records(&others));
    assert_eq!((both.0.unwrap(), both.1.unwrap()), (Written::Ok, Written::Ok));
    read_all(&one, worker.run).await.unwrap();
    read_all(&engine.sealed().await, worker.run).await.unwrap();
    assert_eq!(data_keys(engine).await, "1");
}

async fn a_process_without_keys_reports_no_retry_as_a_conflict(engine: &Engine) {
    let cx = engine.sealed().await;
    let worker = cx.worker().await;
    let (commit, records, finish) = (turn(&worker, 1), batch(&worker), worker.finish());
    cx.commit(&commit).await.unwrap();
    cx.write_records(&records).await.unwrap();
    let without_keys = engine.plain().await;
    assert!(matches!(without_keys.commit(&commit).await, Err(Error::Unusable(_))));
    assert!(matches!(without_keys.write_records(&records).await, Err(Error::Unusable(_))));
    cx.finish(&finish).await.unwrap();
    assert!(matches!(without_keys.finish(&finish).await, Err(Error::Unusable(_))));
}

async fn a_process_without_keys_writes_nothing_plain_to_a_sealed_run(engine: &Engine) {
    fn is_refused<T>(done: dalsegno_model::Result<T>) -> bool {
        matches!(done, Err(Error::Unusable(why)) if why.contains("--encryption-keys"))
    }
    let (cx, without_keys) = (engine.sealed().await, engine.plain().await);
    let worker = worked(&cx, 3).await;
    let claim = cx.start_call(&worker, "pay", Policy::RetrySameKey).await;
    let before = cx.run_of(&worker).await;
    // Among other commits, which share its statements.
    let mut commits = Vec::new();
    for _ in 0..8 {
        commits.push(without_keys.worker().await.result(1));
    }
    commits.push(worker.result(4));
    let done = join_all(commits.iter().map(|commit| without_keys.commit(commit))).await;
    for (commit, done) in commits.iter().zip(done) {
        if commit.run == worker.run {
            assert!(is_refused(done));
        } else {
            ok(done.unwrap());
        }
    }
    assert!(is_refused(without_keys.commit(&turn(&worker, 4)).await));
    assert!(is_refused(without_keys.write_records(&batch(&worker)).await));
    let claim_of = |id: &str| worker.claim(id, Policy::RetrySameKey);
    let bare = |id: &str| Claim { arguments: None, ..claim_of(id) };
    for begun in [claim_of("new"), bare("new"), Claim { key: None, ..bare("call-3") }] {
        assert!(is_refused(without_keys.claim(&begun).await), "{}", begun.id);
    }
    assert!(is_refused(without_keys.complete(&worker.complete(&claim)).await));
    assert_eq!(without_times(cx.run_of(&worker).await), without_times(before), "nothing is written");

    cx.end_and_reserve(&worker, Class::Disruption).await;
    assert!(is_refused(without_keys.settle(&person_settles(worker.run, "pay")).await));
    cx.settle(&person_settles(worker.run, "pay")).await.unwrap();
    let worker = cx.start_worker(&cx.run_of(&worker).await).await;
    ok(cx.commit(&turn(&worker, 4)).await.unwrap());
    assert_eq!(check(&cx).await.1, []);
}

async fn a_late_plain_snapshot_does_not_replace_a_sealed_one(engine: &Engine) {
    let plain = engine.plain().await;
    let worker = plain.worker().await;
    for number in 1..=12 {
        ok(plain.commit(&turn(&worker, number)).await.unwrap());
    }
    let cx = engine.sealed().await;
    assert!(cx.snapshot(worker.run).await.unwrap().made);
    let first = "SELECT CAST(substr(document, 1, 1) AS text) FROM snapshots";
    let sealed = engine.ask(first).await;

    // The late snapshotter looks before the sealed snapshot is visible, and writes after it is.
    let mut session = engine.session().await;
    for sql in ["CREATE TABLE aside AS SELECT * FROM snapshots", "DELETE FROM snapshots", "BEGIN"] {
        session.execute(sql).await;
    }
    session.execute("INSERT INTO snapshots SELECT * FROM aside").await;
    let comes = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        session.execute("COMMIT").await;
    };
    let (late, ()) = tokio::join!(plain.snapshot(worker.run), comes);
    assert!(matches!(late, Err(Error::Unusable(_))), "it reads back the stored snapshot: {late:?}");
    assert_eq!(engine.ask(first).await, sealed);
    read_all(&engine.sealed().await, worker.run).await.unwrap();
    assert_eq!(check(&cx).await.1, []);
}
