//! What each engine implements to read boundaries and snapshots, and to write snapshots.

#[cfg(feature = "postgres")]
use std::sync::Arc;

use dalsegno_protocol::Boundary;

use crate::keys::WriteCipher;
use dalsegno_format::chain::{EncodedBoundary, EncodedSnapshot};
use dalsegno_format::seal::PayloadCipher;
use dalsegno_model::{BoundaryId, Digest, Result, RunId};

/// A boundary, and the hash that it must have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HashedBoundary {
    pub id: BoundaryId,
    pub content_hash: Digest,
}

/// Which part of a live branch to read.
#[derive(Clone, Debug)]
pub(crate) struct Walk {
    /// The boundary to start at; `None`: the head.
    pub start: Option<HashedBoundary>,
    /// Boundaries from this turn on are part of the result.
    pub from: i32,
    /// Payloads are read up to this turn; of later boundaries only what is needed to verify the links.
    pub to: i32,
    /// Whether the state after turn `to` is part of the result.
    pub with_state: bool,
    /// Snapshots that must not be used, by the hash of their boundary.
    pub excluded_snapshots: Vec<Digest>,
    /// Use a snapshot only if there is no other way: if the payloads up to its boundary were dropped.
    pub avoid_snapshots: bool,
    /// The walk stops without a result if a state is larger than this many bytes, as [`dalsegno_format::size`] counts them.
    pub max_state_bytes: Option<usize>,
}

/// The boundaries of a walk, the oldest first. It begins at the latest boundary from which the result can be built, or
/// at an earlier one.
pub(crate) struct Branch {
    pub run: RunId,
    pub head_turn: i32,
    pub head_hash: Digest,
    /// Whether the run has, or had, a data key.
    pub has_data_key: bool,
    pub encoded: Vec<EncodedBoundary>,
}

/// A boundary in a page, or why its row cannot be read.
pub(crate) struct PageEntry {
    pub boundary: BoundaryId,
    pub undone: bool,
    pub encoded: std::result::Result<EncodedBoundary, String>,
}

/// A snapshot to store.
#[derive(Clone, Debug)]
pub(crate) struct NewSnapshot {
    pub run: RunId,
    pub content_hash: Digest,
    pub turn: i32,
    pub boundary: Boundary,
    pub epoch: i64,
    pub document: Vec<u8>,
    pub digest: Digest,
    /// New chunks, ordered by their hashes: two writers insert them in the same order, and so cannot deadlock.
    pub chunks: Vec<(Digest, Vec<u8>)>,
    /// The snapshot's other chunks, each once. They existed when the state was read.
    pub shared: Vec<Digest>,
    /// The wrapped data key under which it is sealed.
    #[cfg(feature = "postgres")]
    pub data_key: Option<Arc<[u8]>>,
}

/// The row of a boundary that was found by its id.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredHash {
    pub boundary: HashedBoundary,
    /// Whether no rewind has undone it.
    pub is_live: bool,
}

/// Reads boundaries and snapshots.
pub(crate) trait SnapshotReader: Sync {
    /// The live branch from its head back to the first boundary that the walk needs; `None`: nothing is committed.
    fn walk(&self, run: RunId, walk: &Walk) -> impl Future<Output = Result<Option<Branch>>> + Send;

    /// The next boundaries after `after`, in the order of turn, boundary and epoch, on all branches. An empty page is
    /// the end.
    fn page(
        &self,
        run: RunId,
        after: Option<BoundaryId>,
    ) -> impl Future<Output = Result<Vec<PageEntry>>> + Send;

    /// The hash of a boundary of any branch; `None`: the run has no such boundary.
    fn boundary_hash(
        &self,
        run: RunId,
        id: BoundaryId,
    ) -> impl Future<Output = Result<Option<StoredHash>>> + Send;

    /// The chunks with these hashes, in any order. Missing chunks are left out.
    fn chunks(
        &self,
        run: RunId,
        hashes: &[Digest],
    ) -> impl Future<Output = Result<Vec<(Digest, Vec<u8>)>>> + Send;

    /// The snapshot of a boundary.
    fn snapshot(
        &self,
        run: RunId,
        content_hash: &Digest,
    ) -> impl Future<Output = Result<Option<EncodedSnapshot>>> + Send;

    /// The cipher that opens the run's sealed payloads.
    fn cipher(&self, run: RunId) -> impl Future<Output = Result<PayloadCipher>> + Send;

    /// The boundaries that have a snapshot, with their hashes, in the order of turn, boundary and epoch.
    fn snapshots(&self, run: RunId) -> impl Future<Output = Result<Vec<(BoundaryId, Digest)>>> + Send;
}

/// Writes snapshots.
pub(crate) trait SnapshotWriter: SnapshotReader {
    /// The cipher for new payloads of the run. [`dalsegno_model::Error::Unusable`]: the run's payloads are sealed, and this process
    /// has no keys.
    fn cipher_to_write(&self, run: RunId) -> impl Future<Output = Result<WriteCipher>> + Send;

    /// The number of boundaries after which a snapshot of the run is due, if the run has one.
    fn snapshot_every(&self, run: RunId) -> impl Future<Output = Result<Option<i32>>> + Send;

    /// Stores a snapshot and its chunks. Existing ones stay, except that damaged ones are replaced. Nothing is stored
    /// if the boundary's payloads were dropped, if one of its shared chunks is missing, if the snapshot is plain and the
    /// run has a data key, or if it is sealed under another data key than the stored one.
    fn store_snapshot(&self, new: NewSnapshot) -> impl Future<Output = Result<()>> + Send;
}
