//! Retention: payloads are dropped when they expire, and nothing else is.

use dalsegno_model::{
    CallFilter, Claim, Commit, Dropped, Error, EventQuery, Lifecycle, NewRun, OnPrior, Retention, RunId,
};
use dalsegno_proof::verify;
use dalsegno_protocol::{Payload, Policy, RecordOp};

use crate::context::*;
use crate::engines::{on_every_engine, on_every_persistent_engine, tamper};

on_every_engine! {
    a_live_run_never_expires,
    a_closed_run_is_kept_for_its_retention_days,
    the_workers_payloads_are_dropped_and_the_rest_stays,
    a_step_drops_at_most_the_given_number_of_rows,
    a_step_drops_a_limited_number_of_bytes,
    a_deleted_run_expires_too,
    two_operators_drop_each_row_once,
}

on_every_persistent_engine! {
    a_later_audit_row_does_not_extend_the_retention_of_a_closed_run,
}

/// A run with turns, events, a call and records, and a retention of this number of days.
async fn written(cx: &TestContext, days: i32) -> Worker {
    let worker = cx.worker().await;
    for turn in 1..=3 {
        let commit = Commit { events: vec![json("1"), json("2")], ..worker.result(turn) };
        ok(cx.commit(&commit).await.unwrap());
    }
    let claim = cx.start_call(&worker, "pay", Policy::Probe).await;
    cx.complete(&worker.complete(&claim)).await.unwrap();
    let note =
        |key: &str| RecordOp::Put { space: "s".into(), key: key.into(), value: Payload::Json(json("1")) };
    let batch = worker.record_batch(vec![note("a"), note("b")]);
    cx.write_records(&batch).await.unwrap();
    keep(cx, worker.run, days).await;
    worker
}

async fn keep(cx: &TestContext, run: RunId, days: i32) {
    let retention = Retention { days, ..Retention::default() };
    assert_eq!(cx.set_retention(run, &retention).await.unwrap().retention, retention);
}

async fn over(cx: &TestContext, days: i32) -> Worker {
    let worker = written(cx, days).await;
    ok(cx.finish(&worker.finish()).await.unwrap());
    worker
}

/// The number of boundaries, calls and entries that still have payloads.
async fn payloads(cx: &TestContext, run: RunId) -> (usize, usize, usize) {
    let boundaries = cx.boundaries(run, 1, 9).await.unwrap();
    let calls = cx.calls(run, CallFilter::All).await.unwrap();
    let query = all_records();
    let records = cx.read_records(run, &query).await.unwrap().records;
    (
        boundaries.iter().filter(|row| row.ops.is_some() && !row.events.is_empty()).count(),
        calls.iter().filter(|call| call.arguments.is_some() && call.result.is_some()).count(),
        records.len(),
    )
}

async fn a_live_run_never_expires(cx: &TestContext) {
    let worker = written(cx, 0).await;
    cx.end_and_reserve(&worker, dalsegno_model::Class::Crash).await;
    assert!(cx.runs_to_expire(RunId::nil()).await.unwrap().is_empty());
    assert_eq!(cx.store.expire(worker.run, 500).await.unwrap(), Dropped::default());
    assert_eq!(payloads(cx, worker.run).await, (3, 1, 2));
    let worker = cx.start_worker(&cx.run_of(&worker).await).await;
    cx.commit_turn(&worker, 4).await;
}

async fn a_closed_run_is_kept_for_its_retention_days(cx: &TestContext) {
    let worker = over(cx, 1).await;
    assert_eq!(cx.drop_expired(500).await.unwrap(), Dropped::default());
    assert_eq!(payloads(cx, worker.run).await, (3, 1, 2));
    keep(cx, worker.run, 0).await;
    assert_eq!(cx.drop_expired(500).await.unwrap().run, Some(worker.run));
}

