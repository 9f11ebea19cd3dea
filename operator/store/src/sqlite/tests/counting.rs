//! Whose states are counted at once: a run that has its own counted, over and over, keeps no other from committing. And what
//! may go while a state is read.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dalsegno_protocol::Limits;
use futures::future::join_all;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::careless::{attached, turn};
use super::{Sqlite, execute};
use crate::branch;
use crate::chain::EncodedSnapshot;
use crate::encoded_ops;
use crate::seal::PayloadCipher;
use crate::snapshot_io::{Branch, NewSnapshot, PageEntry, SnapshotReader, SnapshotWriter, Walk};
use crate::{Commit, Digest, Error, Place, Result, RunId, Snapshotted, Worker as _, snapshot_writer};

/// Longer than a small state takes.
const LONG: Duration = Duration::from_secs(20);

/// A shelf on which one run's states are long in coming, once they are begun with.
struct Slow<S> {
    shelf: S,
    run: RunId,
    begun: AtomicUsize,
    goes_on: Semaphore,
}

impl<S: SnapshotReader> Slow<S> {
    fn new(shelf: S, run: RunId) -> Self {
        Self { shelf, run, begun: AtomicUsize::new(0), goes_on: Semaphore::new(0) }
    }

    async fn begun(&self) {
        while self.begun.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
    }
}

impl<S: SnapshotReader> SnapshotReader for Slow<S> {
    async fn walk(&self, run: RunId, walk: &Walk) -> Result<Option<Branch>> {
        self.shelf.walk(run, walk).await
    }

    async fn page(&self, run: RunId, after: Option<Place>) -> Result<Vec<PageEntry>> {
        self.shelf.page(run, after).await
    }

    async fn chunks(&self, run: RunId, hashes: &[Digest]) -> Result<Vec<(Digest, Vec<u8>)>> {
        if run == self.run {
            self.begun.fetch_add(1, Ordering::SeqCst);
            let _ = self.goes_on.acquire().await;
        }
        self.shelf.chunks(run, hashes).await
    }

    async fn snapshot(&self, run: RunId, content_hash: &Digest) -> Result<Option<EncodedSnapshot>> {
        self.shelf.snapshot(run, content_hash).await
    }

    async fn cipher(&self, run: RunId) -> Result<PayloadCipher> {
        self.shelf.cipher(run).await
    }

    async fn snapshots(&self, run: RunId) -> Result<Vec<(Place, Digest)>> {
        self.shelf.snapshots(run).await
    }
}

impl<S: SnapshotWriter> SnapshotWriter for Slow<S> {
    async fn cipher_to_write(&self, run: RunId) -> Result<PayloadCipher> {
        self.shelf.cipher_to_write(run).await
    }

    async fn store_snapshot(&self, new: NewSnapshot) -> Result<()> {
        self.shelf.store_snapshot(new).await
    }
}

/// A run that stands on a snapshot of a state of so many bytes.
async fn run(store: &Sqlite, bytes: usize) -> RunId {
    let run = worked(store, bytes).await;
    assert!(store.snapshot(run).await.unwrap().made);
    run
}

/// A run with a state of so many bytes, of which a snapshot is due.
async fn worked(store: &Sqlite, bytes: usize) -> RunId {
    let run = attached(store).await;
    let text = format!(r#"{{"append":{{"log":[{{"json":"{}"}}]}}}}"#, "x".repeat(bytes));
    for number in 1..=11 {
        let ops = Some(if number == 1 { text.clone().into() } else { br#"{"append":{}}"#.to_vec() });
        store.commit(&Commit { ops, full: false, ..turn(run, number) }).await.unwrap();
    }
    run
}

#[tokio::test]
async fn a_snapshot_that_is_dropped_while_it_is_read_back_is_no_damage_and_one_that_loses_its_chunks_is() {
    let store = Sqlite::memory().await.unwrap();
    let made_while = async |sql| {
        let run = worked(&store, 1).await;
        let shelf = Slow::new(store.rows(), run);
        let (made, ()) = tokio::join!(snapshot_writer::make(&shelf, run), async {
            shelf.begun().await;
            execute(&store, sql).await;
            shelf.goes_on.close();
        });
        made
    };
    let dropped = made_while("DELETE FROM snapshots; DELETE FROM chunks").await;
    assert!(matches!(dropped, Ok(Snapshotted { made: false, .. })), "{dropped:?}");
    let lost = made_while("DELETE FROM chunks").await;
    assert!(matches!(lost, Err(Error::Corrupt { .. })), "{lost:?}");
}

async fn count(shelf: &impl SnapshotReader, run: RunId) -> bool {
    let commit = Commit { ops: Some(br#"{"append":{}}"#.to_vec()), full: false, ..turn(run, 12) };
    encoded_ops::encode_with_state_size(shelf, &commit, &PayloadCipher::default()).await.unwrap().is_some()
}

#[tokio::test]
async fn of_one_run_one_state_is_counted_at_a_time_and_another_run_waits_for_none_of_the_rest() {
    let store = Sqlite::memory().await.unwrap();
    let (busy, other) = (run(&store, 1).await, run(&store, 1).await);
    let shelf = Slow::new(store.rows(), busy);
    let busy = join_all((0..16).map(|_| count(&shelf, busy)));
    let (busy, counted) = tokio::join!(busy, async {
        shelf.begun().await;
        let counted = timeout(LONG, count(&shelf, other)).await;
        shelf.goes_on.close();
        counted
    });
    assert!(busy.iter().all(|counted| *counted));
    assert_eq!(counted, Ok(true));
}

#[tokio::test]
async fn a_small_state_is_counted_while_a_large_one_is() {
    let store = Sqlite::memory().await.unwrap();
    let (large, small) = (run(&store, Limits::STATE_BYTES / 6).await, run(&store, 1).await);
    let shelf = Slow::new(store.rows(), large);
    let (large, counted) = tokio::join!(count(&shelf, large), async {
        shelf.begun().await;
        let counted = timeout(LONG, count(&shelf, small)).await;
        shelf.goes_on.close();
        counted
    });
    assert!(large);
    assert_eq!(counted, Ok(true));
}

#[tokio::test]
async fn a_state_that_is_not_small_is_made_neither_of_boundaries_nor_of_a_snapshot() {
    let store = Sqlite::memory().await.unwrap();
    let run = attached(&store).await;
    let shelf = Slow::new(store.rows(), run);
    shelf.goes_on.close();
    let found = async |most| branch::small_state(&shelf, run, most).await.unwrap().is_some();
    for number in 1..=11 {
        let ops = Some(br#"{"append":{"log":[{"json":1}]}}"#.to_vec());
        store.commit(&Commit { ops, full: false, ..turn(run, number) }).await.unwrap();
    }
    let bytes = 64 + 3 + 11 * 65;
    assert_eq!((found(bytes - 1).await, found(bytes).await), (false, true));
    assert!(store.snapshot(run).await.unwrap().made);
    assert_eq!((found(bytes - 1).await, found(bytes).await), (false, true));
    let before = shelf.begun.load(Ordering::SeqCst);
    assert!(!found(10).await);
    assert_eq!((before, shelf.begun.load(Ordering::SeqCst)), (2, 2), "its chunks were asked for");
}
