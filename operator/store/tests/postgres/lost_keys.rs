//! A failover to a standby that lacks the last transactions may lose the row of a data key that a process has cached.

use dalsegno_model::{CallFilter, Commit, Written};
use dalsegno_protocol::{Payload, Policy, RecordOp};
use dalsegno_store::open_beside;
use sqlx::{Connection as _, Executor as _, PgConnection};
use tempfile::TempDir;

use crate::context::*;
use crate::{keys, pg};

/// A database, and the folder of the wrapping keys.
struct Sealed {
    url: String,
    keys: TempDir,
}

impl Sealed {
    async fn new() -> Self {
        Self { url: pg::database().await, keys: keys::folder() }
    }

    /// The store of another process: it has cached nothing.
    async fn process(&self) -> TestContext {
        TestContext::new(open_beside(&self.url, keys::shared(&self.keys)).await.unwrap(), ())
    }

    /// Deletes what a failover lost: the rows of all data keys. Nothing was sealed under them yet.
    async fn lose_keys(&self) {
        let mut conn = PgConnection::connect(&self.url).await.unwrap();
        let lost = conn.execute("DELETE FROM data_keys").await.unwrap().rows_affected();
        assert!(lost > 0, "there was a key");
        conn.close().await.unwrap();
    }
}

/// A worker of whose run this process has cached the data key, and nothing is sealed: the write was refused.
async fn worker_with_cached_key(cx: &TestContext) -> Worker {
    let worker = cx.worker().await;
    cache_key(cx, &worker).await;
    worker
}

/// Makes this process cache the data key of the run.
async fn cache_key(cx: &TestContext, worker: &Worker) {
    let stranger = Worker { capability: random_digest(), ..worker.clone() };
    cx.commit(&stranger.result(1)).await.unwrap();
}

/// Writes everything that a worker can seal: a boundary of each kind, records, and a call with its result.
async fn write_all(cx: &TestContext, worker: &Worker) {
    cx.commit_turn(worker, 1).await;
    let calls = vec![planned("planned", Policy::RetrySameKey)];
    ok(cx.commit(&Commit { calls, ..worker.plan(2) }).await.unwrap());
    let put = RecordOp::Put { space: "s".into(), key: "k".into(), value: Payload::Json(json("1")) };
    assert_eq!(cx.write_records(&worker.record_batch(vec![put])).await.unwrap(), Written::Ok);
    let claim = cx.start_call(worker, "claimed", Policy::RetrySameKey).await;
    cx.complete(&worker.complete(&claim)).await.unwrap();
}

/// Reads all of it with what is stored.
async fn assert_readable(cx: &TestContext, worker: &Worker) {
    assert!(cx.state(worker.run, None).await.unwrap().is_some());
    assert_eq!(cx.calls(worker.run, CallFilter::All).await.unwrap().len(), 2);
    assert_eq!(cx.read_records(worker.run, &all_records()).await.unwrap().records.len(), 1);
    cx.assert_audit_is_valid(worker.run).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_sealed_under_a_data_key_that_was_lost() {
    let sealed = Sealed::new().await;
    let cx = sealed.process().await;
    let worker = worker_with_cached_key(&cx).await;
    sealed.lose_keys().await;
    write_all(&cx, &worker).await;
    assert_readable(&sealed.process().await, &worker).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_sealed_under_a_lost_data_key_after_another_process_made_a_new_one() {
    let sealed = Sealed::new().await;
    let (cx, other) = (sealed.process().await, sealed.process().await);
    let worker = worker_with_cached_key(&cx).await;
    sealed.lose_keys().await;
    cache_key(&other, &worker).await;
    write_all(&cx, &worker).await;
    assert_readable(&sealed.process().await, &worker).await;
}

/// It has cached the lost key, and writes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_reads_what_another_one_sealed_under_a_new_data_key() {
    let sealed = Sealed::new().await;
    let worker = sealed.process().await.worker().await;
    let (state, calls, records) = (sealed.process().await, sealed.process().await, sealed.process().await);
    for reader in [&state, &calls, &records] {
        cache_key(reader, &worker).await;
    }
    sealed.lose_keys().await;
    write_all(&sealed.process().await, &worker).await;
    assert!(state.state(worker.run, None).await.unwrap().is_some());
    assert_eq!(calls.calls(worker.run, CallFilter::All).await.unwrap().len(), 2);
    assert_eq!(records.read_records(worker.run, &all_records()).await.unwrap().records.len(), 1);
}

/// Each kind of write is the first after the loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_write_compares_the_data_key() {
    let sealed = Sealed::new().await;
    for first in ["boundary", "boundary with calls", "records", "claim", "completion", "snapshot"] {
        let (cx, other) = (sealed.process().await, sealed.process().await);
        let worker = cx.worker().await;
        if first == "snapshot" {
            // Plain boundaries, which are readable without a data key.
            let plain = TestContext::new(open_beside(&sealed.url, None).await.unwrap(), ());
            for turn in 1..=10 {
                // Only a change: a turn with its whole state needs no snapshot.
                plain.commit_large_turn(&worker, turn, 100).await;
            }
        }
        // A plain claim, made before the run had a data key.
        let plain = TestContext::new(open_beside(&sealed.url, None).await.unwrap(), ());
        let claim = plain.start_call(&worker, "started", Policy::RetrySameKey).await;
        cache_key(&cx, &worker).await;
        sealed.lose_keys().await;
        cache_key(&other, &worker).await;
        match first {
            "boundary" => drop(cx.commit_turn(&worker, 1).await),
            "boundary with calls" => {
                let calls = vec![planned("planned", Policy::RetrySameKey)];
                ok(cx.commit(&Commit { calls, ..worker.plan(1) }).await.unwrap());
            }
            "records" => {
                let put =
                    RecordOp::Put { space: "s".into(), key: "k".into(), value: Payload::Json(json("1")) };
                assert_eq!(cx.write_records(&worker.record_batch(vec![put])).await.unwrap(), Written::Ok);
            }
            "claim" => drop(cx.start_call(&worker, "claimed", Policy::RetrySameKey).await),
            "completion" => drop(cx.complete(&worker.complete(&claim)).await.unwrap()),
            _ => {
                let made = [cx.snapshot(worker.run).await.unwrap(), cx.snapshot(worker.run).await.unwrap()];
                assert!(
                    !made[0].made && made[1].made,
                    "the second one is sealed under the stored key: {made:?}"
                );
            }
        }
        let reader = sealed.process().await;
        reader.state(worker.run, None).await.unwrap();
        reader.calls(worker.run, CallFilter::All).await.unwrap();
        reader.read_records(worker.run, &all_records()).await.unwrap();
        let mut reading = reader.begin_read().await.unwrap();
        let snapshots = reading.snapshots(worker.run).await.unwrap();
        assert!(snapshots.iter().all(|snapshot| snapshot.fault.is_none()), "{first}: {snapshots:?}");
    }
}
