//! Snapshots: states written down ahead of a lookup, in chunks that snapshots of one run share.
//!
//! A snapshot is the text of a state ([`fold::text`]), cut where its content says so ([`crate::manifest`]): snapshots of a
//! growing state cost what it grew by.
//!
//! # Format, version 1
//!
//! ```text
//! digest = SHA-256(f("dalsegno/snapshot/v1") f(run id) f(content hash of the boundary) f(document))
//! ```
//!
//! with `f` as in [`crate::header`].

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use dalsegno_protocol::{Boundary, State};

use crate::branch::{self, Keeper, Shelf, Standpoint};
use crate::chain::KeptSnapshot;
use crate::header::{Framed, sha256};
use crate::manifest::Manifest;
use crate::reading::StoredSnapshot;
use crate::seal::{self, Sealing, Spot};
use crate::{Digest, Error, Place, Result, RunId, SNAPSHOT_DUE, Snapshotted, codec, fold};

const TAG: &[u8] = b"dalsegno/snapshot/v1";

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

/// A snapshot that was found whole.
pub(crate) struct Opened {
    pub state: State,
    pub chunks: Vec<Digest>,
}

/// A snapshot that was read back after it was written.
#[derive(Clone, Debug)]
pub(crate) struct ReadBack {
    /// Its digest, as its row has it.
    pub digest: Vec<u8>,
    /// The digest of what it holds, which stays the same however often it is sealed.
    pub text: Digest,
    /// Its chunks, each once.
    pub chunks: Vec<Digest>,
}

/// Makes a snapshot of the state at the run's head, if one is due, and reads it back.
pub(crate) async fn make(shelf: &impl Keeper, run: RunId) -> Result<Snapshotted> {
    let Some(at) = branch::state(shelf, run, None).await? else {
        return Ok(Snapshotted { made: false, turn: 0, lag: 0 });
    };
    let (turn, lag) = (at.row.turn, at.lag);
    if lag < SNAPSHOT_DUE {
        return Ok(Snapshotted { made: false, turn, lag });
    }
    match keep(shelf, run, at).await {
        Ok(_) => Ok(Snapshotted { made: true, turn, lag: 0 }),
        Err(Error::Gone { .. }) => Ok(Snapshotted { made: false, turn, lag }),
        Err(error) => Err(error),
    }
}

/// Keeps a snapshot of the state after a boundary and reads it back, so that what was before can be dropped.
pub(crate) async fn stand_for(
    shelf: &impl Keeper,
    run: RunId,
    place: Place,
    content_hash: Digest,
) -> Result<ReadBack> {
    let at = branch::rebuilt(shelf, run, place, content_hash).await?;
    keep(shelf, run, at).await
}

/// Keeps a snapshot, reads it back, and holds it to the state that it was made of. What is read may be another's who kept
/// one of the same state: no two that are sealed have the same bytes.
async fn keep(shelf: &impl Keeper, run: RunId, at: Standpoint) -> Result<ReadBack> {
    let content_hash = at.row.content_hash;
    let sealing = shelf.sealing_to_write(run).await?;
    let under = sealing.clone();
    let prepared = tokio::task::spawn_blocking(move || prepare(run, at, &under)).await;
    let (new, text_digest) = prepared.map_err(|panicked| corrupt(panicked.to_string()))??;
    shelf.keep(new).await?;
    let Some(kept) = shelf.snapshot(run, &content_hash).await? else {
        // Either a data key was made meanwhile, which this says, or it is too late.
        shelf.sealing_to_write(run).await?;
        return Err(dropped("what it would stand for, or shares, was dropped meanwhile"));
    };
    let (text, manifest) = match read(shelf, run, &content_hash, &kept, &sealing).await {
        // Its chunks go with it.
        Err(Error::Corrupt { .. }) if shelf.snapshot(run, &content_hash).await?.is_none() => {
            return Err(dropped("it was dropped while it was read back"));
        }
        read => read?,
    };
    if sha256(&text) != text_digest {
        return Err(corrupt("what was written is another state"));
    }
    let Manifest { digest: text, mut chunks, .. } = manifest;
    chunks.sort_unstable();
    chunks.dedup();
    Ok(ReadBack { digest: kept.digest, text, chunks })
}

fn dropped(detail: &str) -> Error {
    Error::Gone { doing: "keeping a snapshot", detail: detail.into() }
}

/// All snapshots of a run, each held to the state that is rebuilt without it; one that was shredded passes.
pub(crate) async fn judge(shelf: &impl Shelf, run: RunId) -> Result<Vec<StoredSnapshot>> {
    let mut refused = Vec::new();
    let mut judged = Vec::new();
    for (place, content_hash) in shelf.snapshots(run).await? {
        // Until it is found to be right nothing is rebuilt with it: not itself, and none of those after it.
        refused.push(content_hash);
        let (digest, fault) = match judge_one(shelf, run, place, &content_hash, &refused).await {
            Ok(digest) => (digest, None),
            Err(Error::Corrupt { detail, .. }) => (None, Some(detail)),
            Err(error) => return Err(error),
        };
        if fault.is_none() {
            refused.pop();
        }
        judged.push(StoredSnapshot { place, digest, fault });
    }
    Ok(judged)
}

