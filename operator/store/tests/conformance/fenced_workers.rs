//! A worker whose attempt has ended cannot write anything, whatever it tries and however late.

use dalsegno_model::{
    Acknowledged, Attached, Claimed, Class, Committed, Completed, HeartbeatAnswer, NextStep, OnPrior, Parked,
    Written,
};
use dalsegno_protocol::{Policy, RecordOp};

use crate::context::*;
use crate::engines::on_every_engine;

on_every_engine! {
    after_a_replacement_every_write_is_fenced,
    after_an_end_without_a_successor_every_write_is_fenced,
    after_the_operators_finish_every_write_is_fenced,
    after_deletion_every_write_is_fenced,
    after_abandonment_every_write_is_fenced,
    after_adoption_every_write_is_fenced,
    after_an_acknowledged_cancel_every_write_is_fenced,
    after_a_park_every_write_is_fenced,
    after_a_park_that_acknowledged_a_cancel_every_write_is_fenced,
}

/// A worker that has committed a turn and has an open call.
async fn busy_worker(cx: &TestContext, new: &dalsegno_model::NewRun) -> Worker {
    let worker = cx.start_worker(&cx.create(new).await).await;
    cx.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    cx.commit_turn(&worker, 1).await;
    cx.start_call(&worker, "open", Policy::RetrySameKey).await;
    worker
}

/// Tries every write that a worker can make, and checks that each is refused and changes nothing.
async fn assert_fenced(cx: &TestContext, fenced: &Worker) {
    let before = without_times(cx.find_run(fenced).await);
    let calls = cx.call_ids(fenced.run, dalsegno_model::CallFilter::All).await;
    let audit = cx.audit(fenced.run).await.unwrap();

    for commit in [fenced.plan(2), fenced.result(2), fenced.result(1)] {
        assert_eq!(cx.commit(&commit).await.unwrap(), Committed::Fenced { committed: false });
    }
    assert_eq!(cx.finish(&fenced.finish()).await.unwrap(), Committed::Fenced { committed: false });
    let beats = cx.heartbeats(&[(fenced.run, fenced.capability)]).await.unwrap();
    assert_eq!(beats, [HeartbeatAnswer::Fenced]);
    for id in ["open", "new"] {
        let claimed = cx.claim(&fenced.claim(id, Policy::RetrySameKey)).await.unwrap();
        assert!(matches!(claimed, Claimed::Fenced), "{claimed:?}");
        let claim = fenced.claim(id, Policy::RetrySameKey);
        let completed = cx.complete(&fenced.complete(&claim)).await.unwrap();
        assert!(matches!(completed, Completed::Fenced), "{completed:?}");
        let settled = cx.settle(&fenced.settle(id)).await.unwrap();
        assert!(matches!(settled, Completed::Fenced), "{settled:?}");
    }
    let operations = vec![RecordOp::Delete { space: "s".into(), key: "k".into() }];
    let written = cx.write_records(&fenced.record_batch(operations)).await.unwrap();
    assert_eq!(written, Written::Fenced);
    assert_eq!(cx.park(&fenced.park()).await.unwrap(), Parked::Fenced);
    let attached = cx.attach(fenced.run, &fenced.pod_uid, &fenced.capability).await.unwrap();
    assert!(!matches!(attached, Attached::Ok(_) | Attached::Spent), "{attached:?}");
    assert!(!cx.is_current(fenced.run, &fenced.capability).await.unwrap());

    assert_eq!(without_times(cx.find_run(fenced).await), before);
    assert_eq!(cx.call_ids(fenced.run, dalsegno_model::CallFilter::All).await, calls);
    assert_eq!(cx.audit(fenced.run).await.unwrap(), audit);
}

impl TestContext {
    /// The run by its id, whoever owns it now.
    async fn find_run(&self, worker: &Worker) -> dalsegno_model::RunRecord {
        let name = format!("run-{}", worker.run);
        let found = self.find("agents", &name).await.unwrap();
        found.into_iter().find(|run| run.id == worker.run).unwrap()
    }
}

