//! Which states are measured at the same time: a run whose state is measured again and again does not delay the commits
//! of other runs. And what may be deleted while a state is read.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dalsegno_protocol::{Boundary, Limits};
use futures::future::join_all;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::unsynced_commits::{attached, turn};
use super::{Sqlite, execute};
use crate::branch;
use crate::encoded_ops;
use crate::keys::WriteCipher;
use crate::snapshot_io::{Branch, NewSnapshot, PageEntry, SnapshotReader, SnapshotWriter, StoredHash, Walk};
use crate::snapshot_writer;
use dalsegno_format::chain::EncodedSnapshot;
use dalsegno_format::seal::PayloadCipher;
use dalsegno_model::{
    BoundaryId, Cause, Class, Commit, Digest, Ending, Error, NextStep, Operator as _, Read as _, Result,
    Rewind, Rewound, RunId, Snapshotted, Worker as _,
};

/// Far more than the read of a small state takes.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A store that holds back the chunks of one run until `resume` is closed.
struct SlowStore<S> {
    inner: S,
    run: RunId,
    /// Reads of chunks that have begun.
    reads: AtomicUsize,
    resume: Semaphore,
    /// How many more rows of boundaries are answered as they were before a rewind.
    stale_rows: AtomicUsize,
}

impl<S: SnapshotReader> SlowStore<S> {
    fn new(inner: S, run: RunId) -> Self {
        let (reads, stale_rows) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { inner, run, reads, resume: Semaphore::new(0), stale_rows }
    }

    async fn wait_for_read(&self) {
        while self.reads.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
    }
}

impl<S: SnapshotReader> SnapshotReader for SlowStore<S> {
    async fn walk(&self, run: RunId, walk: &Walk) -> Result<Option<Branch>> {
        self.inner.walk(run, walk).await
    }

    async fn page(&self, run: RunId, after: Option<BoundaryId>) -> Result<Vec<PageEntry>> {
        self.inner.page(run, after).await
    }

    async fn boundary_hash(&self, run: RunId, id: BoundaryId) -> Result<Option<StoredHash>> {
        let stored = self.inner.boundary_hash(run, id).await?;
        let is_stale =
            self.stale_rows.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |it| it.checked_sub(1));
        Ok(stored.map(|it| StoredHash { is_live: it.is_live || is_stale.is_ok(), ..it }))
    }

    async fn chunks(&self, run: RunId, hashes: &[Digest]) -> Result<Vec<(Digest, Vec<u8>)>> {
        if run == self.run {
            self.reads.fetch_add(1, Ordering::SeqCst);
            let _ = self.resume.acquire().await;
        }
        self.inner.chunks(run, hashes).await
    }

    async fn snapshot(&self, run: RunId, content_hash: &Digest) -> Result<Option<EncodedSnapshot>> {
        self.inner.snapshot(run, content_hash).await
    }

    async fn cipher(&self, run: RunId) -> Result<PayloadCipher> {
        self.inner.cipher(run).await
    }

    async fn snapshots(&self, run: RunId) -> Result<Vec<(BoundaryId, Digest)>> {
        self.inner.snapshots(run).await
    }
}

impl<S: SnapshotWriter> SnapshotWriter for SlowStore<S> {
    async fn snapshot_every(&self, run: RunId) -> Result<Option<i32>> {
        self.inner.snapshot_every(run).await
    }

    async fn cipher_to_write(&self, run: RunId) -> Result<WriteCipher> {
        self.inner.cipher_to_write(run).await
    }

    async fn store_snapshot(&self, new: NewSnapshot) -> Result<()> {
        self.inner.store_snapshot(new).await
    }
}

/// Creates a run with a snapshot of a state of this size.
async fn run_with_snapshot(store: &Sqlite, bytes: usize) -> RunId {
    let run = run_with_boundaries(store, bytes).await;
    assert!(store.snapshot(run).await.unwrap().made);
    run
}

