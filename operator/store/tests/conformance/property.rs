//! Property: two writers over two gateways, a slow snapshotter, rewinds and compaction act in any order. Turns stay
//! gap-free and hash-linked, each is committed once, and every state is the fold of the accepted operations, byte for byte.

mod model;
mod step;

use std::cell::RefCell;
use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::test_runner::{Config, TestRunner};

use crate::context::*;
use crate::engines::on_every_engine;
use model::run_steps;

on_every_engine! {
    any_sequence_of_two_writers_keeps_turns_gap_free_and_linked,
}

/// The number of sequences in one round, on each engine.
const CASES: u32 = 24;

/// The maximum number of rounds. The property ends when every outcome was seen.
const ROUNDS: usize = 50;

/// The outcomes of commits, rewinds, snapshots and compaction.
const OUTCOMES: [&str; 8] =
    ["ok", "duplicate", "fenced", "fenced, committed", "conflict", "rewound", "snapshot", "compacted"];

/// The outcomes seen so far.
type Seen = RefCell<BTreeSet<&'static str>>;

async fn any_sequence_of_two_writers_keeps_turns_gap_free_and_linked(cx: &TestContext) {
    let steps = vec(step::step(), 1..40);
    let runtime = tokio::runtime::Handle::current();
    let seen = Seen::default();
    for _ in 0..ROUNDS {
        // A test runner that has run its cases runs no more.
        let mut runner = TestRunner::new(Config { cases: CASES, ..Config::default() });
        let outcome = tokio::task::block_in_place(|| {
            runner.run(&steps, |steps| {
                runtime.block_on(run_steps(cx, &seen, steps));
                Ok(())
            })
        });
        outcome.unwrap();
        if seen.borrow().len() == OUTCOMES.len() {
            break;
        }
    }
    assert_eq!(seen.into_inner(), BTreeSet::from(OUTCOMES));
}
