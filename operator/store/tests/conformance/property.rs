//! Whatever two writers do, in whatever order: turns stay gap-free and hash-linked, each committed once.

use std::collections::BTreeSet;

use dalsegno_protocol::Boundary;
use dalsegno_store::{Class, Commit, Committed, Then};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::faces::on_every_face;
use crate::world::*;

on_every_face! {
    any_sequence_of_two_writers_keeps_turns_gap_free_and_linked,
}

/// Sequences that are tried on each face.
const CASES: u32 = 64;

/// What one of the two writers, or the operator, does next.
#[derive(Clone, Debug)]
enum Step {
    /// Attach to the current attempt, its pod recorded if it is not.
    Attach(usize),
    /// Commit the boundary at this distance from what the writer believes to be the next.
    Commit(usize, Boundary, i32),
    /// Send the writer's last commit again.
    Retry(usize),
    /// The writer learns the head.
    Look(usize),
    /// The current attempt ends.
    End(Class, bool),
}

fn step() -> impl Strategy<Value = Step> {
    let writer = 0..2_usize;
    let boundary = prop_oneof![Just(Boundary::Plan), Just(Boundary::Result)];
    let class = prop_oneof![Just(Class::Crash), Just(Class::Disruption), Just(Class::Neutral)];
    prop_oneof![
        2 => writer.clone().prop_map(Step::Attach),
        6 => (writer.clone(), boundary, prop_oneof![4 => Just(0), 1 => -2..=2]).prop_map(|(w, b, d)| Step::Commit(w, b, d)),
        2 => writer.clone().prop_map(Step::Retry),
        2 => writer.prop_map(Step::Look),
        1 => (class, any::<bool>()).prop_map(|(c, reserve)| Step::End(c, reserve)),
    ]
}

/// A writer, what it believes, and what it last sent.
#[derive(Default)]
struct Writer {
    worker: Option<Worker>,
    next_turn: i32,
    last: Option<Commit>,
}

async fn any_sequence_of_two_writers_keeps_turns_gap_free_and_linked(world: &World) {
    let mut runner = TestRunner::new(Config { cases: CASES, ..Config::default() });
    let steps = proptest::collection::vec(step(), 1..40);
    let runtime = tokio::runtime::Handle::current();
    let outcome = tokio::task::block_in_place(|| {
        runner.run(&steps, |steps| {
            runtime.block_on(play(world, steps));
            Ok(())
        })
    });
    outcome.unwrap();
}

async fn play(world: &World, steps: Vec<Step>) {
    let run = world.run().await;
    let mut writers = [Writer::default(), Writer::default()];
    let mut accepted = BTreeSet::new();
    for step in steps {
        let now = world.look(&run.object_uid).await;
        match step {
            Step::Attach(who) => {
                let pod = pod(&now);
                let _ = world.record_pod(run.id, now.attempt.number, &pod).await.unwrap();
                let worker = Worker {
                    run: run.id,
                    object_uid: run.object_uid.clone(),
                    attempt: now.attempt.number,
                    pod_uid: pod.uid,
                    capability: random(),
                };
                let _ = world.attach(run.id, &worker.pod_uid, &worker.capability).await.unwrap();
                writers[who].worker = Some(worker);
                writers[who].next_turn = now.head.map_or(1, |head| head.turn + 1);
            }
            Step::Commit(who, boundary, distance) => {
                let Some(worker) = &writers[who].worker else { continue };
                let commit = worker.commit(writers[who].next_turn + distance, boundary);
                send(world, &commit, &mut accepted).await;
                if boundary == Boundary::Result && distance == 0 {
                    writers[who].next_turn += 1;
                }
                writers[who].last = Some(commit);
            }
            Step::Retry(who) => {
                if let Some(last) = &writers[who].last {
                    send(world, last, &mut accepted).await;
                }
            }
            Step::Look(who) => {
                writers[who].next_turn = now.head.map_or(1, |head| match head.boundary {
                    Boundary::Plan => head.turn,
                    Boundary::Result => head.turn + 1,
                })
            }
            Step::End(class, reserve) => {
                let then = if reserve { Then::Reserve } else { Then::Nothing };
                let after =
                    world.end_attempt(run.id, &ending(now.attempt.number, class), &then).await.unwrap();
                assert!(after.epoch >= now.epoch);
            }
        }
    }
    let anybody = Worker {
        run: run.id,
        object_uid: run.object_uid.clone(),
        attempt: 1,
        pod_uid: String::new(),
        capability: random(),
    };
    world.assert_linked(&anybody).await;
    let head = world.of(&anybody).await.head.map_or(0, |head| head.turn);
    let kept: BTreeSet<_> =
        world.boundaries(run.id, 1, head).await.unwrap().into_iter().map(|row| row.commit_id).collect();
    assert_eq!(kept, accepted, "what was acknowledged is there, once, and nothing else");
}

async fn send(world: &World, commit: &Commit, accepted: &mut BTreeSet<uuid::Uuid>) {
    match world.commit(commit).await.unwrap() {
        Committed::Ok(_) => assert!(accepted.insert(commit.commit_id), "accepted twice"),
        Committed::Duplicate(_) => assert!(accepted.contains(&commit.commit_id), "a duplicate of nothing"),
        Committed::Fenced { committed } => assert_eq!(committed, accepted.contains(&commit.commit_id)),
        Committed::Conflict { .. } => {}
        other => panic!("{other:?}"),
    }
}
