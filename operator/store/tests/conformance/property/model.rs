//! The model of a run that the property compares the store with.

use std::sync::Arc;

use dalsegno_format::{PatchChain, fold, header};
use dalsegno_model::{
    BoundaryId, Commit, Committed, Error, NextStep, Result, Retention, Rewound, RunId, RunRecord, Snapshotted,
};
use dalsegno_proof::verify;
use dalsegno_protocol::{Boundary, Payload, RecordOp};
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::Seen;
use super::step::{Change, CommitStep, Delivery, Step};
use crate::context::*;

/// A writer, its belief about the run, and its last commit.
#[derive(Default)]
struct Writer {
    worker: Option<Worker>,
    next_turn: i32,
    last: Option<Commit>,
}

/// Record operations, at least one.
fn records(id: Uuid) -> Vec<RecordOp> {
    let bytes = id.into_bytes();
    let change = |of: &u8| {
        let (space, key) = ("s".to_owned(), format!("k{}", of % 3));
        let value = || Payload::Json(json(&of.to_string()));
        match of / 3 % 6 {
            0 => RecordOp::Put { value: value(), space, key },
            1 => RecordOp::PutIfAbsent { value: value(), space, key },
            2 => RecordOp::Delete { space, key },
            3 => RecordOp::DeletePrefix { space, prefix: ["k", "k1"][usize::from(of / 18 % 2)].to_owned() },
            _ => RecordOp::Append { value: value(), space, key, entry_id: (of % 7).to_string() },
        }
    };
    bytes[..4].iter().map(change).collect()
}

fn next(run: &RunRecord) -> i32 {
    run.head.as_ref().map_or(1, |head| match head.boundary {
        Boundary::Plan => head.turn,
        Boundary::Result => head.turn + 1,
    })
}

/// The expected content of the store.
struct Model<'a> {
    cx: &'a TestContext,
    seen: &'a Seen,
    run: RunId,
    object_uid: String,
    writers: [Writer; 2],
    /// Each gateway's cached state of the run.
    gateways: [Option<PatchChain>; 2],
    /// The ids of all commits sent so far: the content of a full state.
    sent: Vec<String>,
    /// The live branch: the place of each boundary, its commit and its operations.
    live: Vec<(BoundaryId, Uuid, Option<String>)>,
    snapshotters: Vec<JoinHandle<Result<Snapshotted>>>,
}

/// Runs the steps in a new run, and checks every answer and the stored rows.
pub async fn run_steps(cx: &TestContext, seen: &Seen, steps: Vec<Step>) {
    let run = cx.run().await;
    let mut model = Model {
        cx,
        seen,
        run: run.id,
        object_uid: run.object_uid,
        writers: Default::default(),
        gateways: Default::default(),
        sent: Vec::new(),
        live: Vec::new(),
        snapshotters: Vec::new(),
    };
    model.attach(0, cx.run_by_uid(&model.object_uid).await).await;
    for step in steps {
        let now = cx.run_by_uid(&model.object_uid).await;
        model.step(step, now).await;
    }
    model.end().await;
}

