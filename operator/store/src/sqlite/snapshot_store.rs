//! Snapshots, boundaries and data keys of the database, as the code that both engines share uses them.

use super::database::{QueryExecutor, Sqlite};
use super::{boundary_facts, boundary_pages, branch, data_keys, snapshot};
use crate::keys::{KeyReader, KeyState, KeyWriter, Keys, Rewrapping, Wrapped, WriteCipher};
use crate::snapshot_io::{Branch, NewSnapshot, PageEntry, SnapshotReader, SnapshotWriter, StoredHash, Walk};
use crate::texts::{HoldsRecord, cipher_if_any, has_sealed_texts, open_attempt, open_record};
use dalsegno_format::chain::EncodedSnapshot;
use dalsegno_format::seal::{self, PayloadCipher, is_sealed_text};
use dalsegno_model::{Attempt, BoundaryId, Digest, Result, RunId};

/// Chunks that one write stores. Between two of these writes the commits of other runs get their turn.
const CHUNK_BATCH: usize = 32;

/// Reads through an executor, and writes too if the executor is the store.
pub(super) struct SnapshotStore<'a, E> {
    pub executor: &'a E,
    pub keys: &'a Keys,
}

impl<E: QueryExecutor> SnapshotReader for SnapshotStore<'_, E> {
    async fn walk(&self, run: RunId, walk: &Walk) -> Result<Option<Branch>> {
        let walk = walk.clone();
        let read = self
            .executor
            .read("reading a live branch", move |conn, _| Box::pin(branch::walk(conn, run, walk)));
        read.await
    }

    async fn page(&self, run: RunId, after: Option<BoundaryId>) -> Result<Vec<PageEntry>> {
        let read = self
            .executor
            .read("reading boundaries", move |conn, _| Box::pin(boundary_pages::page(conn, run, after)));
        read.await
    }

    async fn boundary_hash(&self, run: RunId, id: BoundaryId) -> Result<Option<StoredHash>> {
        let read = self
            .executor
            .read("reading a boundary", move |conn, _| Box::pin(boundary_facts::hash(conn, run, id)));
        read.await
    }

    async fn chunks(&self, run: RunId, hashes: &[Digest]) -> Result<Vec<(Digest, Vec<u8>)>> {
        let hashes = hashes.to_vec();
        self.executor
            .read("reading chunks", move |conn, _| Box::pin(snapshot::chunks(conn, run, hashes)))
            .await
    }

    async fn snapshot(&self, run: RunId, content_hash: &Digest) -> Result<Option<EncodedSnapshot>> {
        let content_hash = *content_hash;
        self.executor
            .read("reading a snapshot", move |conn, _| Box::pin(snapshot::get(conn, run, content_hash)))
            .await
    }

    async fn cipher(&self, run: RunId) -> Result<PayloadCipher> {
        self.keys.cipher_to_read(self, run, true).await
    }

    async fn snapshots(&self, run: RunId) -> Result<Vec<(BoundaryId, Digest)>> {
        self.executor.read("listing snapshots", move |conn, _| Box::pin(snapshot::list(conn, run))).await
    }
}

impl SnapshotWriter for SnapshotStore<'_, Sqlite> {
    async fn cipher_to_write(&self, run: RunId) -> Result<WriteCipher> {
        self.keys.cipher_to_snapshot(self, run).await
    }

    async fn snapshot_every(&self, run: RunId) -> Result<Option<i32>> {
        self.executor.read("reading a setting", move |conn, _| Box::pin(snapshot::every(conn, run))).await
    }

    /// The writes are unsynced: if a power failure undoes them, another snapshot is made. If the boundary is dropped
    /// between two of the writes, the rest is stored all the same, and compaction deletes it as obsolete. If the run
    /// expires then, the rest is not stored.
    async fn store_snapshot(&self, mut new: NewSnapshot) -> Result<()> {
        let run = new.run;
        let boundary_id = BoundaryId { turn: new.turn, boundary: new.boundary, epoch: new.epoch };
        let sealed = seal::is_sealed(&new.document);
        let is_accepted = self.executor.read("checking a new snapshot", move |conn, _| {
            Box::pin(snapshot::is_accepted(conn, run, Some(boundary_id), sealed))
        });
        if !is_accepted.await? {
            return Ok(());
        }
        // Between two writes, chunks that another snapshot shares may be deleted with that snapshot.
        new.shared.extend(new.chunks.iter().map(|(hash, _)| *hash));
        let mut chunks = std::mem::take(&mut new.chunks).into_iter();
        while !chunks.as_slice().is_empty() {
            let batch =
                snapshot::NewChunks { run, chunks: chunks.by_ref().take(CHUNK_BATCH).collect(), sealed };
            self.executor
                .write_unsynced("storing chunks", move |conn, now| {
                    Box::pin(snapshot::put_chunks(conn, now, batch))
                })
                .await?;
        }
        self.executor
            .write_unsynced("storing a snapshot", |conn, now| Box::pin(snapshot::put(conn, now, new)))
            .await
    }
}

