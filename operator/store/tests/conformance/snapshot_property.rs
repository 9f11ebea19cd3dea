//! Whatever is done to channels, with whatever snapshots, patches and lost workers in between: each turn's state is the
//! fold of what was accepted, byte for byte.

use dalsegno_protocol::Boundary;
use dalsegno_store::{Commit, Committed, LastState, fold};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::faces::on_every_face;
use crate::world::*;

on_every_face! {
    any_sequence_of_operations_comes_back_with_and_without_snapshots,
}

/// Sequences that are tried on each face.
const CASES: u32 = 24;

#[derive(Clone, Debug)]
enum Step {
    /// A boundary with these operations, the plan first or not.
    Commit { ops: String, plan: bool },
    /// A boundary that leaves the state.
    Bare,
    /// The snapshotter gets to it, and perhaps its twin.
    Snapshot { twin: bool },
    /// The worker is lost; what it sends later is refused.
    Lose,
}

fn name() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just("a"), Just("b"), Just("c")]
}

fn payload() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(r#"{"json":12345678901234567890.10}"#.to_owned()),
        Just(r#"{"json":"\ud800 é"}"#.to_owned()),
        Just(r#"{"json":{ "z" : 1,  "a":[] }}"#.to_owned()),
        Just(r#"{"bytes":{"mediaType":"a/b","base64":"AA=="}}"#.to_owned()),
        // Large enough to be cut into several chunks.
        (any::<u32>(), 0..9_000_u32).prop_map(|(seed, words)| {
            let words: Vec<_> = (0..words).map(|n| format!("{:x}", (n / 7).wrapping_mul(seed))).collect();
            format!(r#"{{"json":"{}"}}"#, words.join(" "))
        }),
    ]
}

fn ops() -> impl Strategy<Value = String> {
    let set = (name(), payload()).prop_map(|(name, value)| format!(r#""set":{{"{name}":{value}}}"#));
    let append = (name(), proptest::collection::vec(payload(), 0..3))
        .prop_map(|(name, items)| format!(r#""append":{{"{name}":[{}]}}"#, items.join(", ")));
    let truncate = (name(), 0..4_u32).prop_map(|(name, to)| format!(r#""truncate":{{"{name}":{to}}}"#));
    let remove = name().prop_map(|name| format!(r#""remove":["{name}"]"#));
    let full =
        (name(), payload()).prop_map(|(name, value)| format!(r#""full":true,"set":{{"{name}":{value}}}"#));
    prop_oneof![3 => set, 5 => append, 1 => truncate, 1 => remove, 3 => full]
        .prop_map(|operation| format!("{{{operation}}}"))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (ops(), any::<bool>()).prop_map(|(ops, plan)| Step::Commit { ops, plan }),
        2 => Just(Step::Bare),
        2 => any::<bool>().prop_map(|twin| Step::Snapshot { twin }),
        1 => Just(Step::Lose),
    ]
}

async fn any_sequence_of_operations_comes_back_with_and_without_snapshots(world: &World) {
    let mut runner = TestRunner::new(Config { cases: CASES, max_shrink_iters: 200, ..Config::default() });
    let steps = proptest::collection::vec(step(), 1..70);
    let runtime = tokio::runtime::Handle::current();
    let outcome = tokio::task::block_in_place(|| {
        runner.run(&steps, |steps| {
            runtime.block_on(async {
                let with = play(world, &steps, true).await;
                let without = play(world, &steps, false).await;
                assert_eq!(with, without);
            });
            Ok(())
        })
    });
    outcome.unwrap();
}

/// What was done so far.
struct Play<'a> {
    world: &'a World,
    worker: Worker,
    /// The operations of each boundary, with its turn.
    accepted: Vec<(i32, Option<String>)>,
    /// The state after the head, while the "gateway" knows it.
    last: Option<LastState>,
    turn: i32,
}

impl Play<'_> {
    async fn commit(&mut self, boundary: Boundary, ops: Option<&str>) {
        let full = ops.is_some_and(|ops| ops.contains(r#""full":true"#));
        let commit = Commit {
            ops: ops.map(Into::into),
            full,
            base: self.last.as_ref().and_then(LastState::base),
            ..self.worker.commit(self.turn, boundary)
        };
        let committed = self.world.commit(&commit).await.unwrap();
        self.last = LastState::after(self.last.take(), &commit, &committed);
        ok(committed);
        self.accepted.push((self.turn, ops.map(Into::into)));
    }

    fn folded(&self, turn: i32) -> String {
        let operations = self.accepted.iter().filter(|(at, _)| *at <= turn);
        let state = fold::fold(operations.filter_map(|(_, ops)| ops.as_deref())).unwrap();
        serde_json::to_string(&state).unwrap()
    }
}

/// Plays the steps in a new run, and holds every turn's state to the fold. The states.
async fn play(world: &World, steps: &[Step], snapshots: bool) -> Vec<String> {
    let worker = world.worker().await;
    let mut play = Play { world, worker, accepted: Vec::new(), last: None, turn: 1 };
    for step in steps {
        match step {
            Step::Commit { ops, plan } => {
                if *plan {
                    play.commit(Boundary::Plan, Some(ops)).await;
                }
                play.commit(Boundary::Result, Some(ops)).await;
                play.turn += 1;
            }
            Step::Bare => {
                play.commit(Boundary::Result, None).await;
                play.turn += 1;
            }
            Step::Snapshot { twin } if snapshots => {
                let other = async { if *twin { Some(world.snapshot(play.worker.run).await) } else { None } };
                let (one, other) = tokio::join!(world.snapshot(play.worker.run), other);
                one.unwrap();
                other.transpose().unwrap();
            }
            Step::Snapshot { .. } => {}
            Step::Lose => {
                let next = world.next(&play.worker).await;
                let zombie = std::mem::replace(&mut play.worker, next);
                let base = play.last.as_ref().and_then(LastState::base);
                let late = Commit { base, ..zombie.commit(play.turn, Boundary::Result) };
                let refused = world.commit(&late).await.unwrap();
                assert_eq!(refused, Committed::Fenced { committed: false });
            }
        }
    }
    let mut states = Vec::new();
    for turn in 1..play.turn {
        let state = world.state(play.worker.run, Some(turn)).await.unwrap().unwrap();
        let state = serde_json::to_string(&state).unwrap();
        assert_eq!(state, play.folded(turn), "turn {turn}, snapshots: {snapshots}");
        states.push(state);
    }
    world.assert_linked(&play.worker).await;
    states
}
