//! The context of a case: a fresh store, and helpers that create runs and workers in it.

#[path = "fixtures.rs"]
mod fixtures;

use std::any::Any;
use std::ops::Deref;
use std::sync::Arc;

use dalsegno_model::{
    BudgetReset, CallFilter, Claim, Claimed, Class, Commit, CommitReceipt, Complete, Created, Digest,
    Dropped, FinishCall, LookUp, NamespaceAdoption, NewRun, NextStep, Park, RecordBatch, RequestedBy, Result,
    RunId, RunRecord, Settle, SettledBy, Store,
};
use dalsegno_proof::check_run;
use dalsegno_protocol::{Boundary, CompleteOutcome, ParkMode, Policy, RecordOp, Usage};
use uuid::Uuid;

pub use fixtures::*;

/// A fresh store, and everything that must live as long as it.
pub struct TestContext {
    pub store: Arc<dyn Store>,
    /// The store of a second gateway. The same store if the engine allows only one.
    pub second_gateway: Arc<dyn Store>,
    /// The URL of the database; `None` if no other connection can reach it.
    pub url: Option<String>,
    /// Whether payloads are sealed.
    pub sealed: bool,
    _keep: Box<dyn Any + Send + Sync>,
}

impl Deref for TestContext {
    type Target = dyn Store;

    fn deref(&self) -> &Self::Target {
        &*self.store
    }
}

/// An attached worker process.
#[derive(Clone, Debug)]
pub struct Worker {
    pub run: RunId,
    pub object_uid: String,
    pub attempt: i32,
    pub pod_uid: String,
    pub capability: Digest,
}

impl TestContext {
    pub fn new(store: Arc<dyn Store>, keep: impl Any + Send + Sync) -> Self {
        Self { second_gateway: Arc::clone(&store), store, url: None, sealed: false, _keep: Box::new(keep) }
    }

    /// Asserts that the run's audit is valid and that the run's rows match it.
    pub async fn assert_audit_is_valid(&self, run: RunId) {
        let mut reading = self.begin_read().await.unwrap();
        let problems = check_run(&mut *reading, run).await.unwrap().problems;
        assert_eq!(problems, [], "{:?}", self.audit(run).await);
    }

    /// Sets the URL of the database.
    pub fn with_url(self, url: String) -> Self {
        Self { url: Some(url), ..self }
    }

    /// Sets the store of a second gateway.
    pub fn with_second_gateway(self, second_gateway: Arc<dyn Store>) -> Self {
        Self { second_gateway, ..self }
    }

    /// Marks the store's payloads as sealed.
    pub fn sealed(self) -> Self {
        Self { sealed: true, ..self }
    }

    pub fn is_sqlite(&self) -> bool {
        self.url.as_deref().unwrap().starts_with("sqlite:")
    }

    /// Creates a run. Panics if a prior run prevents it.
    pub async fn create(&self, new: &NewRun) -> RunRecord {
        match self.create_run(new).await.unwrap() {
            Created::Run(run) => *run,
            Created::Prior(prior) => panic!("there is a prior run: {prior:?}"),
        }
    }

    /// Creates a run with a new name.
    pub async fn run(&self) -> RunRecord {
        self.create(&new_run()).await
    }

    /// Requests a cancel without the requester's name.
    pub async fn request_cancel(&self, run: RunId) -> Result<RunRecord> {
        self.store.request_cancel(run, &RequestedBy::default()).await
    }

    /// Suspends the run without the requester's name.
    pub async fn suspend(&self, run: RunId) -> Result<RunRecord> {
        self.store.suspend(run, &RequestedBy::default()).await
    }

    /// Lifts the suspend without the requester's name.
    pub async fn resume(&self, run: RunId) -> Result<RunRecord> {
        self.store.resume(run, &RequestedBy::default()).await
    }

    /// Grants a fresh budget without the requester's name.
    pub async fn reset_budget(&self, run: RunId, observed: i64, to: i64) -> Result<RunRecord> {
        let reset = BudgetReset { observed, to, requested_by: RequestedBy::default() };
        self.store.reset_budget(run, &reset).await
    }

    /// Gives the runs of a namespace to another one. `ada` requests it, because it was restored.
    pub async fn adopt_namespace(&self, from: &str, to: &str) -> Result<u64> {
        let adoption = NamespaceAdoption {
            from: from.to_owned(),
            to: to.to_owned(),
            actor: "ada".into(),
            reason: "restored".into(),
        };
        self.store.adopt_namespace(&adoption).await
    }

    /// Marks the run as deleted without the requester's name.
    pub async fn mark_deleted(&self, object_uid: &str) -> Result<()> {
        self.store.mark_deleted(object_uid, &RequestedBy::default()).await
    }

    /// Runs one step for the first expired run.
    pub async fn drop_expired(&self, rows: u32) -> Result<Dropped> {
        match self.runs_to_expire(RunId::nil()).await?.first() {
            Some(run) => self.store.expire(*run, rows).await,
            None => Ok(Dropped::default()),
        }
    }

    /// The record of the run of this object.
    pub async fn run_by_uid(&self, object_uid: &str) -> RunRecord {
        match self.find_by_object(object_uid).await.unwrap() {
            LookUp::Found(run) => *run,
            LookUp::NotFound { .. } => panic!("there is no run of {object_uid}"),
        }
    }