impl<E: QueryExecutor> KeyReader for SnapshotStore<'_, E> {
    async fn data_key(&self, run: RunId) -> Result<Option<KeyState>> {
        self.executor.read("reading a data key", move |conn, _| Box::pin(data_keys::get(conn, run))).await
    }
}

impl KeyWriter for SnapshotStore<'_, Sqlite> {
    /// Reads before it writes, because each write waits for a sync.
    async fn store_data_key(&self, run: RunId, wrapped: Wrapped) -> Result<Option<KeyState>> {
        if let stored @ Some(_) = self.data_key(run).await? {
            return Ok(stored);
        }
        let put = self.executor.write("storing a data key", move |conn, now| {
            Box::pin(data_keys::put_first(conn, now, run, wrapped))
        });
        put.await
    }

    async fn data_keys(&self, after: RunId) -> Result<Vec<(RunId, Wrapped)>> {
        self.executor.read("listing data keys", move |conn, _| Box::pin(data_keys::list(conn, after))).await
    }

    async fn rewrap(&self, run: RunId, rewrapping: Rewrapping) -> Result<()> {
        let replace = self.executor.write("replacing a wrapped data key", move |conn, _| {
            Box::pin(data_keys::replace(conn, run, rewrapping))
        });
        replace.await
    }
}

impl Sqlite {
    pub(super) fn snapshot_store(&self) -> SnapshotStore<'_, Self> {
        SnapshotStore { executor: self, keys: &self.keys }
    }

    /// Returns the cipher that reads a run's payloads. `looks_sealed`: whether any of them looks encrypted.
    pub(super) async fn cipher_to_read(&self, run: RunId, looks_sealed: bool) -> Result<PayloadCipher> {
        self.keys.cipher_to_read(&self.snapshot_store(), run, looks_sealed).await
    }

    /// Returns the cipher that writes a run's payloads.
    pub(super) async fn cipher_to_write(&self, run: RunId) -> Result<PayloadCipher> {
        Ok(self.keys.cipher_to_write(&self.snapshot_store(), run).await?.into_cipher())
    }

    /// Opens the texts of the record in an answer.
    pub(super) async fn open_texts(&self, answer: &mut impl HoldsRecord) -> Result<()> {
        let Some(record) = answer.record().filter(|record| has_sealed_texts(record)) else { return Ok(()) };
        let cipher = self.cipher_to_read(record.id, true).await;
        open_record(record, cipher_if_any(cipher)?.as_ref());
        Ok(())
    }

    /// Opens the texts of an attempt.
    pub(super) async fn open_end(&self, run: RunId, attempt: &mut Attempt) -> Result<()> {
        if attempt.end.as_ref().is_some_and(|end| is_sealed_text(&end.message)) {
            let cipher = self.cipher_to_read(run, true).await;
            open_attempt(attempt, cipher_if_any(cipher)?.as_ref());
        }
        Ok(())
    }

    /// Fails if this process cannot compare a body with a stored digest: the run has a data key, and there are no keys.
    pub(super) async fn check_can_compare(&self, run: RunId) -> Result<()> {
        self.keys.ensure_comparable(&self.snapshot_store(), run).await
    }
}
