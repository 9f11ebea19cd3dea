//! Whatever two writers, a snapshotter that comes late, whoever goes back and whoever clears up do, in whatever order: turns
//! stay gap-free and hash-linked, each committed once, and every state is the fold of what was accepted, byte for byte.

use std::sync::Arc;

use dalsegno_protocol::Boundary;
use dalsegno_store::{
    Class, Commit, Committed, Error, Place, Result, Retention, Rewind, Rewound, RunId, RunRecord,
    Snapshotted, Then, audit, fold, header, verify,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::faces::on_every_face;
use crate::world::*;

on_every_face! {
    any_sequence_of_two_writers_keeps_turns_gap_free_and_linked,
}

/// Sequences that are tried on each face.
const CASES: u32 = 24;

/// What one of the two writers, or somebody beside them, does next.
#[derive(Clone, Debug)]
enum Step {
    /// Attach to the current attempt, its pod recorded if it is not.
    Attach(usize),
    /// Commit the boundary at this distance from what the writer believes to be the next.
    Commit(usize, Boundary, i32),
    /// Commit so many results, one after the other.
    Work(usize, i32),
    /// Send the writer's last commit again.
    Retry(usize),
    /// The writer learns the head.
    Look(usize),
    /// The current attempt ends.
    End(Class, bool),
    /// So many boundaries of the live branch are given up.
    Rewind(usize),
    /// A snapshotter begins; when it ends is chance.
    Snapshot,
    /// The run keeps no more than its last boundaries.
    Clear(i32),
}

fn step() -> impl Strategy<Value = Step> {
    let writer = 0..2_usize;
    let boundary = prop_oneof![Just(Boundary::Plan), Just(Boundary::Result)];
    let class = prop_oneof![Just(Class::Crash), Just(Class::Disruption), Just(Class::Neutral)];
    prop_oneof![
        4 => writer.clone().prop_map(Step::Attach),
        8 => (writer.clone(), boundary, prop_oneof![4 => Just(0), 1 => -2..=2]).prop_map(|(w, b, d)| Step::Commit(w, b, d)),
        2 => (writer.clone(), 2..14).prop_map(|(w, n)| Step::Work(w, n)),
        4 => writer.clone().prop_map(Step::Retry),
        4 => writer.prop_map(Step::Look),
        2 => (class, any::<bool>()).prop_map(|(c, reserve)| Step::End(c, reserve)),
        1 => (0..6_usize).prop_map(Step::Rewind),
        2 => Just(Step::Snapshot),
        1 => (1..5_i32).prop_map(Step::Clear),
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

/// What must stand in the store.
struct Play<'a> {
    world: &'a World,
    run: RunId,
    object_uid: String,
    writers: [Writer; 2],
    /// The live branch: where each boundary stands, its commit and its operations.
    live: Vec<(Place, Uuid, String)>,
    snapshotters: Vec<JoinHandle<Result<Snapshotted>>>,
}

async fn play(world: &World, steps: Vec<Step>) {
    let run = world.run().await;
    let mut play = Play {
        world,
        run: run.id,
        object_uid: run.object_uid,
        writers: Default::default(),
        live: Vec::new(),
        snapshotters: Vec::new(),
    };
    for step in steps {
        let now = world.look(&play.object_uid).await;
        play.step(step, now).await;
    }
    play.end().await;
}

impl Play<'_> {
    async fn step(&mut self, step: Step, now: RunRecord) {
        match step {
            Step::Attach(who) => self.attach(who, now).await,
            Step::Commit(who, boundary, distance) => self.commit(who, boundary, distance).await,
            Step::Work(who, turns) => {
                for _ in 0..turns {
                    self.commit(who, Boundary::Result, 0).await;
                }
            }
            Step::Retry(who) => {
                if let Some(last) = self.writers[who].last.take() {
                    self.send(&last).await;
                    self.writers[who].last = Some(last);
                }
            }
            Step::Look(who) => {
                self.writers[who].next_turn = now.head.map_or(1, |head| match head.boundary {
                    Boundary::Plan => head.turn,
                    Boundary::Result => head.turn + 1,
                })
            }
            Step::End(class, reserve) => {
                let then = if reserve { Then::Reserve } else { Then::Nothing };
                let ending = ending(now.attempt.number, class);
                let after = self.world.end_attempt(self.run, &ending, &then).await.unwrap();
                assert!(after.epoch >= now.epoch);
            }
            Step::Rewind(boundaries) => self.rewind(boundaries, now).await,
            Step::Snapshot => {
                let (store, run) = (Arc::clone(&self.world.store), self.run);
                self.snapshotters.push(tokio::spawn(async move { store.snapshot(run).await }));
            }
            Step::Clear(keep_last) => {
                let retention = Retention { keep_last: Some(keep_last), ..Retention::default() };
                self.world.set_retention(self.run, &retention).await.unwrap();
                while self.world.drop_old(self.run, 7).await.unwrap().run.is_some() {}
            }
        }
    }

    async fn attach(&mut self, who: usize, now: RunRecord) {
        let pod = pod(&now);
        let _ = self.world.record_pod(self.run, now.attempt.number, &pod).await.unwrap();
        let worker = Worker {
            run: self.run,
            object_uid: self.object_uid.clone(),
            attempt: now.attempt.number,
            pod_uid: pod.uid,
            capability: random(),
        };
        let _ = self.world.attach(self.run, &worker.pod_uid, &worker.capability).await.unwrap();
        self.writers[who].worker = Some(worker);
        self.writers[who].next_turn = now.head.map_or(1, |head| head.turn + 1);
    }

    async fn commit(&mut self, who: usize, boundary: Boundary, distance: i32) {
        let Some(worker) = &self.writers[who].worker else { return };
        let turn = self.writers[who].next_turn + distance;
        let commit = worker.commit(turn, boundary);
        // One of ten is the full state.
        let full = if commit.digest[0] < 26 { r#""full":true,"# } else { "" };
        let text = format!(r#"{{{full}"append":{{"log":[{{"json":"{}"}}]}}}}"#, commit.commit_id);
        let commit = Commit { ops: Some(text.into()), full: !full.is_empty(), ..commit };
        self.send(&commit).await;
        if boundary == Boundary::Result && distance == 0 {
            self.writers[who].next_turn += 1;
        }
        self.writers[who].last = Some(commit);
    }

    async fn send(&mut self, commit: &Commit) {
        let stands = self.live.iter().any(|(_, id, _)| *id == commit.commit_id);
        match self.world.commit(commit).await.unwrap() {
            Committed::Ok(_) => {
                assert!(!stands, "accepted twice");
                let epoch = self.world.look(&self.object_uid).await.epoch;
                let place = Place { turn: commit.turn, boundary: commit.boundary, epoch };
                let ops = String::from_utf8(commit.ops.clone().unwrap()).unwrap();
                self.live.push((place, commit.commit_id, ops));
            }
            Committed::Duplicate(_) => assert!(stands, "a duplicate of nothing"),
            Committed::Fenced { committed } => assert_eq!(committed, stands),
            Committed::Conflict { .. } => {}
            other => panic!("{other:?}"),
        }
    }

    async fn rewind(&mut self, boundaries: usize, now: RunRecord) {
        let Some(left) = self.live.len().checked_sub(boundaries).filter(|left| *left > 0) else { return };
        let to = self.live[left - 1].0;
        let rewind = Rewind { epoch: now.epoch, to, reason: "it went astray".into(), actor: "ada".into() };
        match self.world.rewind(self.run, &rewind).await.unwrap() {
            Rewound::Done(_) => self.live.truncate(left),
            Rewound::Refused(run) => assert!(run.dropped_to.is_some_and(|last| to < last), "{to}"),
        }
    }

    /// All that stands is what was accepted and not given up; of what was dropped the headers are there.
    async fn end(self) {
        for snapshotter in self.snapshotters {
            let answer = snapshotter.await.unwrap();
            assert!(!matches!(answer, Err(Error::Unavailable { .. })), "{answer:?}");
        }
        let run = self.world.look(&self.object_uid).await;
        let rows = self.world.boundaries(self.run, 1, i32::MAX).await.unwrap();
        let kept: Vec<_> = rows.iter().map(|row| (row.place(), row.commit_id)).collect();
        let accepted: Vec<_> = self.live.iter().map(|(place, id, _)| (*place, *id)).collect();
        assert_eq!(kept, accepted, "what was acknowledged is there, once, and nothing else");
        assert!(rows.first().is_none_or(|row| row.turn == 1 && row.parent_hash == header::NO_PARENT));
        for pair in rows.windows(2) {
            let (before, row) = (&pair[0], &pair[1]);
            let follows = match before.boundary {
                Boundary::Plan => (row.turn, row.boundary) == (before.turn, Boundary::Result),
                Boundary::Result => row.turn == before.turn + 1,
            };
            assert!(
                follows && row.parent_hash == before.content_hash,
                "{} after {}",
                row.place(),
                before.place()
            );
        }
        for turn in 1..=run.head.as_ref().map_or(0, |head| head.turn) {
            let before = self.live.iter().filter(|(place, ..)| place.turn <= turn);
            let last = before.clone().next_back().map(|(place, ..)| *place);
            match self.world.state(self.run, Some(turn)).await {
                Err(Error::Gone { .. }) => assert!(last < run.dropped_to, "turn {turn}"),
                state => {
                    let folded = fold::fold(before.map(|(.., ops)| ops.as_str())).unwrap();
                    let state = state.unwrap().unwrap();
                    assert_eq!(fold::text(&state).unwrap(), fold::text(&folded).unwrap(), "turn {turn}");
                }
            }
        }
        assert_eq!(verify::survey(&*self.world.store, &run).await.unwrap().damage, []);
        assert_eq!(audit::first_break(self.run, &self.world.audit(self.run).await.unwrap()), None);
    }
}