    /// The record of the worker's run.
    pub async fn run_of(&self, worker: &Worker) -> RunRecord {
        self.run_by_uid(&worker.object_uid).await
    }

    /// Records a pod for the run's current attempt and attaches a worker in it.
    pub async fn start_worker(&self, run: &RunRecord) -> Worker {
        let pod = pod(run);
        let worker = Worker {
            run: run.id,
            object_uid: run.object_uid.clone(),
            attempt: run.attempt.number,
            pod_uid: pod.uid.clone(),
            capability: random_digest(),
        };
        recorded(self.record_pod(run.id, run.attempt.number, &pod).await.unwrap());
        attached(self.attach(run.id, &pod.uid, &worker.capability).await.unwrap());
        worker
    }

    /// Creates a run and attaches a worker.
    pub async fn worker(&self) -> Worker {
        self.start_worker(&self.run().await).await
    }

    /// Ends the worker's attempt and reserves the next one.
    pub async fn end_and_reserve(&self, worker: &Worker, class: Class) -> RunRecord {
        self.end_attempt(worker.run, &ending(worker.attempt, class), &NextStep::Reserve).await.unwrap()
    }

    /// Ends the worker's attempt with a disruption and attaches a worker in the next one.
    pub async fn next_worker(&self, worker: &Worker) -> Worker {
        let run = self.end_and_reserve(worker, Class::Disruption).await;
        self.start_worker(&run).await
    }

    /// Commits the result of a turn. It must be the next turn.
    pub async fn commit_turn(&self, worker: &Worker, turn: i32) -> CommitReceipt {
        ok(self.commit(&worker.result(turn)).await.unwrap())
    }

    /// Commits the result of a turn whose state is this many characters of noise.
    pub async fn commit_large_turn(&self, worker: &Worker, turn: i32, length: usize) {
        let ops = format!(r#"{{"set":{{"a":{{"json":"{}"}}}}}}"#, noise(turn.unsigned_abs().into(), length));
        let commit = Commit { ops: Some(ops.into()), full: false, ..worker.result(turn) };
        ok(self.commit(&commit).await.unwrap());
    }

    /// The ids of the run's calls.
    pub async fn call_ids(&self, run: RunId, which: CallFilter) -> Vec<String> {
        self.calls(run, which).await.unwrap().into_iter().map(|call| call.id).collect()
    }

    /// Claims a call. Panics unless the answer is `Go`.
    pub async fn start_call(&self, worker: &Worker, id: &str, policy: Policy) -> Claim {
        let claim = worker.claim(id, policy);
        match self.claim(&claim).await.unwrap() {
            Claimed::Go(_) => claim,
            other => panic!("the claim of {id} was not accepted: {other:?}"),
        }
    }
}

impl Worker {
    pub fn commit(&self, turn: i32, boundary: Boundary) -> Commit {
        Commit {
            run: self.run,
            capability: self.capability,
            turn,
            boundary,
            commit_id: Uuid::new_v4(),
            digest: random_digest(),
            ops: Some(
                format!(r#"{{"full":true,"set":{{"state":{{"json":{{"turn":{turn}}}}}}}}}"#).into_bytes(),
            ),
            full: true,
            size: 0,
            base: None,
            events: Vec::new(),
            calls: Vec::new(),
            open_calls: Vec::new(),
            records: Vec::new(),
            inbox: Vec::new(),
            usage: Usage::default(),
            trigger: None,
            finish: None,
            park: None,
        }
    }

    pub fn plan(&self, turn: i32) -> Commit {
        self.commit(turn, Boundary::Plan)
    }

    pub fn result(&self, turn: i32) -> Commit {
        self.commit(turn, Boundary::Result)
    }

    pub fn finish(&self) -> FinishCall {
        FinishCall {
            run: self.run,
            capability: self.capability,
            commit_id: Uuid::new_v4(),
            digest: random_digest(),
            finish: succeeded(),
        }
    }

    /// A new request to park.
    pub fn park(&self) -> Park {
        Park {
            run: self.run,
            capability: self.capability,
            park_id: Uuid::new_v4(),
            on: Vec::new(),
            mode: ParkMode::All,
        }
    }

    /// A claim of a call that is new or was planned with this key.
    pub fn claim(&self, id: &str, policy: Policy) -> Claim {
        Claim {
            approval: None,
            run: self.run,
            capability: self.capability,
            id: id.into(),
            claim_id: Uuid::new_v4(),
            policy,
            key: Some(format!("key-of-{id}")),
            arguments: Some(json(r#"{"amount":  1}"#)),
            tool: None,
        }
    }

    pub fn complete(&self, claim: &Claim) -> Complete {
        Complete {
            run: self.run,
            capability: self.capability,
            id: claim.id.clone(),
            claim_id: claim.claim_id,
            outcome: CompleteOutcome::Completed,
            result: Some(json(r#"{"done":  true}"#)),
            usage: Usage::default(),
        }
    }

    /// A new batch of record operations.
    pub fn record_batch(&self, operations: Vec<RecordOp>) -> RecordBatch {
        RecordBatch {
            run: self.run,
            capability: self.capability,
            batch_id: Uuid::new_v4(),
            digest: random_digest(),
            operations,
        }
    }

    pub fn settle(&self, id: &str) -> Settle {
        Settle { by: SettledBy::Worker(self.capability), ..person_settles(self.run, id) }
    }
}
