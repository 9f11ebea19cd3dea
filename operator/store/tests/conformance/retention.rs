//! What is past its retention is dropped, and nothing else.

use dalsegno_protocol::{Payload, Policy, RecordOp};
use dalsegno_store::{
    CallFilter, Claim, Commit, Dropped, Error, EventQuery, Lifecycle, NewRun, OnPrior, RecordBatch,
    RecordQuery, Retention, RunId, verify,
};
use uuid::Uuid;

use crate::faces::{on_every_face, on_every_lasting_face, tamper};
use crate::world::*;

on_every_face! {
    a_live_run_never_expires,
    a_run_that_is_over_stays_for_its_days,
    what_the_worker_wrote_is_dropped_and_the_rest_stays,
    it_is_dropped_in_steps_of_so_many_rows,
    no_step_drops_many_more_than_so_many_bytes,
    a_run_that_was_deleted_expires_as_well,
    two_operators_drop_each_row_once,
}

on_every_lasting_face! {
    no_later_row_of_the_audit_moves_the_end_of_a_run_that_was_never_finished,
}

/// A run with turns, events, a call and records, whose payloads stay for so many days.
async fn written(world: &World, days: i32) -> Worker {
    let worker = world.worker().await;
    for turn in 1..=3 {
        let commit = Commit { events: vec![json("1"), json("2")], ..worker.result(turn) };
        ok(world.commit(&commit).await.unwrap());
    }
    let claim = world.start_call(&worker, "pay", Policy::Probe).await;
    world.complete(&worker.complete(&claim)).await.unwrap();
    let note =
        |key: &str| RecordOp::Put { space: "s".into(), key: key.into(), value: Payload::Json(json("1")) };
    let batch = RecordBatch {
        run: worker.run,
        capability: worker.capability,
        batch_id: Uuid::new_v4(),
        digest: random(),
        operations: vec![note("a"), note("b")],
    };
    world.write_records(&batch).await.unwrap();
    keep(world, worker.run, days).await;
    worker
}

async fn keep(world: &World, run: RunId, days: i32) {
    let retention = Retention { days, ..Retention::default() };
    assert_eq!(world.set_retention(run, &retention).await.unwrap().retention, retention);
}

async fn over(world: &World, days: i32) -> Worker {
    let worker = written(world, days).await;
    ok(world.finish(&worker.finish()).await.unwrap());
    worker
}

/// Boundaries, calls and entries whose payloads are there.
async fn payloads(world: &World, run: RunId) -> (usize, usize, usize) {
    let boundaries = world.boundaries(run, 1, 9).await.unwrap();
    let calls = world.calls(run, CallFilter::All).await.unwrap();
    let query = RecordQuery { space: "s".into(), prefix: String::new(), after: None, limit: 9, bytes: 999 };
    let records = world.read_records(run, &query).await.unwrap().records;
    (
        boundaries.iter().filter(|row| row.ops.is_some() && !row.events.is_empty()).count(),
        calls.iter().filter(|call| call.arguments.is_some() && call.result.is_some()).count(),
        records.len(),
    )
}

async fn a_live_run_never_expires(world: &World) {
    let worker = written(world, 0).await;
    world.lose(&worker, dalsegno_store::Class::Crash).await;
    assert!(world.expired(RunId::nil()).await.unwrap().is_empty());
    assert_eq!(world.store.drop_expired(worker.run, 500).await.unwrap(), Dropped::default());
    assert_eq!(payloads(world, worker.run).await, (3, 1, 2));
    let worker = world.work_on(&world.of(&worker).await).await;
    world.turn(&worker, 4).await;
}

async fn a_run_that_is_over_stays_for_its_days(world: &World) {
    let worker = over(world, 1).await;
    assert_eq!(world.drop_expired(500).await.unwrap(), Dropped::default());
    assert_eq!(payloads(world, worker.run).await, (3, 1, 2));
    keep(world, worker.run, 0).await;
    assert_eq!(world.drop_expired(500).await.unwrap().run, Some(worker.run));
}

