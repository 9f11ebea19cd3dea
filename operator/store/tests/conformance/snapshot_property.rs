//! Property: whatever operations are applied to channels, with snapshots, patches and lost workers in between, the state
//! of each turn is the fold of the accepted operations, byte for byte.

use dalsegno_format::{PatchChain, fold};
use dalsegno_model::{Commit, Committed};
use dalsegno_protocol::Boundary;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::context::*;
use crate::engines::on_every_engine;

on_every_engine! {
    any_sequence_of_operations_is_read_back_with_and_without_snapshots,
}

/// The number of sequences on each engine.
const CASES: u32 = 24;

#[derive(Clone, Debug)]
enum Step {
    /// A boundary with these operations, with a plan before it or not.
    Commit { ops: String, plan: bool },
    /// A boundary that leaves the state.
    Bare,
    /// A snapshotter runs, and perhaps a second one at the same time.
    Snapshot { concurrent: bool },
    /// The worker's attempt ends; its later commits are refused.
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
        2 => any::<bool>().prop_map(|concurrent| Step::Snapshot { concurrent }),
        1 => Just(Step::Lose),
    ]
}

async fn any_sequence_of_operations_is_read_back_with_and_without_snapshots(cx: &TestContext) {
    let mut runner = TestRunner::new(Config { cases: CASES, max_shrink_iters: 200, ..Config::default() });
    let steps = proptest::collection::vec(step(), 1..70);
    let runtime = tokio::runtime::Handle::current();
    let outcome = tokio::task::block_in_place(|| {
        runner.run(&steps, |steps| {
            runtime.block_on(async {
                let with = play(cx, &steps, true).await;
                let without = play(cx, &steps, false).await;
                assert_eq!(with, without);
            });
            Ok(())
        })
    });
    outcome.unwrap();
}

/// The run so far.
struct Play<'a> {
    cx: &'a TestContext,
    worker: Worker,
    /// The operations of each boundary, with its turn.
    accepted: Vec<(i32, Option<String>)>,
    /// The state after the head, while the "gateway" has it cached.
    last: Option<PatchChain>,
    turn: i32,
}

impl Play<'_> {
    async fn commit(&mut self, boundary: Boundary, ops: Option<&str>) {
        let full = ops.is_some_and(|ops| ops.contains(r#""full":true"#));
        let commit = Commit {
            ops: ops.map(Into::into),
            full,
            base: self.last.as_ref().and_then(PatchChain::base),
            ..self.worker.commit(self.turn, boundary)
        };
        let committed = self.cx.commit(&commit).await.unwrap();
        self.last = PatchChain::after(self.last.take(), &commit, &committed);
        ok(committed);
        self.accepted.push((self.turn, ops.map(Into::into)));
    }

    fn folded(&self, turn: i32) -> String {
        let operations = self.accepted.iter().filter(|(at, _)| *at <= turn);
        let state = fold::fold(operations.filter_map(|(_, ops)| ops.as_deref())).unwrap();
        serde_json::to_string(&state).unwrap()
    }
}

/// Plays the steps in a new run, and compares the state of every turn with the fold. Returns the states.
async fn play(cx: &TestContext, steps: &[Step], snapshots: bool) -> Vec<String> {
    let worker = cx.worker().await;
    let mut play = Play { cx, worker, accepted: Vec::new(), last: None, turn: 1 };
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
            Step::Snapshot { concurrent } if snapshots => {
                let other =
                    async { if *concurrent { Some(cx.snapshot(play.worker.run).await) } else { None } };
                let (one, other) = tokio::join!(cx.snapshot(play.worker.run), other);
                one.unwrap();
                other.transpose().unwrap();
            }
            Step::Snapshot { .. } => {}
            Step::Lose => {
                let next = cx.next_worker(&play.worker).await;
                let old_worker = std::mem::replace(&mut play.worker, next);
                let base = play.last.as_ref().and_then(PatchChain::base);
                let late = Commit { base, ..old_worker.commit(play.turn, Boundary::Result) };
                let refused = cx.commit(&late).await.unwrap();
                assert_eq!(refused, Committed::Fenced { committed: false });
            }
        }
    }
    let mut states = Vec::new();
    for turn in 1..play.turn {
        let state = cx.state(play.worker.run, Some(turn)).await.unwrap().unwrap();
        let state = serde_json::to_string(&state).unwrap();
        assert_eq!(state, play.folded(turn), "turn {turn}, snapshots: {snapshots}");
        states.push(state);
    }
    cx.assert_linked(&play.worker).await;
    states
}
