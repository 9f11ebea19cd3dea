//! What may happen to a run, one step after the other.

use dalsegno_protocol::Boundary;
use dalsegno_store::Class;
use proptest::collection::vec;
use proptest::prelude::*;

/// What one of the two writers, or somebody beside them, does next.
#[derive(Clone, Debug)]
pub enum Step {
    /// Attach to the current attempt, its pod recorded if it is not.
    Attach(usize),
    /// Commit the boundary at this distance from what the writer believes to be the next.
    Commit(usize, Way, Change, Boundary, i32),
    /// Whoever has the current attempt, or else this writer, which attaches to it, commits results, one after the other, by
    /// one gateway.
    Work(usize, usize, Vec<(bool, Change)>),
    /// Send the writer's last commit again.
    Retry(usize, Way),
    /// The writer changes records between two boundaries.
    Record(usize),
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

/// How a commit reaches the store.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// By which gateway.
    pub gateway: usize,
    /// Whether that gateway still learns the answer: it does not where the writer has hung up.
    pub heard: bool,
}

/// What a commit does to the state.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// Nothing.
    Stays,
    /// It grows by an item.
    Grows,
    /// It is sent whole.
    Whole,
}

fn way() -> impl Strategy<Value = Way> {
    (0..2_usize, heard()).prop_map(|(gateway, heard)| Way { gateway, heard })
}

fn heard() -> impl Strategy<Value = bool> {
    prop_oneof![5 => Just(true), 1 => Just(false)]
}

/// One of them.
pub fn step() -> impl Strategy<Value = Step> {
    let writer = 0..2_usize;
    let change = prop_oneof![3 => Just(Change::Stays), 2 => Just(Change::Grows), 5 => Just(Change::Whole)];
    let grows = prop_oneof![Just(Change::Stays), Just(Change::Grows)];
    let boundary = prop_oneof![Just(Boundary::Plan), Just(Boundary::Result)];
    let class = prop_oneof![Just(Class::Crash), Just(Class::Disruption), Just(Class::Neutral)];
    prop_oneof![
        3 => writer.clone().prop_map(Step::Attach),
        8 => (writer.clone(), way(), change.clone(), boundary, prop_oneof![4 => Just(0), 1 => -2..=2])
            .prop_map(|(writer, way, change, boundary, distance)| Step::Commit(writer, way, change, boundary, distance)),
        8 => (writer.clone(), 0..2_usize, prop_oneof![vec((heard(), change), 2..14), vec((heard(), grows), 2..14)])
            .prop_map(|(writer, gateway, turns)| Step::Work(writer, gateway, turns)),
        6 => (writer.clone(), way()).prop_map(|(writer, way)| Step::Retry(writer, way)),
        4 => writer.clone().prop_map(Step::Record),
        4 => writer.prop_map(Step::Look),
        2 => (class, prop_oneof![4 => Just(true), 1 => Just(false)]).prop_map(|(c, reserve)| Step::End(c, reserve)),
        2 => (0..6_usize).prop_map(Step::Rewind),
        4 => Just(Step::Snapshot),
        2 => (1..5_i32).prop_map(Step::Clear),
    ]
}
