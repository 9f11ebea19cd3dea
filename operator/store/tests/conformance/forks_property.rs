//! Property: whatever a run has committed, rewound and recorded, a fork holds exactly what its parent held after that
//! turn, and then what it adds itself. The parent holds what it would hold without the fork.

use std::collections::BTreeMap;

use dalsegno_model::{Class, Commit, ForkRequest, RewindRequest};
use dalsegno_protocol::{Payload, RecordOp};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::context::*;
use crate::engines::on_every_engine;
use crate::forks::{copy_all, fork_of, new_fork, text_of_state, texts};
use crate::requested_rewinds::request;

on_every_engine! {
    a_fork_holds_what_its_parent_held_and_what_it_adds,
}

/// The number of histories on each engine.
const CASES: u32 = 10;

/// What happens to the run that works.
#[derive(Clone, Debug)]
enum Step {
    /// It commits a turn with an entry of its own, and with changes of records in the boundary and before it.
    Turn(Vec<Change>),
    /// It goes back this many turns.
    Rewind(usize),
    /// A fork of the turn this far before the last one works on in its place.
    Fork(usize),
    /// Its attempt ends, and the next one takes over.
    Recover,
}

/// A change of a record.
#[derive(Clone, Copy, Debug)]
enum Change {
    Put(u8),
    Append(u8, u8),
    Delete(u8),
    DeletePrefix,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let change = prop_oneof![
        2 => (0..4_u8).prop_map(Change::Put),
        3 => (0..4_u8, 0..6_u8).prop_map(|(key, id)| Change::Append(key, id)),
        1 => (0..4_u8).prop_map(Change::Delete),
        1 => Just(Change::DeletePrefix),
    ];
    let step = prop_oneof![
        8 => vec(change, 0..4).prop_map(Step::Turn),
        2 => (0..4_usize).prop_map(Step::Rewind),
        3 => (0..4_usize).prop_map(Step::Fork),
        1 => Just(Step::Recover),
    ];
    vec(step, 4..24)
}

/// What keys hold: entry id and value of each entry.
type Records = BTreeMap<String, Vec<(Option<String>, String)>>;

/// What a run holds after each of its turns.
#[derive(Clone, Debug, Default)]
struct Ledger {
    /// The first turn that the run itself has.
    base: usize,
    /// The entries of all turns.
    entries: Vec<u32>,
    /// The records after each turn, from the one before the first.
    records: Vec<Records>,
}

struct Model<'a> {
    cx: &'a TestContext,
    worker: Worker,
    ledger: Ledger,
    /// The number of the next entry.
    next: u32,
    /// Runs that were forked, and what they hold.
    parents: Vec<(Worker, Ledger)>,
}

async fn a_fork_holds_what_its_parent_held_and_what_it_adds(cx: &TestContext) {
    let runtime = tokio::runtime::Handle::current();
    let mut runner = TestRunner::new(Config { cases: CASES, ..Config::default() });
    let outcome = tokio::task::block_in_place(|| {
        runner.run(&steps(), |steps| {
            runtime.block_on(play(cx, steps));
            Ok(())
        })
    });
    outcome.unwrap();
}

async fn play(cx: &TestContext, steps: Vec<Step>) {
    let ledger = Ledger { records: vec![Records::new()], ..Ledger::default() };
    let mut model = Model { cx, worker: cx.worker().await, ledger, next: 0, parents: Vec::new() };
    for step in steps {
        match step {
            Step::Turn(changes) => model.turn(&changes).await,
            Step::Rewind(back) => model.rewind(back).await,
            Step::Fork(back) => model.fork(back).await,
            Step::Recover => {
                let run = cx.end_and_reserve(&model.worker, Class::Disruption).await;
                model.worker = cx.start_worker(&run).await;
            }
        }
    }
    check(cx, &model.worker, &model.ledger).await;
    for (worker, ledger) in &model.parents {
        check(cx, worker, ledger).await;
    }
}

fn operation(change: Change, entry: u32) -> RecordOp {
    let space = "s".to_owned();
    let value = Payload::Json(json(&entry.to_string()));
    match change {
        Change::Put(key) => RecordOp::Put { space, key: format!("k{key}"), value },
        Change::Append(key, id) => {
            RecordOp::Append { space, key: format!("k{key}"), entry_id: format!("e{id}"), value }
        }
        Change::Delete(key) => RecordOp::Delete { space, key: format!("k{key}") },
        Change::DeletePrefix => RecordOp::DeletePrefix { space, prefix: "k".into() },
    }
}