/// The digest of what a snapshot holds that is whole, and the state that the boundaries make; where these were dropped,
/// nothing is left to hold it to but what the audit says of it. `None`: it was shredded.
async fn judge_one(
    shelf: &impl Shelf,
    run: RunId,
    place: Place,
    content_hash: &Digest,
    refused: &[Digest],
) -> Result<Option<Digest>> {
    let kept = shelf.snapshot(run, content_hash).await?;
    let kept = kept.ok_or_else(|| corrupt("it is gone while it is looked at"))?;
    let sealing = sealing_of(shelf, run, &kept).await?;
    if sealing.is_shredded() {
        return Ok(None);
    }
    let (text, manifest) = read(shelf, run, content_hash, &kept, &sealing).await?;
    match branch::after(shelf, run, place, *content_hash, refused.to_vec()).await {
        Ok(state) if fold::text(&state)? != text => {
            Err(corrupt("it is another state than the boundaries make"))
        }
        Ok(_) | Err(Error::Gone { .. }) => Ok(Some(manifest.digest)),
        Err(error) => Err(error),
    }
}

/// The state that a snapshot holds. [`Error::Corrupt`] unless it is whole and that boundary's.
pub(crate) async fn open(
    shelf: &impl Shelf,
    run: RunId,
    content_hash: &Digest,
    kept: &KeptSnapshot,
    sealing: &Sealing,
) -> Result<Opened> {
    let (text, manifest) = read(shelf, run, content_hash, kept, sealing).await?;
    Ok(Opened { state: fold::state(&text)?, chunks: manifest.chunks })
}

/// The chunks of a snapshot, by the hashes under which they are kept; none where its document is damaged or shredded.
pub(crate) async fn chunks(shelf: &impl Shelf, run: RunId, content_hash: &Digest) -> Result<Vec<Digest>> {
    let Some(kept) = shelf.snapshot(run, content_hash).await? else { return Ok(Vec::new()) };
    let sealing = sealing_of(shelf, run, &kept).await?;
    match manifest(content_hash, &kept, &sealing) {
        Ok(manifest) => Ok(manifest.chunks),
        Err(Error::Corrupt { .. }) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

async fn sealing_of(shelf: &impl Shelf, run: RunId, kept: &KeptSnapshot) -> Result<Sealing> {
    if seal::is_sealed(&kept.document) { shelf.sealing(run).await } else { Ok(Sealing::unsealed()) }
}

/// Bytes of the text that a snapshot says it holds; 0 where its document is damaged.
pub(crate) fn length(content_hash: &Digest, kept: &KeptSnapshot, sealing: &Sealing) -> usize {
    let length = manifest(content_hash, kept, sealing).map_or(0, |manifest| manifest.length);
    usize::try_from(length).unwrap_or(usize::MAX)
}

fn manifest(content_hash: &Digest, kept: &KeptSnapshot, sealing: &Sealing) -> Result<Manifest> {
    Manifest::parse(&sealing.open(Spot::Snapshot(content_hash), &kept.document)?)
}

/// Cuts a state into chunks, and leaves out those that are known to be there. With the digest of its text.
fn prepare(run: RunId, at: Standpoint, sealing: &Sealing) -> Result<(New, Digest)> {
    let text = fold::text(&at.state)?;
    let (manifest, pieces) = Manifest::cut(&text, &|digest| sealing.digest(digest));
    let (mut chunks, mut shared) = (BTreeMap::new(), BTreeSet::new());
    for (hash, bytes) in manifest.chunks.iter().zip(pieces) {
        if at.chunks.contains(hash) {
            shared.insert(*hash);
        } else if !chunks.contains_key(hash) {
            chunks.insert(*hash, sealing.seal(Spot::Chunk(hash), codec::encode(bytes))?);
        }
    }
    let document = sealing.seal(Spot::Snapshot(&at.row.content_hash), manifest.document())?;
    let new = New {
        run,
        content_hash: at.row.content_hash,
        turn: at.row.turn,
        boundary: at.row.boundary,
        epoch: at.row.epoch,
        digest: digest_of(run, &at.row.content_hash, &document),
        document,
        chunks: chunks.into_iter().collect(),
        shared: shared.into_iter().collect(),
    };
    Ok((new, sha256(&text)))
}

/// The text that a snapshot holds, and how it is cut.
async fn read(
    shelf: &impl Shelf,
    run: RunId,
    content_hash: &Digest,
    kept: &KeptSnapshot,
    sealing: &Sealing,
) -> Result<(Vec<u8>, Manifest)> {
    if kept.digest != digest_of(run, content_hash, &kept.document) {
        return Err(corrupt("its document does not have its digest"));
    }
    let manifest = manifest(content_hash, kept, sealing)?;
    // With its document its chunks are sealed, or none of them is.
    let sealing = if seal::is_sealed(&kept.document) { sealing.clone() } else { Sealing::unsealed() };
    let mut wanted = manifest.chunks.clone();
    wanted.sort_unstable();
    wanted.dedup();
    let found: HashMap<_, _> = shelf.chunks(run, &wanted).await?.into_iter().collect();
    let mut payloads = HashMap::with_capacity(found.len());
    for (hash, kept) in &found {
        payloads.insert(*hash, sealing.open(Spot::Chunk(hash), kept)?);
    }
    let text =
        manifest.assemble(&|digest| sealing.digest(digest), |hash| payloads.get(hash).map(Cow::as_ref))?;
    Ok((text, manifest))
}

fn digest_of(run: RunId, content_hash: &Digest, document: &[u8]) -> Digest {
    let mut hash = Framed::new(TAG);
    hash.field(run.as_bytes());
    hash.field(content_hash);
    hash.field(document);
    hash.finish()
}

fn corrupt(detail: impl Into<String>) -> Error {
    Error::Corrupt { doing: "reading a snapshot", detail: detail.into() }
}
