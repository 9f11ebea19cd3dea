//! Going back to an earlier boundary: what comes after it is undone, and stays to be read.

use dalsegno_protocol::{Boundary, Policy};
use dalsegno_store::{
    AttemptState, Claimed, Class, Commit, Committed, Place, Rewind, Rewound, RunRecord, Then, verify,
};

use crate::faces::on_every_face;
use crate::world::*;

on_every_face! {
    the_run_goes_on_from_the_boundary_it_went_back_to,
    the_same_rewind_again_changes_nothing,
    what_came_after_a_rewind_was_decided_is_not_undone,
    only_a_boundary_of_the_live_branch_can_be_gone_back_to,
    a_worker_is_fenced_by_a_rewind,
    an_ended_attempt_stays_ended,
    a_plan_can_be_gone_back_to,
    a_rewind_is_told_with_what_it_undid,
    a_call_of_an_undone_turn_keeps_its_result,
    every_run_is_listed_once,
    a_survey_reads_every_boundary_once,
}

/// A run of so many turns, each with one event, whose next attempt is reserved.
async fn run_of(world: &World, turns: i32) -> (Worker, RunRecord) {
    let worker = world.worker().await;
    for turn in 1..=turns {
        let commit = Commit { events: vec![json("1")], ..worker.result(turn) };
        ok(world.commit(&commit).await.unwrap());
    }
    let run = world.lose(&worker, Class::Disruption).await;
    (worker, run)
}

fn back(run: &RunRecord, turn: i32) -> Rewind {
    let to = Place { turn, boundary: Boundary::Result, epoch: 1 };
    Rewind { epoch: run.epoch, to, reason: "turn 3 is damaged".into(), actor: "ada".into() }
}

#[track_caller]
pub fn done(rewound: Rewound) -> RunRecord {
    match rewound {
        Rewound::Done(run) => *run,
        Rewound::Refused(run) => panic!("refused, with {:?}", run.head),
    }
}

#[track_caller]
fn refused(rewound: Rewound) -> RunRecord {
    match rewound {
        Rewound::Refused(run) => *run,
        Rewound::Done(run) => panic!("not refused, with {:?}", run.head),
    }
}

async fn the_run_goes_on_from_the_boundary_it_went_back_to(world: &World) {
    let (_, before) = run_of(world, 3).await;
    let run = done(world.rewind(before.id, &back(&before, 1)).await.unwrap());
    let head = run.head.clone().unwrap();
    assert_eq!((head.turn, head.boundary, head.epoch, head.attempt), (1, Boundary::Result, 1, 1));
    assert_eq!(head.position, 3, "positions never go back");
    assert_eq!((run.highest_turn, run.epoch), (3, before.epoch + 1));
    assert_eq!((run.attempt.number, run.attempt.state), (2, AttemptState::Reserved));
    assert_eq!((run.attempt.epoch, run.attempt.turn_at_start), (run.epoch, 1));
    assert_eq!((run.counters, run.usage), (before.counters, before.usage));
    assert_eq!(run, world.look(&run.object_uid).await.clone_at(run.now), "what is answered is what stands");

    let worker = world.work_on(&run).await;
    let standing = ok(world.commit(&Commit { events: vec![json("1")], ..worker.result(2) }).await.unwrap());
    assert_eq!(standing.head.unwrap().position, 4);
    let rows = world.boundaries(run.id, 1, 9).await.unwrap();
    let live: Vec<_> = rows.iter().map(|row| (row.turn, row.epoch)).collect();
    assert_eq!(live, [(1, 1), (2, run.epoch)]);
    assert!(world.state(run.id, Some(2)).await.unwrap().is_some());
    assert!(world.state(run.id, Some(3)).await.unwrap().is_none());
    let found = verify::survey(&*world.store, &world.of(&worker).await).await.unwrap();
    assert_eq!((found.boundaries, found.damage), (4, vec![]));
}

trait CloneAt {
    fn clone_at(self, now: jiff::Timestamp) -> Self;
}

impl CloneAt for RunRecord {
    fn clone_at(self, now: jiff::Timestamp) -> Self {
        Self { now, ..self }
    }
}