async fn the_workers_payloads_are_dropped_and_the_rest_stays(cx: &TestContext) {
    let worker = over(cx, 0).await;
    let other = over(cx, 1).await;
    let before = cx.run_of(&worker).await;
    let rows = cx.audit(worker.run).await.unwrap().len();
    // Two entries, one batch and its operations, one call, three boundaries.
    let dropped = Dropped { run: Some(worker.run), rows: 8, done: true };
    assert_eq!(cx.drop_expired(500).await.unwrap(), dropped);
    assert_eq!(cx.drop_expired(500).await.unwrap(), Dropped::default(), "once");
    assert_eq!(payloads(cx, worker.run).await, (0, 0, 0));
    assert_eq!(payloads(cx, other.run).await, (3, 1, 2), "another run's payloads stay");

    let mut after = cx.run_of(&worker).await;
    if cx.sealed {
        // The data key is deleted, and with it what the finish said.
        let lost = std::mem::replace(&mut after.finish, before.finish.clone()).unwrap();
        assert_eq!((lost.message.as_str(), lost.output), ("(encrypted, and its key is not there)", None));
    }
    assert_eq!(without_times(after), without_times(before));
    let state = cx.state(worker.run, None).await;
    assert!(matches!(state, Err(Error::Gone { .. })), "it cannot be resumed: {state:?}");
    let events = cx.events(worker.run, EventQuery { from: 1, limit: 9, bytes: 999 }).await.unwrap();
    assert!(events.events.is_empty() && events.over);
    assert_eq!(cx.boundaries(worker.run, 1, 9).await.unwrap().len(), 3, "the headers stay");
    let found = verify::scan(&*cx.store, &cx.run_of(&worker).await).await.unwrap();
    assert_eq!((found.last_good, found.dropped, found.damage), (None, 3, Vec::new()));
    let audit = cx.audit(worker.run).await.unwrap();
    cx.assert_audit_is_valid(worker.run).await;
    assert_eq!((audit.len(), audit.last().unwrap().kind.as_str()), (rows + 1, "expired"));
}

async fn a_step_drops_at_most_the_given_number_of_rows(cx: &TestContext) {
    let worker = over(cx, 0).await;
    let mut steps = Vec::new();
    for _ in 0..4 {
        let Dropped { run, rows, done } = cx.drop_expired(3).await.unwrap();
        steps.push((run.is_some(), rows, done));
    }
    assert_eq!(steps, [(true, 3, false), (true, 3, false), (true, 2, true), (false, 0, false)]);
    let rows = cx.audit(worker.run).await.unwrap();
    assert_eq!(rows.iter().filter(|row| row.kind == "expired").count(), 1);
}

async fn a_step_drops_a_limited_number_of_bytes(cx: &TestContext) {
    let worker = cx.worker().await;
    for turn in 1..=3 {
        cx.commit_large_turn(&worker, turn, 6 << 20).await;
    }
    let arguments = Some(json(&format!("{:?}", noise(4, 6 << 20))));
    cx.claim(&Claim { arguments, ..worker.claim("pay", Policy::RetrySameKey) }).await.unwrap();
    ok(cx.finish(&worker.finish()).await.unwrap());
    keep(cx, worker.run, 0).await;
    let mut steps = Vec::new();
    while let Dropped { run: Some(_), rows, done } = cx.drop_expired(500).await.unwrap() {
        steps.push((rows, done));
    }
    assert_eq!(steps, [(3, false), (1, true)], "3 MiB each");
}

async fn a_deleted_run_expires_too(cx: &TestContext) {
    let worker = written(cx, 0).await;
    cx.mark_deleted(&worker.object_uid).await.unwrap();
    assert_eq!(cx.run_of(&worker).await.lifecycle, Lifecycle::Deleted);
    assert_eq!(cx.drop_expired(500).await.unwrap().run, Some(worker.run));
    assert_eq!(payloads(cx, worker.run).await, (0, 0, 0));
}

async fn a_later_audit_row_does_not_extend_the_retention_of_a_closed_run(cx: &TestContext) {
    let (deleted, abandoned) = (written(cx, 1).await, written(cx, 1).await);
    cx.mark_deleted(&deleted.object_uid).await.unwrap();
    let run = cx.run_of(&abandoned).await;
    let ignoring = NewRun { name: run.name, on_prior: OnPrior::Ignore, ..new_run() };
    cx.create(&ignoring).await;
    assert_eq!(cx.run_of(&abandoned).await.lifecycle, Lifecycle::Abandoned);
    assert_eq!(cx.drop_expired(500).await.unwrap(), Dropped::default(), "less than a day has passed");

    assert_eq!(tamper(cx, "UPDATE runs SET over_at = over_at - 86400000").await, 3, "a day later");
    let tenant = new_run().tenant;
    assert_eq!(cx.adopt_namespace(&tenant, "a restored cluster's").await.unwrap(), 3);
    let mut dropped = Vec::new();
    while let Some(run) = cx.drop_expired(500).await.unwrap().run {
        dropped.push(run);
    }
    assert_eq!(dropped, [deleted.run, abandoned.run]);
}

async fn two_operators_drop_each_row_once(cx: &TestContext) {
    for _ in 0..4 {
        over(cx, 0).await;
    }
    let operator = async || {
        let mut rows = 0;
        loop {
            let dropped = cx.drop_expired(2).await.unwrap();
            rows += dropped.rows;
            if dropped.run.is_none() {
                return rows;
            }
        }
    };
    let (left, right) = tokio::join!(operator(), operator());
    let rest = operator().await;
    assert_eq!(left + right + rest, 4 * 8);
}
