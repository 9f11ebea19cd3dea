//! Makes snapshots, and compares stored snapshots with the states that the boundaries make.

use std::collections::{BTreeMap, BTreeSet};

use crate::branch::{self, StateAt};
use crate::keys::WriteCipher;
use crate::snapshot::{SnapshotOf, cipher_of, corrupt, digest_of, read};
use crate::snapshot_io::{HashedBoundary, NewSnapshot, SnapshotReader, SnapshotWriter};
use dalsegno_format::header::sha256;
use dalsegno_format::manifest::Manifest;
use dalsegno_format::seal::AadContext;
use dalsegno_format::{codec, fold};
use dalsegno_model::read_transaction::StoredSnapshot;
use dalsegno_model::{Digest, Error, Result, RunId, SNAPSHOT_DUE, Snapshotted};

/// A snapshot that was read back after it was written.
#[derive(Clone, Debug)]
pub(crate) struct ReadBack {
    /// Its digest, as its row has it.
    pub digest: Vec<u8>,
    /// The digest of its text: the same however often the text is sealed.
    pub text: Digest,
    /// Its chunks, each once.
    pub chunks: Vec<Digest>,
}

/// Makes a snapshot of the state at the run's head, if one is due, and reads it back.
pub(crate) async fn make(writer: &impl SnapshotWriter, run: RunId) -> Result<Snapshotted> {
    let due = writer.snapshot_every(run).await?.unwrap_or(SNAPSHOT_DUE);
    let Some(at) = branch::state(writer, run, None).await? else {
        return Ok(Snapshotted { made: false, turn: 0, lag: 0, due });
    };
    let (turn, lag) = (at.row.turn, at.lag);
    if lag < due {
        return Ok(Snapshotted { made: false, turn, lag, due });
    }
    match write(writer, run, at).await {
        Ok(_) => Ok(Snapshotted { made: true, turn, lag: 0, due }),
        Err(Error::Gone { .. }) => Ok(Snapshotted { made: false, turn, lag, due }),
        Err(error) => Err(error),
    }
}

/// Makes a snapshot of the state after a boundary and reads it back, so that the payloads up to the boundary can be
/// dropped.
pub(crate) async fn snapshot_boundary(
    writer: &impl SnapshotWriter,
    run: RunId,
    boundary: HashedBoundary,
) -> Result<ReadBack> {
    let at = branch::state_without_snapshots(writer, run, boundary).await?;
    write(writer, run, at).await
}

/// Writes a snapshot, reads the stored one back, and compares it with the state. The stored one may be another
/// process's snapshot of the same state. So texts are compared: the bytes of two sealed snapshots always differ.
async fn write(writer: &impl SnapshotWriter, run: RunId, at: StateAt) -> Result<ReadBack> {
    let content_hash = at.row.content_hash;
    let cipher = writer.cipher_to_write(run).await?;
    let moved = cipher.clone();
    let prepared = tokio::task::spawn_blocking(move || prepare(run, at, &moved)).await;
    let (new, text_digest) = prepared.map_err(|panicked| corrupt(panicked.to_string()))??;
    writer.store_snapshot(new).await?;
    let Some(stored) = writer.snapshot(run, &content_hash).await? else {
        // If the run got a data key meanwhile, this call returns that error.
        writer.cipher_to_write(run).await?;
        return Err(dropped("its payloads, or chunks that it shares, were dropped meanwhile"));
    };
    let (text, manifest) =
        match read(writer, SnapshotOf { run, content_hash: &content_hash, stored: &stored }, &cipher).await {
            // Its chunks are missing because the snapshot was deleted with them, not because they are damaged.
            Err(Error::Corrupt { .. }) if writer.snapshot(run, &content_hash).await?.is_none() => {
                return Err(dropped("it was deleted while it was read back"));
            }
            read => read?,
        };
    if sha256(&text) != text_digest {
        return Err(corrupt("the stored snapshot is of another state"));
    }
    let Manifest { digest: text, mut chunks, .. } = manifest;
    chunks.sort_unstable();
    chunks.dedup();
    Ok(ReadBack { digest: stored.digest, text, chunks })
}

