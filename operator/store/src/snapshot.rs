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
use std::collections::HashMap;

use dalsegno_format::fields::FramedHasher;
use dalsegno_protocol::State;

use crate::chain::EncodedSnapshot;
use crate::manifest::Manifest;
use crate::seal::{self, AadContext, PayloadCipher};
use crate::shelf::Shelf;
use crate::{Digest, Error, Result, RunId, fold};

const TAG: &[u8] = b"dalsegno/snapshot/v1";

/// A snapshot that was found whole.
pub(crate) struct Opened {
    pub state: State,
    pub chunks: Vec<Digest>,
}

/// The state that a snapshot holds. [`Error::Corrupt`] unless it is whole and that boundary's.
pub(crate) async fn open(
    shelf: &impl Shelf,
    run: RunId,
    content_hash: &Digest,
    kept: &EncodedSnapshot,
    sealing: &PayloadCipher,
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

/// How the chunks and the document of a snapshot are opened.
pub(crate) async fn sealing_of(
    shelf: &impl Shelf,
    run: RunId,
    kept: &EncodedSnapshot,
) -> Result<PayloadCipher> {
    if seal::is_sealed(&kept.document) { shelf.sealing(run).await } else { Ok(PayloadCipher::unsealed()) }
}

/// Bytes of the text that a snapshot says it holds; 0 where its document is damaged.
pub(crate) fn length(content_hash: &Digest, kept: &EncodedSnapshot, sealing: &PayloadCipher) -> usize {
    let length = manifest(content_hash, kept, sealing).map_or(0, |manifest| manifest.length);
    usize::try_from(length).unwrap_or(usize::MAX)
}

fn manifest(content_hash: &Digest, kept: &EncodedSnapshot, sealing: &PayloadCipher) -> Result<Manifest> {
    Manifest::parse(&sealing.open(AadContext::Snapshot(content_hash), &kept.document)?)
}

/// The text that a snapshot holds, and how it is cut.
pub(crate) async fn read(
    shelf: &impl Shelf,
    run: RunId,
    content_hash: &Digest,
    kept: &EncodedSnapshot,
    sealing: &PayloadCipher,
) -> Result<(Vec<u8>, Manifest)> {
    if kept.digest != digest_of(run, content_hash, &kept.document) {
        return Err(corrupt("its document does not have its digest"));
    }
    let manifest = manifest(content_hash, kept, sealing)?;
    // With its document its chunks are sealed, or none of them is.
    let sealing = if seal::is_sealed(&kept.document) { sealing.clone() } else { PayloadCipher::unsealed() };
    let mut wanted = manifest.chunks.clone();
    wanted.sort_unstable();
    wanted.dedup();
    let found: HashMap<_, _> = shelf.chunks(run, &wanted).await?.into_iter().collect();
    let mut payloads = HashMap::with_capacity(found.len());
    for (hash, kept) in &found {
        payloads.insert(*hash, sealing.open(AadContext::Chunk(hash), kept)?);
    }
    let text =
        manifest.assemble(&|digest| sealing.digest(digest), |hash| payloads.get(hash).map(Cow::as_ref))?;
    Ok((text, manifest))
}

/// The digest of a snapshot, as its row has it.
pub(crate) fn digest_of(run: RunId, content_hash: &Digest, document: &[u8]) -> Digest {
    let mut hash = FramedHasher::new(TAG);
    hash.field(run.as_bytes());
    hash.field(content_hash);
    hash.field(document);
    hash.finish()
}

pub(crate) fn corrupt(detail: impl Into<String>) -> Error {
    Error::Corrupt { doing: "reading a snapshot", detail: detail.into() }
}
