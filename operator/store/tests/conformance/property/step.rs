//! The steps of the property: what can happen to a run.

use dalsegno_protocol::Boundary;
use dalsegno_store::Class;
use proptest::collection::vec;
use proptest::prelude::*;

/// What one of the two writers, or someone else, does next.
#[derive(Clone, Debug)]
pub enum Step {
    /// The writer attaches to the current attempt, whose pod is recorded if necessary.
    Attach(usize),
    /// Commits the boundary at this distance from the one that the writer believes to be next.
    Commit(usize, Way, Change, Boundary, i32),
    /// The writer of the current attempt commits results, one after the other, through one gateway. If no writer has the
    /// attempt, this one attaches first.
    Work(usize, usize, Vec<(bool, Change)>),
    /// Sends the writer's last commit again.
    Retry(usize, Way),
    /// Writes a batch of records between two boundaries.
    Record(usize),
    /// The writer learns the head.
    Look(usize),
    /// The current attempt ends; the next one is reserved or not.
    End(Class, bool),
    /// A rewind gives up this many boundaries of the live branch.
    Rewind(usize),
    /// A snapshotter starts; it ends at any later time.
    Snapshot,
    /// `keepLast` is set to this number, and the run is compacted.
    Clear(i32),
}

/// How a commit reaches the store.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// The gateway that the commit is sent through.
    pub gateway: usize,
    /// Whether the gateway sees the answer. It does not if the writer has hung up.
    pub heard: bool,
}

/// How a commit changes the state.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// The state stays.
    Stays,
    /// The state grows by an item.
    Grows,
    /// The full state is sent.
    Whole,
}

fn way() -> impl Strategy<Value = Way> {
    (0..2_usize, heard()).prop_map(|(gateway, heard)| Way { gateway, heard })
}

fn heard() -> impl Strategy<Value = bool> {
    prop_oneof![5 => Just(true), 1 => Just(false)]
}

/// Any step.
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
