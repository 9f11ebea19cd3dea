//! Property: after any sequence of calls a run has exactly the waits and the park that a model of it has, and its audit
//! matches its rows.

use std::collections::BTreeSet;

use dalsegno_model::{
    Answered, AttemptState, Class, Lifecycle, NextStep, Parked, Rewound, RunRecord, WaitAnswer, WaitAsks,
    WaitDecision,
};
use dalsegno_protocol::{Boundary, ParkMode, WaitOutcome};
use proptest::prelude::Rng as _;
use proptest::test_runner::{RngAlgorithm, TestRng};

use super::waits::{approval, in_ms, later, open, park_on, request};
use crate::context::*;

/// Runs, each with a sequence of its own.
const RUNS: usize = 40;

/// Calls in a sequence.
const CALLS: usize = 40;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_has_the_waits_of_its_model_in_sqlite() {
    play(&crate::engines::memory().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_has_the_waits_of_its_model_in_postgres() {
    play(&crate::engines::postgres().await).await;
}

async fn play(cx: &TestContext) {
    let mut random = Random(TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let mut seen = BTreeSet::new();
    for _ in 0..RUNS {
        let mut model = Model::new(cx).await;
        for _ in 0..CALLS {
            let call = model.call(cx, &mut random).await;
            seen.insert(call);
            model.assert_same(cx, call).await;
            if model.is_over {
                break;
            }
        }
        cx.assert_audit_is_valid(model.worker.run).await;
    }
    let all = [
        "answered",
        "any answered",
        "cancelled",
        "committed",
        "finished",
        "lost",
        "open",
        "past",
        "parked",
        "planned",
        "ready",
        "rewound",
        "started",
    ];
    assert!(BTreeSet::from(all).is_subset(&seen), "{seen:?}");
}

/// Always the same choices.
struct Random(TestRng);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        (self.0.next_u64() % end as u64) as usize
    }

    fn coin(&mut self) -> bool {
        self.below(2) == 0
    }
}

/// A wait of the live branch.
#[derive(Clone, Debug)]
struct ModelWait {
    id: String,
    epoch: i64,
    at: (i32, Boundary),
    is_open: bool,
    is_approval: bool,
}

/// What a run must have.
struct Model {
    worker: Worker,
    /// Turn and boundary of the head.
    head: (i32, Boundary),
    is_attached: bool,
    waits: Vec<ModelWait>,
    park: Option<(Vec<String>, ParkMode)>,
    is_over: bool,
    next_id: u32,
}

impl Model {
    async fn new(cx: &TestContext) -> Self {
        let worker = cx.worker().await;
        cx.commit_turn(&worker, 1).await;
        let head = (1, Boundary::Result);
        Self { worker, head, is_attached: true, waits: Vec::new(), park: None, is_over: false, next_id: 0 }
    }

    /// The position of what is stored next.
    fn next(&self) -> (i32, Boundary) {
        match self.head {
            (turn, Boundary::Plan) => (turn, Boundary::Result),
            (turn, Boundary::Result) => (turn + 1, Boundary::Plan),
        }
    }

    /// The run goes on if its park has its answers.
    fn look_at_park(&mut self) {
        let is_open = |id: &String| self.waits.iter().any(|wait| wait.is_open && wait.id == *id);
        let is_met = self.park.as_ref().is_some_and(|(on, mode)| match mode {
            ParkMode::All => !on.iter().any(is_open),
            ParkMode::Any => on.iter().any(|id| !is_open(id)),
        });
        if is_met {
            self.park = None;
        }
    }

    async fn call(&mut self, cx: &TestContext, random: &mut Random) -> &'static str {
        match random.below(40) {
            0..10 if self.is_attached => self.open(cx, random).await,
            10..16 if self.is_attached => self.park(cx, random).await,
            16..20 if self.is_attached => self.commit(cx, random).await,
            20 if self.is_attached => {
                ok(cx.finish(&self.worker.finish()).await.unwrap());
                self.end("finished")
            }
            21 => {
                let run = cx.run_of(&self.worker).await;
                let finish = NextStep::Finish(succeeded());
                cx.end_attempt(run.id, &ending(run.attempt.number, Class::Neutral), &finish).await.unwrap();
                self.end("cancelled")
            }
            22..24 if self.is_attached => {
                cx.end_and_reserve(&self.worker, Class::Disruption).await;
                self.is_attached = false;
                "lost"
            }
            24..28 if self.head.0 > 1 => self.rewind(cx, random).await,
            28..34 => self.answer(cx, random).await,
            _ if !self.is_attached && self.park.is_none() => {
                let run = cx.run_of(&self.worker).await;
                assert_eq!(run.attempt.state, AttemptState::Reserved);
                self.worker = cx.start_worker(&run).await;
                self.is_attached = true;
                "started"
            }
            _ => {
                cx.settle_time(self.worker.run).await.unwrap();
                "settled"
            }
        }
    }

    fn end(&mut self, how: &'static str) -> &'static str {
        (self.is_over, self.park) = (true, None);
        self.waits.iter_mut().for_each(|wait| wait.is_open = false);
        how
    }

    async fn open(&mut self, cx: &TestContext, random: &mut Random) -> &'static str {
        self.next_id += 1;
        let id = format!("wait-{}", self.next_id);
        let (asks, is_open) = match random.below(4) {
            0 => (WaitAsks::Until(in_ms(-1_000)), false),
            1 => (later(), true),
            _ => (approval(), true),
        };
        let is_approval = matches!(asks, WaitAsks::Approval { .. });
        let wait = open(cx, &request(&self.worker, &id, asks)).await;
        let at = self.next();
        self.waits.push(ModelWait { id, epoch: wait.facts.epoch, at, is_open, is_approval });
        if is_open { "open" } else { "past" }
    }

    async fn park(&mut self, cx: &TestContext, random: &mut Random) -> &'static str {
        let ids: Vec<_> = self.waits.iter().filter(|_| random.coin()).map(|wait| wait.id.clone()).collect();
        let mode = if random.coin() { ParkMode::All } else { ParkMode::Any };
        let on: Vec<_> = ids.iter().map(String::as_str).collect();
        let parked = cx.park(&park_on(&self.worker, &on, mode)).await.unwrap();
        self.park = Some((ids, mode)).filter(|(ids, _)| !ids.is_empty());
        self.look_at_park();
        if self.park.is_none() {
            assert_eq!(parked, Parked::Ready);
            return "ready";
        }
        assert_eq!(parked, Parked::Parked);
        self.is_attached = false;
        "parked"
    }

    async fn commit(&mut self, cx: &TestContext, random: &mut Random) -> &'static str {
        let (turn, boundary) = match self.next() {
            (turn, Boundary::Plan) if random.coin() => (turn, Boundary::Plan),
            (turn, _) => (turn, Boundary::Result),
        };
        ok(cx.commit(&self.worker.commit(turn, boundary)).await.unwrap());
        self.head = (turn, boundary);
        if boundary == Boundary::Plan { "planned" } else { "committed" }
    }

    async fn rewind(&mut self, cx: &TestContext, random: &mut Random) -> &'static str {
        let turn = 1 + random.below(self.head.0 as usize - 1) as i32;
        let run = cx.run_of(&self.worker).await;
        let rows = cx.boundaries(self.worker.run, turn, turn).await.unwrap();
        let row = rows.iter().find(|row| row.boundary == Boundary::Result).unwrap();
        let to = dalsegno_model::BoundaryId { turn, boundary: Boundary::Result, epoch: row.epoch };
        let rewound = cx.rewind(self.worker.run, &rewind_to(run.epoch, to)).await.unwrap();
        assert!(matches!(rewound, Rewound::Done(_)));
        self.head = (turn, Boundary::Result);
        self.waits.retain(|wait| wait.at <= self.head);
        (self.park, self.is_attached) = (None, false);
        "rewound"
    }

    async fn answer(&mut self, cx: &TestContext, random: &mut Random) -> &'static str {
        let approvals: Vec<_> = self.waits.iter().filter(|wait| wait.is_approval).cloned().collect();
        if approvals.is_empty() {
            return "nothing to answer";
        }
        let wait = &approvals[random.below(approvals.len())];
        let decision = WaitDecision { by: "ada".into(), reason: None, changes: None };
        let (id, epoch) = (wait.id.clone(), wait.epoch);
        let answer = WaitAnswer { id, epoch, outcome: WaitOutcome::Approved, decision };
        let answered = cx.answer_wait(self.worker.run, &answer).await.unwrap();
        assert_eq!(matches!(answered, Answered::Ok(_)), wait.is_open, "{answered:?}");
        let was_any = matches!(self.park, Some((_, ParkMode::Any)));
        for known in self.waits.iter_mut().filter(|known| known.id == wait.id) {
            known.is_open = false;
        }
        self.look_at_park();
        if was_any && self.park.is_none() { "any answered" } else { "answered" }
    }

    async fn assert_same(&self, cx: &TestContext, call: &str) {
        let run: RunRecord = cx.get_run(self.worker.run).await.unwrap().unwrap();
        let open = self.waits.iter().filter(|wait| wait.is_open);
        let open: Vec<_> = open.map(|wait| (wait.id.as_str(), wait.epoch)).collect();
        let found: Vec<_> = run.waits.iter().map(|wait| (wait.id.as_str(), wait.epoch)).collect();
        assert_eq!(found, open, "after {call}");
        let park = run.park.clone().map(|park| (park.on, park.mode));
        assert_eq!(park, self.park, "after {call}");
        assert_eq!(run.lifecycle == Lifecycle::Live, !self.is_over, "after {call}");
        let head = run.head.as_ref().map(|head| (head.turn, head.boundary));
        assert_eq!(head, Some(self.head), "after {call}");
    }
}
