//! Making snapshots, and holding those that are there to the states that the boundaries make.

use std::collections::{BTreeMap, BTreeSet};

use crate::branch::{self, Standpoint};
use crate::header::sha256;
use crate::manifest::Manifest;
use crate::reading::StoredSnapshot;
use crate::seal::{AadContext, PayloadCipher};
use crate::shelf::{Keeper, New, Shelf};
use crate::snapshot::{corrupt, digest_of, read, sealing_of};
use crate::{Digest, Error, Place, Result, RunId, SNAPSHOT_DUE, Snapshotted, codec, fold};

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

/// Cuts a state into chunks, and leaves out those that are known to be there. With the digest of its text.
fn prepare(run: RunId, at: Standpoint, sealing: &PayloadCipher) -> Result<(New, Digest)> {
    let text = fold::text(&at.state)?;
    let (manifest, pieces) = Manifest::cut(&text, &|digest| sealing.digest(digest));
    let (mut chunks, mut shared) = (BTreeMap::new(), BTreeSet::new());
    for (hash, bytes) in manifest.chunks.iter().zip(pieces) {
        if at.chunks.contains(hash) {
            shared.insert(*hash);
        } else if !chunks.contains_key(hash) {
            chunks.insert(*hash, sealing.seal(AadContext::Chunk(hash), codec::encode(bytes))?);
        }
    }
    let document = sealing.seal(AadContext::Snapshot(&at.row.content_hash), manifest.document())?;
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