async fn after_a_replacement_every_write_is_fenced(cx: &TestContext) {
    let fenced = busy_worker(cx, &new_run()).await;
    let run = cx.end_and_reserve(&fenced, Class::Disruption).await;
    assert_fenced(cx, &fenced).await;
    let next = cx.start_worker(&run).await;
    assert_fenced(cx, &fenced).await;
    cx.start_call(&next, "open", Policy::RetrySameKey).await;
    cx.commit_turn(&next, 2).await;
    assert_eq!(cx.acknowledge_cancel(fenced.run, &fenced.capability).await.unwrap(), Acknowledged::Fenced);
}

async fn after_an_end_without_a_successor_every_write_is_fenced(cx: &TestContext) {
    let fenced = busy_worker(cx, &new_run()).await;
    cx.end_attempt(fenced.run, &ending(1, Class::Crash), &NextStep::Nothing).await.unwrap();
    assert_fenced(cx, &fenced).await;
}

async fn after_the_operators_finish_every_write_is_fenced(cx: &TestContext) {
    let fenced = busy_worker(cx, &new_run()).await;
    let over = NextStep::Finish(succeeded());
    cx.end_attempt(fenced.run, &ending(1, Class::Crash), &over).await.unwrap();
    assert_fenced(cx, &fenced).await;
}

async fn after_deletion_every_write_is_fenced(cx: &TestContext) {
    let fenced = busy_worker(cx, &new_run()).await;
    cx.mark_deleted(&fenced.object_uid).await.unwrap();
    assert_fenced(cx, &fenced).await;
}

async fn after_abandonment_every_write_is_fenced(cx: &TestContext) {
    let new = new_run();
    let fenced = busy_worker(cx, &new).await;
    cx.create(&namesake(&new, OnPrior::Ignore)).await;
    assert_fenced(cx, &fenced).await;
}

async fn after_adoption_every_write_is_fenced(cx: &TestContext) {
    let new = new_run();
    let fenced = busy_worker(cx, &new).await;
    cx.create(&namesake(&new, OnPrior::Adopt)).await;
    assert_fenced(cx, &fenced).await;
}

async fn after_an_acknowledged_cancel_every_write_is_fenced(cx: &TestContext) {
    let fenced = busy_worker(cx, &new_run()).await;
    cx.request_cancel(fenced.run).await.unwrap();
    let acknowledged = cx.acknowledge_cancel(fenced.run, &fenced.capability).await.unwrap();
    assert_eq!(acknowledged, Acknowledged::Cancelled);
    assert_fenced(cx, &fenced).await;
}

async fn after_a_park_every_write_is_fenced(cx: &TestContext) {
    let fenced = busy_worker(cx, &new_run()).await;
    cx.suspend(fenced.run).await.unwrap();
    assert_eq!(cx.park(&fenced.park()).await.unwrap(), Parked::Parked);
    assert_fenced(cx, &fenced).await;
    assert_eq!(cx.acknowledge_cancel(fenced.run, &fenced.capability).await.unwrap(), Acknowledged::Fenced);
    let run = cx.resume(fenced.run).await.unwrap();
    assert_fenced(cx, &fenced).await;
    let next = cx.start_worker(&run).await;
    assert_fenced(cx, &fenced).await;
    cx.start_call(&next, "open", Policy::RetrySameKey).await;
    cx.commit_turn(&next, 2).await;
}

async fn after_a_park_that_acknowledged_a_cancel_every_write_is_fenced(cx: &TestContext) {
    let fenced = busy_worker(cx, &new_run()).await;
    cx.request_cancel(fenced.run).await.unwrap();
    assert_eq!(cx.park(&fenced.park()).await.unwrap(), Parked::Parked);
    assert_fenced(cx, &fenced).await;
}