async fn what_the_worker_wrote_is_dropped_and_the_rest_stays(world: &World) {
    let worker = over(world, 0).await;
    let other = over(world, 1).await;
    let before = world.of(&worker).await;
    let rows = world.audit(worker.run).await.unwrap().len();
    // Two entries, one batch and what it said, one call, three boundaries.
    let dropped = Dropped { run: Some(worker.run), rows: 8, done: true };
    assert_eq!(world.drop_expired(500).await.unwrap(), dropped);
    assert_eq!(world.drop_expired(500).await.unwrap(), Dropped::default(), "once");
    assert_eq!(payloads(world, worker.run).await, (0, 0, 0));
    assert_eq!(payloads(world, other.run).await, (3, 1, 2), "another run's stay");

    assert_eq!(still(world.of(&worker).await), still(before));
    let state = world.state(worker.run, None).await;
    assert!(matches!(state, Err(Error::Gone { .. })), "nothing goes on from it: {state:?}");
    let events = world.events(worker.run, EventQuery { from: 1, limit: 9, bytes: 999 }).await.unwrap();
    assert!(events.events.is_empty() && events.over);
    assert_eq!(world.boundaries(worker.run, 1, 9).await.unwrap().len(), 3, "their headers");
    let found = verify::survey(&*world.store, &world.of(&worker).await).await.unwrap();
    assert_eq!((found.last_good, found.dropped, found.damage), (None, 3, Vec::new()));
    let audit = world.audit(worker.run).await.unwrap();
    world.proves_itself(worker.run).await;
    assert_eq!((audit.len(), audit.last().unwrap().kind.as_str()), (rows + 1, "expired"));
}

async fn it_is_dropped_in_steps_of_so_many_rows(world: &World) {
    let worker = over(world, 0).await;
    let mut steps = Vec::new();
    for _ in 0..4 {
        let Dropped { run, rows, done } = world.drop_expired(3).await.unwrap();
        steps.push((run.is_some(), rows, done));
    }
    assert_eq!(steps, [(true, 3, false), (true, 3, false), (true, 2, true), (false, 0, false)]);
    let told = world.audit(worker.run).await.unwrap();
    assert_eq!(told.iter().filter(|row| row.kind == "expired").count(), 1);
}

async fn no_step_drops_many_more_than_so_many_bytes(world: &World) {
    let worker = world.worker().await;
    for turn in 1..=3 {
        world.heavy_turn(&worker, turn, 6 << 20).await;
    }
    let arguments = Some(json(&format!("{:?}", noise(4, 6 << 20))));
    world.claim(&Claim { arguments, ..worker.claim("pay", Policy::Probe) }).await.unwrap();
    ok(world.finish(&worker.finish()).await.unwrap());
    keep(world, worker.run, 0).await;
    let mut steps = Vec::new();
    while let Dropped { run: Some(_), rows, done } = world.drop_expired(500).await.unwrap() {
        steps.push((rows, done));
    }
    assert_eq!(steps, [(3, false), (1, true)], "3 MiB each");
}

async fn a_run_that_was_deleted_expires_as_well(world: &World) {
    let worker = written(world, 0).await;
    world.mark_deleted(&worker.object_uid).await.unwrap();
    assert_eq!(world.of(&worker).await.lifecycle, Lifecycle::Deleted);
    assert_eq!(world.drop_expired(500).await.unwrap().run, Some(worker.run));
    assert_eq!(payloads(world, worker.run).await, (0, 0, 0));
}

async fn no_later_row_of_the_audit_moves_the_end_of_a_run_that_was_never_finished(world: &World) {
    let (deleted, abandoned) = (written(world, 1).await, written(world, 1).await);
    world.mark_deleted(&deleted.object_uid).await.unwrap();
    let run = world.of(&abandoned).await;
    let ignoring = NewRun { name: run.name, on_prior: OnPrior::Ignore, ..new_run() };
    world.take_up(&ignoring).await;
    assert_eq!(world.of(&abandoned).await.lifecycle, Lifecycle::Abandoned);
    assert_eq!(world.drop_expired(500).await.unwrap(), Dropped::default(), "a day is not over");

    assert_eq!(tamper(world, "UPDATE runs SET over_at = over_at - 86400000").await, 3, "a day later");
    let tenant = new_run().tenant;
    assert_eq!(world.adopt_namespace(&tenant, "a restored cluster's", "ada", "restored").await.unwrap(), 3);
    let mut dropped = Vec::new();
    while let Some(run) = world.drop_expired(500).await.unwrap().run {
        dropped.push(run);
    }
    assert_eq!(dropped, [deleted.run, abandoned.run]);
}

async fn two_operators_drop_each_row_once(world: &World) {
    for _ in 0..4 {
        over(world, 0).await;
    }
    let operator = async || {
        let mut rows = 0;
        loop {
            let dropped = world.drop_expired(2).await.unwrap();
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