async fn the_same_rewind_again_changes_nothing(world: &World) {
    let (_, before) = run_of(world, 3).await;
    let rewind = back(&before, 2);
    let run = done(world.rewind(before.id, &rewind).await.unwrap());
    let again = done(world.rewind(before.id, &rewind).await.unwrap());
    assert_eq!(still(run.clone()), still(again));
    let to_the_head = done(world.rewind(before.id, &Rewind { epoch: run.epoch, ..rewind }).await.unwrap());
    assert_eq!(still(run), still(to_the_head));
}

async fn what_came_after_a_rewind_was_decided_is_not_undone(world: &World) {
    let (_, before) = run_of(world, 3).await;
    let rewind = back(&before, 2);
    let run = done(world.rewind(before.id, &rewind).await.unwrap());
    let worker = world.work_on(&run).await;
    world.turn(&worker, 3).await;
    let run = refused(world.rewind(before.id, &rewind).await.unwrap());
    assert_eq!(run.head.unwrap().turn, 3);
    world.turn(&worker, 4).await;
}

async fn only_a_boundary_of_the_live_branch_can_be_gone_back_to(world: &World) {
    let (_, before) = run_of(world, 3).await;
    let run = done(world.rewind(before.id, &back(&before, 2)).await.unwrap());
    let place = |turn, boundary, epoch| Place { turn, boundary, epoch };
    for to in [
        place(3, Boundary::Result, 1),
        place(4, Boundary::Result, 1),
        place(0, Boundary::Result, 1),
        place(1, Boundary::Plan, 1),
        place(1, Boundary::Result, 2),
    ] {
        let answer = world.rewind(run.id, &Rewind { to, ..back(&run, 1) }).await.unwrap();
        assert_eq!(still(refused(answer)), still(run.clone()), "{to:?}");
    }
    let worker = world.work_on(&run).await;
    ok(world.finish(&worker.finish()).await.unwrap());
    let over = world.of(&worker).await;
    let answer = world.rewind(over.id, &back(&over, 1)).await.unwrap();
    assert_eq!(still(refused(answer)), still(over), "a finished run is never changed");
}

async fn a_worker_is_fenced_by_a_rewind(world: &World) {
    let worker = world.worker().await;
    let first = ok(world.commit(&worker.result(1)).await.unwrap());
    let second = worker.result(2);
    ok(world.commit(&second).await.unwrap());
    let before = world.of(&worker).await;
    let run = done(world.rewind(worker.run, &back(&before, 1)).await.unwrap());
    let late = world.commit(&worker.result(3)).await.unwrap();
    assert!(matches!(late, Committed::Fenced { committed: false }), "{late:?}");
    let undone = world.commit(&second).await.unwrap();
    assert!(matches!(undone, Committed::Fenced { committed: false }), "{undone:?}");
    assert_eq!((run.attempt.number, run.attempt.state), (2, AttemptState::Reserved));
    assert_eq!((run.attempt.epoch, run.attempt.turn_at_start), (run.epoch, 1));
    let end = run.past[0].end.clone().unwrap();
    assert_eq!((end.cause.as_str(), end.class, end.charged), ("Rewound", Class::Neutral, false));
    assert_eq!(run.past[0].turn_at_end, Some(2));
    assert_eq!(run.head.unwrap().content_hash, first.head.unwrap().content_hash);
}

async fn an_ended_attempt_stays_ended(world: &World) {
    let worker = world.worker().await;
    world.turn(&worker, 1).await;
    world.turn(&worker, 2).await;
    let ended = world.end_attempt(worker.run, &ending(1, Class::Crash), &Then::Nothing).await.unwrap();
    let run = done(world.rewind(worker.run, &back(&ended, 1)).await.unwrap());
    assert_eq!((run.attempt.number, run.attempt.state), (1, AttemptState::Ended));
    assert_eq!((run.head.unwrap().turn, run.epoch), (1, ended.epoch + 1));
}