/// Creates a run with a state of this size, of which a snapshot is due.
async fn run_with_boundaries(store: &Sqlite, bytes: usize) -> RunId {
    let run = attached(store).await;
    let text = format!(r#"{{"append":{{"log":[{{"json":"{}"}}]}}}}"#, "x".repeat(bytes));
    for number in 1..=11 {
        let ops = Some(if number == 1 { text.clone().into() } else { br#"{"append":{}}"#.to_vec() });
        store.commit(&Commit { ops, full: false, ..turn(run, number) }).await.unwrap();
    }
    run
}

#[tokio::test]
async fn a_snapshot_deleted_while_it_is_read_back_is_no_corruption_but_one_without_its_chunks_is() {
    let store = Sqlite::memory().await.unwrap();
    let made_while = async |sql| {
        let run = run_with_boundaries(&store, 1).await;
        let slow = SlowStore::new(store.snapshot_store(), run);
        let (made, ()) = tokio::join!(snapshot_writer::make(&slow, run), async {
            slow.wait_for_read().await;
            execute(&store, sql).await;
            slow.resume.close();
        });
        made
    };
    let dropped = made_while("DELETE FROM snapshots; DELETE FROM chunks").await;
    assert!(matches!(dropped, Ok(Snapshotted { made: false, .. })), "{dropped:?}");
    let lost = made_while("DELETE FROM chunks").await;
    assert!(matches!(lost, Err(Error::Corrupt { .. })), "{lost:?}");
}

#[tokio::test]
async fn a_boundary_that_is_undone_while_it_is_read_is_no_corruption_but_one_whose_row_is_wrong_is() {
    let store = Sqlite::memory().await.unwrap();
    let run = run_with_boundaries(&store, 1).await;
    let record = store.get_run(run).await.unwrap().unwrap();
    let ending = Ending {
        attempt: record.attempt.number,
        cause: Cause::Deleted,
        class: Class::Neutral,
        exit_code: None,
        message: String::new(),
        ran: None,
    };
    let epoch = store.end_attempt(run, &ending, &NextStep::Reserve).await.unwrap().epoch;
    let id = |turn| BoundaryId { turn, boundary: Boundary::Result, epoch: record.epoch };
    let rewind = Rewind { epoch, to: id(5), reason: "a test".into(), actor: "ada".into() };
    assert!(matches!(store.rewind(run, &rewind).await.unwrap(), Rewound::Done(_)));

    let slow = SlowStore::new(store.snapshot_store(), run);
    slow.resume.close();
    slow.stale_rows.store(1, Ordering::SeqCst);
    let undone = branch::state_by_id(&slow, run, id(8)).await.unwrap().unwrap();
    assert_eq!(undone.row.id(), id(8));
    slow.stale_rows.store(2, Ordering::SeqCst);
    let wrong = branch::state_by_id(&slow, run, id(8)).await.map(drop);
    assert!(matches!(wrong, Err(Error::Corrupt { .. })), "{wrong:?}");
}

async fn measure(store: &impl SnapshotReader, run: RunId) -> bool {
    let commit = Commit { ops: Some(br#"{"append":{}}"#.to_vec()), full: false, ..turn(run, 12) };
    encoded_ops::encode_with_state_size(store, &commit, &PayloadCipher::default()).await.unwrap().is_some()
}

#[tokio::test]
async fn one_state_of_a_run_is_measured_at_a_time_and_other_runs_do_not_wait_for_the_rest() {
    let store = Sqlite::memory().await.unwrap();
    let (busy, other) = (run_with_snapshot(&store, 1).await, run_with_snapshot(&store, 1).await);
    let slow = SlowStore::new(store.snapshot_store(), busy);
    let busy = join_all((0..16).map(|_| measure(&slow, busy)));
    let (busy, counted) = tokio::join!(busy, async {
        slow.wait_for_read().await;
        let counted = timeout(TIMEOUT, measure(&slow, other)).await;
        slow.resume.close();
        counted
    });
    assert!(busy.iter().all(|counted| *counted));
    assert_eq!(counted, Ok(true));
}

#[tokio::test]
async fn a_small_state_is_measured_while_a_large_one_is() {
    let store = Sqlite::memory().await.unwrap();
    let (large, small) =
        (run_with_snapshot(&store, Limits::STATE_BYTES / 6).await, run_with_snapshot(&store, 1).await);
    let slow = SlowStore::new(store.snapshot_store(), large);
    let (large, counted) = tokio::join!(measure(&slow, large), async {
        slow.wait_for_read().await;
        let counted = timeout(TIMEOUT, measure(&slow, small)).await;
        slow.resume.close();
        counted
    });
    assert!(large);
    assert_eq!(counted, Ok(true));
}

#[tokio::test]
async fn a_state_above_the_limit_is_built_neither_from_boundaries_nor_from_a_snapshot() {
    let store = Sqlite::memory().await.unwrap();
    let run = attached(&store).await;
    let slow = SlowStore::new(store.snapshot_store(), run);
    slow.resume.close();
    let found = async |most| branch::small_state(&slow, run, most).await.unwrap().is_some();
    for number in 1..=11 {
        let ops = Some(br#"{"append":{"log":[{"json":1}]}}"#.to_vec());
        store.commit(&Commit { ops, full: false, ..turn(run, number) }).await.unwrap();
    }
    let bytes = 64 + 3 + 11 * 65;
    assert_eq!((found(bytes - 1).await, found(bytes).await), (false, true));
    assert!(store.snapshot(run).await.unwrap().made);
    assert_eq!((found(bytes - 1).await, found(bytes).await), (false, true));
    let before = slow.reads.load(Ordering::SeqCst);
    assert!(!found(10).await);
    assert_eq!((before, slow.reads.load(Ordering::SeqCst)), (2, 2), "its chunks must not be read");
}