fn apply(records: &mut Records, change: Change, entry: u32) {
    let value = format!(r#"{{"json":{entry}}}"#);
    match change {
        Change::Put(key) => drop(records.insert(format!("k{key}"), vec![(None, value)])),
        Change::Append(key, id) => {
            let (held, id) = (records.entry(format!("k{key}")).or_default(), Some(format!("e{id}")));
            if held.iter().all(|(other, _)| *other != id) {
                held.push((id, value));
            }
        }
        Change::Delete(key) => drop(records.remove(&format!("k{key}"))),
        Change::DeletePrefix => records.clear(),
    }
}

impl Model<'_> {
    async fn turn(&mut self, changes: &[Change]) {
        let (turn, entry) = (self.ledger.entries.len() as i32 + 1, self.next);
        self.next += 1;
        let mut records = self.ledger.records.last().unwrap().clone();
        changes.iter().for_each(|change| apply(&mut records, *change, entry));
        let operations: Vec<_> = changes.iter().map(|change| operation(*change, entry)).collect();
        // Half of them come before the boundary.
        let (before, with) = operations.split_at(operations.len() / 2);
        if !before.is_empty() {
            self.cx.write_records(&self.worker.record_batch(before.to_vec())).await.unwrap();
        }
        let ops = format!(r#"{{"append":{{"entries":[{{"json":{entry}}}]}}}}"#);
        let commit = Commit { ops: Some(ops.into()), full: false, ..self.worker.result(turn) };
        ok(self.cx.commit(&Commit { records: with.to_vec(), ..commit }).await.unwrap());
        self.ledger.entries.push(entry);
        self.ledger.records.push(records);
    }

    /// The turn this far before the last one, if the run has it.
    fn turn_before(&self, back: usize) -> Option<usize> {
        let turn = self.ledger.entries.len().checked_sub(back)?;
        (turn >= self.ledger.base.max(1)).then_some(turn)
    }

    async fn rewind(&mut self, back: usize) {
        let Some(turn) = self.turn_before(back) else { return };
        let before = self.cx.run_of(&self.worker).await;
        let generation = before.observed_rewind_generation + 1;
        let request = RewindRequest { ..request(generation, turn as i32) };
        let run = self.cx.request_rewind(self.worker.run, &request).await.unwrap();
        assert_eq!(run.rewind.clone().unwrap().refused, None);
        self.worker = self.cx.start_worker(&run).await;
        self.ledger.entries.truncate(turn);
        self.ledger.records.truncate(turn + 1);
    }

    async fn fork(&mut self, back: usize) {
        let Some(turn) = self.turn_before(back) else { return };
        let request: ForkRequest = fork_of(&self.worker.object_uid, Some(turn as i32));
        let (run, _) = copy_all(self.cx, new_fork(self.cx).await.id, &request).await;
        let worker = self.cx.start_worker(&run).await;
        let mut ledger = Ledger { base: turn, ..self.ledger.clone() };
        ledger.entries.truncate(turn);
        ledger.records.truncate(turn + 1);
        let parent = std::mem::replace(&mut self.worker, worker);
        self.parents.push((parent, std::mem::replace(&mut self.ledger, ledger)));
        check(self.cx, &self.worker, &self.ledger).await;
    }
}

/// The run holds exactly this, after its last turn and after each of its own.
async fn check(cx: &TestContext, worker: &Worker, ledger: &Ledger) {
    let run = worker.run;
    for turn in ledger.base.max(1)..=ledger.entries.len() {
        let items: Vec<_> =
            ledger.entries[..turn].iter().map(|entry| format!(r#"{{"json":{entry}}}"#)).collect();
        let expected = format!(r#"{{"entries":{{"list":[{}]}}}}"#, items.join(","));
        assert_eq!(text_of_state(cx, run, Some(turn as i32)).await, expected, "turn {turn}");
    }
    let mut expected = Vec::new();
    for (key, entries) in ledger.records.last().unwrap() {
        expected.extend(entries.iter().map(|(id, value)| (key.clone(), id.clone(), value.clone())));
    }
    assert_eq!(texts(&cx.read_records(run, &all_records()).await.unwrap()), expected);
    cx.assert_audit_is_valid(run).await;
}