async fn a_plan_can_be_gone_back_to(world: &World) {
    let worker = world.worker().await;
    ok(world.commit(&worker.plan(1)).await.unwrap());
    ok(world.commit(&worker.result(1)).await.unwrap());
    let run = world.lose(&worker, Class::Disruption).await;
    let to = Place { turn: 1, boundary: Boundary::Plan, epoch: 1 };
    let run = done(world.rewind(run.id, &Rewind { to, ..back(&run, 1) }).await.unwrap());
    assert_eq!(run.head.clone().unwrap().boundary, Boundary::Plan);
    let worker = world.work_on(&run).await;
    ok(world.commit(&worker.result(1)).await.unwrap());
    let found = verify::survey(&*world.store, &world.of(&worker).await).await.unwrap();
    assert_eq!((found.boundaries, found.damage), (3, vec![]));
}

async fn a_rewind_is_told_with_what_it_undid(world: &World) {
    let (worker, before) = run_of(world, 3).await;
    let rows = world.boundaries(worker.run, 2, 3).await.unwrap();
    done(world.rewind(worker.run, &back(&before, 1)).await.unwrap());
    let chain = world.audit(worker.run).await.unwrap();
    world.proves_itself(worker.run).await;
    let last = chain.last().unwrap();
    assert_eq!((last.kind.as_str(), last.actor.as_str()), ("rewound", "ada"));
    let detail: serde_json::Value = serde_json::from_str(&last.detail).unwrap();
    assert_eq!(detail["reason"], "turn 3 is damaged");
    assert_eq!((&detail["from"]["turn"], &detail["to"]["turn"]), (&3.into(), &1.into()));
    let undone: Vec<_> = rows
        .iter()
        .map(|row| {
            let hash = dalsegno_store::header::render(&row.content_hash);
            serde_json::json!({ "turn": row.turn, "boundary": "result", "hash": hash })
        })
        .collect();
    assert_eq!(detail["undone"], serde_json::Value::from(undone));

    let worker = world.work_on(&world.of(&worker).await).await;
    world.turn(&worker, 2).await;
    let run = world.of(&worker).await;
    done(world.rewind(worker.run, &back(&run, 1)).await.unwrap());
    let kinds: Vec<_> = world.audit(worker.run).await.unwrap().into_iter().map(|row| row.kind).collect();
    assert_eq!(kinds[kinds.len() - 3..], ["ended", "rewound", "reserved"]);
}

async fn a_call_of_an_undone_turn_keeps_its_result(world: &World) {
    let worker = world.worker().await;
    world.turn(&worker, 1).await;
    let claim = world.start_call(&worker, "pay", Policy::RetrySameKey).await;
    world.complete(&worker.complete(&claim)).await.unwrap();
    world.turn(&worker, 2).await;
    let run = world.lose(&worker, Class::Disruption).await;
    let run = done(world.rewind(run.id, &back(&run, 1)).await.unwrap());
    let worker = world.work_on(&run).await;
    let claimed = world.claim(&worker.claim("pay", Policy::RetrySameKey)).await.unwrap();
    assert!(matches!(claimed, Claimed::Done { .. }), "{claimed:?}");
}

async fn every_run_is_listed_once(world: &World) {
    let mut expected = Vec::new();
    for _ in 0..3 {
        expected.push(world.run().await.id);
    }
    expected.sort();
    let mut found = Vec::new();
    let mut after = uuid::Uuid::nil();
    loop {
        let page = world.run_ids(after).await.unwrap();
        let Some(last) = page.last() else { break };
        after = *last;
        found.extend(page);
    }
    assert_eq!(found, expected);
}

async fn a_survey_reads_every_boundary_once(world: &World) {
    let (worker, run) = run_of(world, 300).await;
    let mut after = None;
    let mut places = Vec::new();
    loop {
        let page = world.links(worker.run, after).await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.place);
        places.extend(page.iter().map(|link| link.place.turn));
        assert!(page.iter().all(|link| link.sound.is_ok() && !link.undone));
    }
    assert_eq!(places, (1..=300).collect::<Vec<_>>());
    let found = verify::survey(&*world.store, &run).await.unwrap();
    assert_eq!((found.boundaries, found.last_good.unwrap().turn), (300, 300));
}