fn dropped(detail: &str) -> Error {
    Error::Gone { operation: "keeping a snapshot", detail: detail.into() }
}

/// All snapshots of a run, each compared with the state that is rebuilt without it. A shredded one passes.
pub(crate) async fn check_all(reader: &impl SnapshotReader, run: RunId) -> Result<Vec<StoredSnapshot>> {
    let mut excluded = Vec::new();
    let mut checked = Vec::new();
    for (boundary_id, content_hash) in reader.snapshots(run).await? {
        // No state is rebuilt from an unchecked or damaged snapshot: neither this one's, nor a later one's.
        excluded.push(content_hash);
        let boundary = HashedBoundary { id: boundary_id, content_hash };
        let (digest, fault) = match check(reader, run, boundary, &excluded).await {
            Ok(digest) => (digest, None),
            Err(Error::Corrupt { detail, .. }) => (None, Some(detail)),
            Err(error) => return Err(error),
        };
        if fault.is_none() {
            excluded.pop();
        }
        checked.push(StoredSnapshot { boundary: boundary_id, digest, fault });
    }
    Ok(checked)
}

/// The digest of a snapshot's text, if the snapshot is complete and equals the state that the boundaries make. If the
/// boundaries were dropped, only the audit can confirm it. `None`: the snapshot was shredded.
async fn check(
    reader: &impl SnapshotReader,
    run: RunId,
    boundary: HashedBoundary,
    excluded: &[Digest],
) -> Result<Option<Digest>> {
    let content_hash = &boundary.content_hash;
    let stored = reader.snapshot(run, content_hash).await?;
    let stored = stored.ok_or_else(|| corrupt("it was deleted while it was checked"))?;
    let cipher = cipher_of(reader, run, &stored).await?;
    if cipher.is_shredded() {
        return Ok(None);
    }
    let (text, manifest) = read(reader, SnapshotOf { run, content_hash, stored: &stored }, &cipher).await?;
    match branch::state_after(reader, run, boundary, excluded.to_vec()).await {
        Ok(state) if fold::text(&state)? != text => {
            Err(corrupt("it is another state than the boundaries make"))
        }
        Ok(_) | Err(Error::Gone { .. }) => Ok(Some(manifest.digest)),
        Err(error) => Err(error),
    }
}

/// Cuts a state into chunks, without those that are already stored. Also returns the digest of the state's text.
fn prepare(run: RunId, at: StateAt, cipher: &WriteCipher) -> Result<(NewSnapshot, Digest)> {
    let text = fold::text(&at.state)?;
    let (manifest, pieces) = Manifest::cut(&text, &|digest| cipher.digest(digest));
    let (mut chunks, mut shared) = (BTreeMap::new(), BTreeSet::new());
    for (hash, bytes) in manifest.chunks.iter().zip(pieces) {
        if at.chunks.contains(hash) {
            shared.insert(*hash);
        } else if !chunks.contains_key(hash) {
            chunks.insert(*hash, cipher.seal(AadContext::Chunk(hash), codec::encode(bytes))?);
        }
    }
    let document = cipher.seal(AadContext::Snapshot(&at.row.content_hash), manifest.document())?;
    let new = NewSnapshot {
        run,
        content_hash: at.row.content_hash,
        turn: at.row.turn,
        boundary: at.row.boundary,
        epoch: at.row.epoch,
        digest: digest_of(run, &at.row.content_hash, &document),
        document,
        chunks: chunks.into_iter().collect(),
        shared: shared.into_iter().collect(),
        #[cfg(feature = "postgres")]
        data_key: cipher.data_key().cloned(),
    };
    Ok((new, sha256(&text)))
}
