//! A verification of all runs while they go on.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use dalsegno_model::anchor::{AnchorRow, AnchoredHead};
use dalsegno_model::read_transaction::{
    AuditKey, BoundaryKey, CallKey, LeafKey, RecordKey, RunHead, RunLeafKey, StoredBatch, StoredBoundary,
    StoredCall, StoredMessage, StoredRecord, StoredSnapshot, StoredWait, WaitKey,
};
use dalsegno_model::{AuditRow, ReadTransaction, Result, RunId};
use dalsegno_proof::{Anchors, check_store};
use futures::future::join_all;
use sqlx::{Connection as _, PgConnection};

use crate::context::*;
use crate::fresh;

/// The server cannot clean up any row version that a reader might still see.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_verification_holds_each_moment_only_briefly() {
    let (cx, url) = fresh().await;
    let workers = join_all((0..6).map(|_| cx.worker())).await;
    join_all(workers.iter().map(|worker| cx.commit_turn(worker, 1))).await;
    let observer = PgConnection::connect(&url).await.unwrap();
    let mut reading = SlowReading { inner: cx.begin_read().await.unwrap(), observer, began: Vec::new() };
    let commits = async {
        for turn in 2..=30 {
            join_all(workers.iter().map(|worker| cx.commit_turn(worker, turn))).await;
            sleep_ms(100).await;
        }
    };
    let mut problems = Vec::new();
    let mut report = |problem| problems.push(problem);
    let check = check_store(&mut reading, Anchors::default(), &mut report);
    let (checked, ()) = futures::join!(check, commits);
    assert_eq!((checked.unwrap().runs, problems), (6, Vec::new()), "each run is checked as of one moment");
    let moments = reading.began.iter().collect::<BTreeSet<_>>().len();
    assert!(reading.began.len() == 6 && moments >= 3, "{:?}", reading.began);
}

/// A read transaction that takes some time for each run.
struct SlowReading {
    inner: Box<dyn ReadTransaction>,
    observer: PgConnection,
    /// For each run: when the transaction that reads it began.
    began: Vec<String>,
}

#[async_trait]
impl ReadTransaction for SlowReading {
    async fn renew(&mut self) -> Result<()> {
        self.inner.renew().await
    }

    async fn runs(&mut self, after: Option<RunId>) -> Result<Vec<RunHead>> {
        self.inner.runs(after).await
    }

    async fn unwrap_data_key(&mut self, run: RunId) -> Result<()> {
        self.inner.unwrap_data_key(run).await
    }

    async fn audit(&mut self, after: AuditKey, to: RunId) -> Result<Vec<(RunId, AuditRow)>> {
        self.inner.audit(after, to).await
    }

    async fn boundaries(&mut self, after: BoundaryKey, to: RunId) -> Result<Vec<StoredBoundary>> {
        self.inner.boundaries(after, to).await
    }

    async fn purges(&mut self, after: RunId, to: RunId) -> Result<Vec<(RunId, AuditRow)>> {
        self.inner.purges(after, to).await
    }

    async fn anchors(&mut self, after: i64) -> Result<Vec<AnchorRow>> {
        self.inner.anchors(after).await
    }

    async fn leaves(&mut self, after: LeafKey) -> Result<Vec<(i64, AnchoredHead)>> {
        self.inner.leaves(after).await
    }

    async fn leaves_by_run(&mut self, after: RunLeafKey, to: RunId) -> Result<Vec<(i64, AnchoredHead)>> {
        self.inner.leaves_by_run(after, to).await
    }

    async fn snapshots(&mut self, run: RunId) -> Result<Vec<StoredSnapshot>> {
        tokio::time::sleep(Duration::from_millis(600)).await;
        let began = "SELECT min(xact_start)::text FROM pg_stat_activity \
                     WHERE datname = current_database() AND state = 'idle in transaction'";
        self.began.push(sqlx::query_scalar(began).fetch_one(&mut self.observer).await.unwrap());
        self.inner.snapshots(run).await
    }

    async fn calls(&mut self, run: RunId, after: Option<CallKey>) -> Result<Vec<StoredCall>> {
        self.inner.calls(run, after).await
    }

    async fn messages(&mut self, run: RunId, after: i64) -> Result<Vec<StoredMessage>> {
        self.inner.messages(run, after).await
    }

    async fn waits(&mut self, run: RunId, after: Option<WaitKey>) -> Result<Vec<StoredWait>> {
        self.inner.waits(run, after).await
    }

    async fn record_changes(&mut self, run: RunId, after: i64) -> Result<Vec<StoredBatch>> {
        self.inner.record_changes(run, after).await
    }

    async fn records(&mut self, run: RunId, after: &RecordKey) -> Result<Vec<StoredRecord>> {
        self.inner.records(run, after).await
    }
}
