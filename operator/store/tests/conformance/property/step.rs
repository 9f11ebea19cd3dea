//! The steps of the property: what can happen to a run.

use dalsegno_model::Class;
use dalsegno_protocol::Boundary;
use proptest::collection::vec;
use proptest::prelude::*;

/// A commit of the writer with this index.
#[derive(Clone, Debug)]
pub struct CommitStep {
    pub who: usize,
    pub delivery: Delivery,
    pub change: Change,
    pub boundary: Boundary,
    /// Distance of its boundary from the one that the writer believes to be next.
    pub distance: i32,
}

/// What one of the two writers, or someone else, does next.
#[derive(Clone, Debug)]
pub enum Step {
    /// The writer attaches to the current attempt, whose pod is recorded if necessary.
    Attach(usize),
    Commit(CommitStep),
    /// The writer of the current attempt commits results, one after the other, through one gateway. If no writer has the
    /// attempt, this one attaches first.
    Work(usize, usize, Vec<(bool, Change)>),
    /// Sends the writer's last commit again.
    Retry(usize, Delivery),
    /// Writes a batch of records between two boundaries.
    Record(usize),
    /// The writer learns the head.
    ReadHead(usize),
    /// The current attempt ends; the next one is reserved or not.
    End(Class, bool),
    /// A rewind gives up this many boundaries of the live branch.
    Rewind(usize),
    /// A snapshotter starts; it ends at any later time.
    Snapshot,
    /// `keepLast` is set to this number, and the run is compacted.
    Compact(i32),
}

/// How a commit reaches the store.
#[derive(Clone, Copy, Debug)]
pub struct Delivery {
    /// The gateway that the commit is sent through.
    pub gateway: usize,
    /// Whether the gateway sees the answer. It does not if the writer has hung up.
    pub answer_seen: bool,
}

/// How a commit changes the state.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// The state stays.
    Keep,
    /// The state grows by an item.
    Append,
    /// The full state is sent.
    Full,
}

fn delivery() -> impl Strategy<Value = Delivery> {
    (0..2_usize, answer_seen()).prop_map(|(gateway, answer_seen)| Delivery { gateway, answer_seen })
}

fn answer_seen() -> impl Strategy<Value = bool> {
    prop_oneof![5 => Just(true), 1 => Just(false)]
}

/// Any step.
pub fn step() -> impl Strategy<Value = Step> {
    let writer = 0..2_usize;
    let change = prop_oneof![3 => Just(Change::Keep), 2 => Just(Change::Append), 5 => Just(Change::Full)];
    let grows = prop_oneof![Just(Change::Keep), Just(Change::Append)];
    let boundary = prop_oneof![Just(Boundary::Plan), Just(Boundary::Result)];
    let class = prop_oneof![Just(Class::Crash), Just(Class::Disruption), Just(Class::Neutral)];
    prop_oneof![
        3 => writer.clone().prop_map(Step::Attach),
        8 => (writer.clone(), delivery(), change.clone(), boundary, prop_oneof![4 => Just(0), 1 => -2..=2])
            .prop_map(|(who, delivery, change, boundary, distance)| Step::Commit(CommitStep { who, delivery, change, boundary, distance })),
        8 => (writer.clone(), 0..2_usize, prop_oneof![vec((answer_seen(), change), 2..14), vec((answer_seen(), grows), 2..14)])
            .prop_map(|(writer, gateway, turns)| Step::Work(writer, gateway, turns)),
        6 => (writer.clone(), delivery()).prop_map(|(writer, delivery)| Step::Retry(writer, delivery)),
        4 => writer.clone().prop_map(Step::Record),
        4 => writer.prop_map(Step::ReadHead),
        2 => (class, prop_oneof![4 => Just(true), 1 => Just(false)]).prop_map(|(c, reserve)| Step::End(c, reserve)),
        2 => (0..6_usize).prop_map(Step::Rewind),
        4 => Just(Step::Snapshot),
        2 => (1..5_i32).prop_map(Step::Compact),
    ]
}
