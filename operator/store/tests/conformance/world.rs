//! A fresh store, and what cases make in it.

#[path = "make.rs"]
mod make;

use std::any::Any;
use std::ops::Deref;
use std::sync::Arc;

use dalsegno_protocol::{Boundary, CompleteOutcome, Policy, Usage};
use dalsegno_store::proof::check_run;
use dalsegno_store::{
    AskedBy, CallFilter, Claim, Claimed, Class, Commit, Complete, Created, Digest, Dropped, FinishCall,
    LookUp, NewRun, Result, RunId, RunRecord, Settle, SettledBy, Standing, Store, Then,
};
use uuid::Uuid;

pub use make::*;

/// A fresh store, and whatever must live as long as it.
pub struct World {
    pub store: Arc<dyn Store>,
    /// Another gateway's; where only one may serve, the same.
    pub other: Arc<dyn Store>,
    /// Where others can reach the database; `None`: nobody can.
    pub url: Option<String>,
    /// Whether payloads are sealed.
    pub sealed: bool,
    _keep: Box<dyn Any + Send + Sync>,
}

impl Deref for World {
    type Target = dyn Store;

    fn deref(&self) -> &Self::Target {
        &*self.store
    }
}

/// A process that attached.
#[derive(Clone, Debug)]
pub struct Worker {
    pub run: RunId,
    pub object_uid: String,
    pub attempt: i32,
    pub pod_uid: String,
    pub capability: Digest,
}

impl World {
    pub fn new(store: Arc<dyn Store>, keep: impl Any + Send + Sync) -> Self {
        Self { other: Arc::clone(&store), store, url: None, sealed: false, _keep: Box::new(keep) }
    }

    /// A run's audit is whole, and the run is as it says.
    pub async fn proves_itself(&self, run: RunId) {
        let mut reading = self.reading().await.unwrap();
        let problems = check_run(&mut *reading, run).await.unwrap().problems;
        assert_eq!(problems, [], "{:?}", self.audit(run).await);
    }

    /// A store in the database at this URL.
    pub fn at(self, url: String) -> Self {
        Self { url: Some(url), ..self }
    }

    /// A store that another gateway serves, too.
    pub fn beside(self, other: Arc<dyn Store>) -> Self {
        Self { other, ..self }
    }

    /// A store that has keys.
    pub fn sealed(self) -> Self {
        Self { sealed: true, ..self }
    }

    /// Takes a run up that nothing stands in the way of.
    pub async fn take_up(&self, new: &NewRun) -> RunRecord {
        match self.create_run(new).await.unwrap() {
            Created::Run(run) => *run,
            Created::Prior(prior) => panic!("a prior run stands in the way: {prior:?}"),
        }
    }

    /// A new run.
    pub async fn run(&self) -> RunRecord {
        self.take_up(&new_run()).await
    }

    /// Somebody wants it cancelled, and nobody knows who.
    pub async fn request_cancel(&self, run: RunId) -> Result<RunRecord> {
        self.store.request_cancel(run, &AskedBy::default()).await
    }

    /// Somebody grants a budget, and nobody knows who.
    pub async fn reset_budget(&self, run: RunId, observed: i64, to: i64) -> Result<RunRecord> {
        self.store.reset_budget(run, observed, to, &AskedBy::default()).await
    }

    /// Somebody has deleted it, and nobody knows who.
    pub async fn mark_deleted(&self, object_uid: &str) -> Result<()> {
        self.store.mark_deleted(object_uid, &AskedBy::default()).await
    }

    /// One step for the first run that is past its retention.
    pub async fn drop_expired(&self, rows: u32) -> Result<Dropped> {
        match self.expired(RunId::nil()).await?.first() {
            Some(run) => self.store.drop_expired(*run, rows).await,
            None => Ok(Dropped::default()),
        }
    }

    /// The run's record.
    pub async fn look(&self, object_uid: &str) -> RunRecord {
        match self.look_up(object_uid).await.unwrap() {
            LookUp::Found(run) => *run,
            LookUp::NotFound { .. } => panic!("there is no run of {object_uid}"),
        }
    }

    /// The worker's run.
    pub async fn of(&self, worker: &Worker) -> RunRecord {
        self.look(&worker.object_uid).await
    }

    /// A pod for the run's current attempt, recorded, and a process in it, attached.
    pub async fn work_on(&self, run: &RunRecord) -> Worker {
        let pod = pod(run);
        let worker = Worker {
            run: run.id,
            object_uid: run.object_uid.clone(),
            attempt: run.attempt.number,
            pod_uid: pod.uid.clone(),
            capability: random(),
        };
        recorded(self.record_pod(run.id, run.attempt.number, &pod).await.unwrap());
        attached(self.attach(run.id, &pod.uid, &worker.capability).await.unwrap());
        worker
    }

    /// A new run with an attached worker.
    pub async fn worker(&self) -> Worker {
        self.work_on(&self.run().await).await
    }

    /// Ends the worker's attempt and reserves the next one.
    pub async fn lose(&self, worker: &Worker, class: Class) -> RunRecord {
        self.end_attempt(worker.run, &ending(worker.attempt, class), &Then::Reserve).await.unwrap()
    }

    /// The worker of the next attempt, after a disruption.
    pub async fn next(&self, worker: &Worker) -> Worker {
        let run = self.lose(worker, Class::Disruption).await;
        self.work_on(&run).await
    }

    /// Commits the result of a turn, which must be the next.
    pub async fn turn(&self, worker: &Worker, turn: i32) -> Standing {
        ok(self.commit(&worker.result(turn)).await.unwrap())
    }

    /// Commits the result of a turn whose state is noise of this length.
    pub async fn heavy_turn(&self, worker: &Worker, turn: i32, length: usize) {
        let ops = format!(r#"{{"set":{{"a":{{"json":"{}"}}}}}}"#, noise(turn.unsigned_abs().into(), length));
        let commit = Commit { ops: Some(ops.into()), full: false, ..worker.result(turn) };
        ok(self.commit(&commit).await.unwrap());
    }

    /// The names of calls.
    pub async fn call_ids(&self, run: RunId, which: CallFilter) -> Vec<String> {
        self.calls(run, which).await.unwrap().into_iter().map(|call| call.id).collect()
    }

    /// Claims a call that must be done now.
    pub async fn start_call(&self, worker: &Worker, id: &str, policy: Policy) -> Claim {
        let claim = worker.claim(id, policy);
        match self.claim(&claim).await.unwrap() {
            Claimed::Go(_) => claim,
            other => panic!("the claim of {id} came to {other:?}"),
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
            digest: random(),
            ops: Some(
                format!(r#"{{"full":true,"set":{{"state":{{"json":{{"turn":{turn}}}}}}}}}"#).into_bytes(),
            ),
            full: true,
            size: 0,
            base: None,
            events: Vec::new(),
            calls: Vec::new(),
            records: Vec::new(),
            usage: Usage::default(),
            trigger: None,
            finish: None,
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
            digest: random(),
            finish: succeeded(),
        }
    }

    /// A claim of a call that is new or was planned with this key.
    pub fn claim(&self, id: &str, policy: Policy) -> Claim {
        Claim {
            run: self.run,
            capability: self.capability,
            id: id.into(),
            claim_id: Uuid::new_v4(),
            policy,
            key: Some(format!("key-of-{id}")),
            arguments: Some(json(r#"{"amount":  1}"#)),
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
        }
    }

    pub fn settle(&self, id: &str) -> Settle {
        Settle { by: SettledBy::Worker(self.capability), ..person_settles(self.run, id) }
    }
}
