//! What boundaries and snapshots are read from, and what snapshots are put on: what each database does in its own way.

use dalsegno_protocol::Boundary;

use crate::chain::{EncodedBoundary, EncodedSnapshot};
use crate::seal::PayloadCipher;
use crate::{Digest, Place, Result, RunId};

/// Which part of a live branch is read.
#[derive(Clone, Debug)]
pub(crate) struct Walk {
    /// Where it starts, and the hash that must stand there; `None`: at the head.
    pub start: Option<(Place, Digest)>,
    /// Boundaries from this turn on are wanted themselves.
    pub from: i32,
    /// Payloads are read up to this turn; after it only what the links are held to.
    pub last: i32,
    /// Whether the state after turn `last` is wanted.
    pub state: bool,
    /// Snapshots not to be used, by the hash of their boundary.
    pub refused: Vec<Digest>,
    /// Whether a snapshot is used only where there is nothing else: the payloads up to its boundary were dropped.
    pub sparing: bool,
    /// Bytes, as [`size`] counts them, beyond which no state is made: the walk is given up.
    pub most: Option<usize>,
}

/// What a walk found, the oldest first: it begins no later than what the wanted part needs.
pub(crate) struct Branch {
    pub head_turn: i32,
    pub head_hash: Digest,
    /// Whether the run has a data key, or had one.
    pub has_data_key: bool,
    pub shelved: Vec<EncodedBoundary>,
}

/// A boundary of a page; or why its row cannot be read.
pub(crate) struct Found {
    pub place: Place,
    pub undone: bool,
    pub shelved: std::result::Result<EncodedBoundary, String>,
}

/// A snapshot to keep.
#[derive(Clone, Debug)]
pub(crate) struct New {
    pub run: RunId,
    pub content_hash: Digest,
    pub turn: i32,
    pub boundary: Boundary,
    pub epoch: i64,
    pub document: Vec<u8>,
    pub digest: Digest,
    /// In the order of their hashes, so that two writers take them in one order.
    pub chunks: Vec<(Digest, Vec<u8>)>,
    /// Its other chunks, each once: they were there when its state was read.
    pub shared: Vec<Digest>,
}

/// What boundaries and snapshots are read from.
pub(crate) trait Shelf: Sync {
    /// The live branch from its head down as far as the walk needs; `None`: nothing is committed.
    fn walk(&self, run: RunId, walk: &Walk) -> impl Future<Output = Result<Option<Branch>>> + Send;

    /// The next boundaries after a place, in its order and on whatever branch: some of them, none only after the last.
    fn page(&self, run: RunId, after: Option<Place>) -> impl Future<Output = Result<Vec<Found>>> + Send;

    /// These chunks, as far as they are there, in any order.
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

    /// How payloads of the run that look sealed are opened.
    fn sealing(&self, run: RunId) -> impl Future<Output = Result<PayloadCipher>> + Send;

    /// Where snapshots stand and the hashes of their boundaries, in the order of places.
    fn snapshots(&self, run: RunId) -> impl Future<Output = Result<Vec<(Place, Digest)>>> + Send;
}

/// A shelf that snapshots can be put on.
pub(crate) trait Keeper: Shelf {
    /// How the run's payloads are to be kept from now on. [`crate::Error::Unfit`]: they are sealed, and there are no keys.
    fn sealing_to_write(&self, run: RunId) -> impl Future<Output = Result<PayloadCipher>> + Send;

    /// Keeps a snapshot and its chunks where they are not there; what is there and damaged is replaced. Nothing is taken
    /// whose payloads were dropped, none whose other chunks are gone, and nothing plain where the run has a data key.
    fn keep(&self, new: New) -> impl Future<Output = Result<()>> + Send;
}