impl Model<'_> {
    fn saw(&self, outcome: &'static str) {
        self.seen.borrow_mut().insert(outcome);
    }

    async fn step(&mut self, step: Step, now: RunRecord) {
        match step {
            Step::Attach(who) => self.attach(who, now).await,
            Step::Commit(commit) => self.commit(commit).await,
            Step::Work(who, gateway, turns) => {
                let has_it = |writer: &Writer| {
                    writer.worker.as_ref().is_some_and(|worker| worker.attempt == now.attempt.number)
                };
                let who = match self.writers.iter().position(has_it) {
                    Some(who) => who,
                    None => {
                        self.attach(who, now).await;
                        who
                    }
                };
                for (answer_seen, change) in turns {
                    let delivery = Delivery { gateway, answer_seen };
                    let boundary = Boundary::Result;
                    self.commit(CommitStep { who, delivery, change, boundary, distance: 0 }).await;
                }
            }
            Step::Retry(who, delivery) => {
                if let Some(last) = self.writers[who].last.take() {
                    self.writers[who].last = Some(self.send(last, delivery).await);
                }
            }
            Step::Record(who) => {
                if let Some(worker) = &self.writers[who].worker {
                    let operations = records(Uuid::new_v4());
                    let batch = worker.record_batch(operations);
                    self.cx.write_records(&batch).await.unwrap();
                }
            }
            Step::ReadHead(who) => self.writers[who].next_turn = next(&now),
            Step::End(class, reserve) => {
                let then = if reserve { NextStep::Reserve } else { NextStep::Nothing };
                let ending = ending(now.attempt.number, class);
                let after = self.cx.end_attempt(self.run, &ending, &then).await.unwrap();
                assert!(after.epoch >= now.epoch);
            }
            Step::Rewind(boundaries) => self.rewind(boundaries, now).await,
            Step::Snapshot => {
                let (store, run) = (Arc::clone(&self.cx.store), self.run);
                self.snapshotters.push(tokio::spawn(async move { store.snapshot(run).await }));
            }
            Step::Compact(keep_last) => {
                let retention = Retention { keep_last: Some(keep_last), ..Retention::default() };
                self.cx.set_retention(self.run, &retention).await.unwrap();
                while self.cx.compact(self.run, 7).await.unwrap().run.is_some() {
                    self.saw("compacted");
                }
            }
        }
    }

    async fn attach(&mut self, who: usize, now: RunRecord) {
        let pod = pod(&now);
        let _ = self.cx.record_pod(self.run, now.attempt.number, &pod).await.unwrap();
        // A process keeps one instance for its whole life.
        let same = self.writers[who].worker.take().filter(|worker| worker.attempt == now.attempt.number);
        let worker = same.unwrap_or_else(|| Worker {
            run: self.run,
            object_uid: self.object_uid.clone(),
            attempt: now.attempt.number,
            pod_uid: pod.uid,
            capability: random_digest(),
        });
        let _ = self.cx.attach(self.run, &worker.pod_uid, &worker.capability).await.unwrap();
        self.writers[who].worker = Some(worker);
        self.writers[who].next_turn = next(&now);
    }

    async fn commit(&mut self, CommitStep { who, delivery, change, boundary, distance }: CommitStep) {
        let Some(worker) = &self.writers[who].worker else { return };
        let turn = self.writers[who].next_turn + distance;
        let commit = worker.commit(turn, boundary);
        let id = commit.commit_id;
        self.sent.push(id.to_string());
        let ops = match change {
            Change::Keep => None,
            Change::Append => Some(format!(r#"{{"append":{{"log":[{{"json":"{id}"}}]}}}}"#)),
            // Much larger than its difference from the state before.
            Change::Full => {
                let sent = self.sent.join(" ");
                Some(format!(r#"{{"full":true,"set":{{"state":{{"json":"{sent}"}}}}}}"#))
            }
        };
        let full = matches!(change, Change::Full);
        let commit = Commit { ops: ops.map(Into::into), full, records: records(id), ..commit };
        let commit = self.send(commit, delivery).await;
        if boundary == Boundary::Result && distance == 0 {
            self.writers[who].next_turn += 1;
        }
        self.writers[who].last = Some(commit);
    }

    /// Sends a commit as a gateway does: based on the state that the gateway has cached.
    async fn send(&mut self, commit: Commit, Delivery { gateway, answer_seen }: Delivery) -> Commit {
        let last = self.gateways[gateway].take();
        let base = last.as_ref().filter(|_| commit.full).and_then(PatchChain::base);
        let commit = Commit { base, ..commit };
        let committed = self.cx.commit(&commit).await.unwrap();
        self.gateways[gateway] =
            if answer_seen { PatchChain::after(last, &commit, &committed) } else { last };
        self.check_answer(&commit, committed).await;
        commit
    }

    /// Checks the answer against the model: a commit is accepted once, and an undone one is never reported as committed.
    async fn check_answer(&mut self, commit: &Commit, committed: Committed) {
        let is_live = self.live.iter().any(|(_, id, _)| *id == commit.commit_id);
        match committed {
            Committed::Ok(_) => {
                self.saw("ok");
                assert!(!is_live, "accepted twice");
                let epoch = self.cx.run_by_uid(&self.object_uid).await.epoch;
                let boundary_id = BoundaryId { turn: commit.turn, boundary: commit.boundary, epoch };
                let ops = commit.ops.as_ref().map(|ops| String::from_utf8(ops.clone()).unwrap());
                self.live.push((boundary_id, commit.commit_id, ops));
            }
            Committed::Duplicate(_) => {
                self.saw("duplicate");
                assert!(is_live, "a duplicate without an original");
            }
            Committed::Fenced { committed } => {
                self.saw(if committed { "fenced, committed" } else { "fenced" });
                assert_eq!(committed, is_live);
            }
            Committed::Conflict { .. } => {
                self.saw("conflict");
                assert!(!is_live, "a live commit cannot be a conflict");
            }
            other => panic!("{other:?}"),
        }
    }

    async fn rewind(&mut self, boundaries: usize, now: RunRecord) {
        let Some(left) = self.live.len().checked_sub(boundaries).filter(|left| *left > 0) else { return };
        let to = self.live[left - 1].0;
        let rewind = rewind_to(now.epoch, to);
        match self.cx.rewind(self.run, &rewind).await.unwrap() {
            Rewound::Done(_) => {
                self.saw("rewound");
                self.live.truncate(left);
            }
            Rewound::Refused(run) => assert!(run.dropped_to.is_some_and(|last| to < last), "{to}"),
        }
    }

    /// Checks that exactly the boundaries that were accepted and not undone are stored, with the right states. Of dropped
    /// boundaries only the headers are left.
    async fn end(mut self) {
        for snapshotter in std::mem::take(&mut self.snapshotters) {
            match snapshotter.await.unwrap() {
                Ok(Snapshotted { made: true, .. }) => self.saw("snapshot"),
                Ok(Snapshotted { made: false, .. }) | Err(Error::Gone { .. }) => {}
                Err(error) => panic!("{error:?}"),
            }
        }
        let run = self.cx.run_by_uid(&self.object_uid).await;
        let rows = self.cx.boundaries(self.run, 1, i32::MAX).await.unwrap();
        let kept: Vec<_> = rows.iter().map(|row| (row.id(), row.commit_id)).collect();
        let accepted: Vec<_> = self.live.iter().map(|(boundary_id, id, _)| (*boundary_id, *id)).collect();
        assert_eq!(kept, accepted, "exactly the acknowledged commits are stored, each once");
        assert!(rows.first().is_none_or(|row| row.turn == 1 && row.parent_hash == header::NO_PARENT));
        for pair in rows.windows(2) {
            let (before, row) = (&pair[0], &pair[1]);
            let follows = match before.boundary {
                Boundary::Plan => (row.turn, row.boundary) == (before.turn, Boundary::Result),
                Boundary::Result => row.turn == before.turn + 1,
            };
            assert!(follows && row.parent_hash == before.content_hash, "{} after {}", row.id(), before.id());
        }
        for turn in 1..=run.head.as_ref().map_or(0, |head| head.turn) {
            let before = self.live.iter().filter(|(boundary_id, ..)| boundary_id.turn <= turn);
            let last = before.clone().next_back().map(|(boundary_id, ..)| *boundary_id);
            match self.cx.state(self.run, Some(turn)).await {
                Err(Error::Gone { .. }) => assert!(last < run.dropped_to, "turn {turn}"),
                state => {
                    let folded = fold::fold(before.filter_map(|(.., ops)| ops.as_deref())).unwrap();
                    let state = state.unwrap().unwrap();
                    assert_eq!(fold::text(&state).unwrap(), fold::text(&folded).unwrap(), "turn {turn}");
                }
            }
        }
        assert_eq!(verify::scan(&*self.cx.store, &run).await.unwrap().damage, []);
        self.cx.assert_audit_is_valid(self.run).await;
    }
}
