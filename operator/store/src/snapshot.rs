//! Snapshots: states that are stored in advance of a lookup, in chunks that the snapshots of one run share.
//!
//! A snapshot is the text of a state ([`fold::text`]), cut into chunks at places that its content determines
//! ([`dalsegno_format::manifest`]): the snapshots of a growing state cost only what the state grew by.
//!
//! # Format, version 1
//!
//! ```text
//! digest = SHA-256(f("dalsegno/snapshot/v1") f(run id) f(content hash of the boundary) f(document))
//! ```
//!
//! with `f` as in [`dalsegno_format::header`].

use std::borrow::Cow;
use std::collections::HashMap;

use dalsegno_format::fields::FramedHasher;
use dalsegno_protocol::State;

use crate::snapshot_io::SnapshotReader;
use dalsegno_format::chain::EncodedSnapshot;
use dalsegno_format::fold;
use dalsegno_format::manifest::Manifest;
use dalsegno_format::seal::{self, AadContext, PayloadCipher};
use dalsegno_model::{Digest, Error, Result, RunId};

const TAG: &[u8] = b"dalsegno/snapshot/v1";

/// A complete snapshot that was verified.
pub(crate) struct OpenedSnapshot {
    pub state: State,
    pub chunks: Vec<Digest>,
}

/// A stored snapshot, and the boundary whose state it is.
#[derive(Clone, Copy)]
pub(crate) struct SnapshotOf<'a> {
    pub run: RunId,
    pub content_hash: &'a Digest,
    pub stored: &'a EncodedSnapshot,
}

/// The state of a snapshot. [`Error::Corrupt`] if the snapshot is incomplete, or is not that boundary's.
pub(crate) async fn open(
    reader: &impl SnapshotReader,
    snapshot: SnapshotOf<'_>,
    cipher: &PayloadCipher,
) -> Result<OpenedSnapshot> {
    let (text, manifest) = read(reader, snapshot, cipher).await?;
    Ok(OpenedSnapshot { state: fold::state(&text)?, chunks: manifest.chunks })
}

/// The chunks of a snapshot, by the hashes under which they are stored. None if its document is damaged or shredded.
pub(crate) async fn chunks(
    reader: &impl SnapshotReader,
    run: RunId,
    content_hash: &Digest,
) -> Result<Vec<Digest>> {
    let Some(stored) = reader.snapshot(run, content_hash).await? else { return Ok(Vec::new()) };
    let cipher = cipher_of(reader, run, &stored).await?;
    match manifest(content_hash, &stored, &cipher) {
        Ok(manifest) => Ok(manifest.chunks),
        Err(Error::Corrupt { .. }) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// The cipher that opens the document and the chunks of a snapshot.
pub(crate) async fn cipher_of(
    reader: &impl SnapshotReader,
    run: RunId,
    stored: &EncodedSnapshot,
) -> Result<PayloadCipher> {
    if seal::is_sealed(&stored.document) { reader.cipher(run).await } else { Ok(PayloadCipher::unsealed()) }
}

/// Bytes of a snapshot's text, as its document states them; 0 if the document is damaged.
pub(crate) fn length(content_hash: &Digest, stored: &EncodedSnapshot, cipher: &PayloadCipher) -> usize {
    let length = manifest(content_hash, stored, cipher).map_or(0, |manifest| manifest.length);
    usize::try_from(length).unwrap_or(usize::MAX)
}

fn manifest(content_hash: &Digest, stored: &EncodedSnapshot, cipher: &PayloadCipher) -> Result<Manifest> {
    Manifest::parse(&cipher.open(AadContext::Snapshot(content_hash), &stored.document)?)
}

/// The text of a snapshot, and its list of chunks.
pub(crate) async fn read(
    reader: &impl SnapshotReader,
    snapshot: SnapshotOf<'_>,
    cipher: &PayloadCipher,
) -> Result<(Vec<u8>, Manifest)> {
    let SnapshotOf { run, content_hash, stored } = snapshot;
    if stored.digest != digest_of(run, content_hash, &stored.document) {
        return Err(corrupt("its document does not have its digest"));
    }
    let manifest = manifest(content_hash, stored, cipher)?;
    // The document and all its chunks are sealed, or none of them is.
    let cipher = if seal::is_sealed(&stored.document) { cipher.clone() } else { PayloadCipher::unsealed() };
    let mut wanted = manifest.chunks.clone();
    wanted.sort_unstable();
    wanted.dedup();
    let found: HashMap<_, _> = reader.chunks(run, &wanted).await?.into_iter().collect();
    let mut payloads = HashMap::with_capacity(found.len());
    for (hash, chunk) in &found {
        payloads.insert(*hash, cipher.open(AadContext::Chunk(hash), chunk)?);
    }
    let text =
        manifest.assemble(&|digest| cipher.digest(digest), |hash| payloads.get(hash).map(Cow::as_ref))?;
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
    Error::Corrupt { operation: "reading a snapshot", detail: detail.into() }
}
