//! Snapshots and their chunks.

use sqlx::{Row as _, SqliteConnection};

use super::columns::{Hash, Which};
use super::{Reads, Sqlite, branch, links};
use crate::chain::EncodedSnapshot;
use crate::db_error::DbResult;
use crate::keys::Keys;
use crate::seal::{self, PayloadCipher};
use crate::snapshot_io::NewSnapshot;
use crate::snapshot_io::PageEntry;
use crate::snapshot_io::{Branch, SnapshotReader, SnapshotWriter, Walk};
use crate::{Digest, Place, Result, RunId};

/// Chunks that are written in one piece of work: no commit waits behind a large snapshot.
const LOT: usize = 32;

/// Where the boundaries and the snapshots stand.
pub(super) struct Rows<'a, R> {
    pub asked: &'a R,
    pub keys: &'a Keys,
}

impl<R: Reads> SnapshotReader for Rows<'_, R> {
    async fn walk(&self, run: RunId, walk: &Walk) -> Result<Option<Branch>> {
        let walk = walk.clone();
        self.asked.read("reading a live branch", move |conn, _| Box::pin(branch::walk(conn, run, walk))).await
    }

    async fn page(&self, run: RunId, after: Option<Place>) -> Result<Vec<PageEntry>> {
        self.asked.read("surveying boundaries", move |conn, _| Box::pin(links::page(conn, run, after))).await
    }

    async fn chunks(&self, run: RunId, hashes: &[Digest]) -> Result<Vec<(Digest, Vec<u8>)>> {
        let hashes = hashes.to_vec();
        self.asked.read("reading chunks", move |conn, _| Box::pin(chunks(conn, run, hashes))).await
    }

    async fn snapshot(&self, run: RunId, content_hash: &Digest) -> Result<Option<EncodedSnapshot>> {
        let content_hash = *content_hash;
        self.asked
            .read("reading a snapshot", move |conn, _| Box::pin(snapshot(conn, run, content_hash)))
            .await
    }

    async fn cipher(&self, run: RunId) -> Result<PayloadCipher> {
        self.keys.cipher_to_read(self, run, true).await
    }

    async fn snapshots(&self, run: RunId) -> Result<Vec<(Place, Digest)>> {
        self.asked.read("listing snapshots", move |conn, _| Box::pin(marks(conn, run))).await
    }
}

impl SnapshotWriter for Rows<'_, Sqlite> {
    async fn cipher_to_write(&self, run: RunId) -> Result<PayloadCipher> {
        self.keys.cipher_to_snapshot(self, run).await
    }

    /// A power cut may take it back: then another is made. Of one whose boundary is dropped between two of its pieces the rest
    /// comes too, and is spent; one whose run expires then is dropped with the run, and the rest is not taken.
    async fn store_snapshot(&self, mut new: NewSnapshot) -> Result<()> {
        let run = new.run;
        let place = Place { turn: new.turn, boundary: new.boundary, epoch: new.epoch };
        let sealed = seal::is_sealed(&new.document);
        let judging = self
            .asked
            .read("judging a snapshot", move |conn, _| Box::pin(is_taken(conn, run, Some(place), sealed)));
        if !judging.await? {
            return Ok(());
        }
        // Between two of its pieces they may go with another snapshot that has them.
        new.shared.extend(new.chunks.iter().map(|(hash, _)| *hash));
        let mut chunks = std::mem::take(&mut new.chunks).into_iter();
        while !chunks.as_slice().is_empty() {
            let lot: Vec<_> = chunks.by_ref().take(LOT).collect();
            self.asked
                .write_passing("keeping chunks", move |conn, now| {
                    Box::pin(keep_chunks(conn, now, run, lot, sealed))
                })
                .await?;
        }
        self.asked.write_passing("keeping a snapshot", |conn, now| Box::pin(keep(conn, now, new))).await
    }
}

async fn chunks(
    conn: &mut SqliteConnection,
    run: RunId,
    hashes: Vec<Digest>,
) -> DbResult<Vec<(Digest, Vec<u8>)>> {
    let mut found = Vec::with_capacity(hashes.len());
    for hash in hashes {
        let payload = sqlx::query_scalar("SELECT payload FROM chunks WHERE run = ? AND hash = ?")
            .bind(run)
            .bind(Hash(hash))
            .fetch_optional(&mut *conn)
            .await?;
        found.extend(payload.map(|payload| (hash, payload)));
    }
    Ok(found)
}

async fn snapshot(
    conn: &mut SqliteConnection,
    run: RunId,
    content_hash: Digest,
) -> DbResult<Option<EncodedSnapshot>> {
    let row = sqlx::query("SELECT document, digest FROM snapshots WHERE run = ? AND content_hash = ?")
        .bind(run)
        .bind(Hash(content_hash))
        .fetch_optional(conn)
        .await?;
    row.map(|row| Ok(EncodedSnapshot { document: row.try_get("document")?, digest: row.try_get("digest")? }))
        .transpose()
}

async fn marks(conn: &mut SqliteConnection, run: RunId) -> DbResult<Vec<(Place, Digest)>> {
    let rows = sqlx::query(
        "SELECT turn, boundary, epoch, content_hash FROM snapshots WHERE run = ? ORDER BY turn, boundary, epoch",
    )
    .bind(run)
    .fetch_all(conn)
    .await?;
    rows.iter()
        .map(|row| {
            let place = Place {
                turn: row.try_get("turn")?,
                boundary: row.try_get::<Which, _>("boundary")?.0,
                epoch: row.try_get("epoch")?,
            };
            Ok((place, row.try_get::<Hash, _>("content_hash")?.0))
        })
        .collect()
}

/// Whether anything of a snapshot is taken: not of a run whose payloads are being dropped, nothing plain beside its data key,
/// and not one of a boundary before the last that was dropped, where that is asked.
async fn is_taken(
    conn: &mut SqliteConnection,
    run: RunId,
    place: Option<Place>,
    sealed: bool,
) -> DbResult<bool> {
    let taken = sqlx::query_scalar(
        "SELECT EXISTS (SELECT 1 FROM runs WHERE id = ?1 AND expired_at IS NULL \
         AND ((?2, ?3) < (dropped_turn, dropped_boundary) OR ?4 < dropped_epoch) IS NOT TRUE \
         AND (?5 OR NOT EXISTS (SELECT 1 FROM data_keys WHERE run = ?1)))",
    )
    .bind(run)
    .bind(place.map(|place| place.turn))
    .bind(place.map(|place| Which(place.boundary)))
    .bind(place.map(|place| place.epoch))
    .bind(sealed);
    Ok(taken.fetch_one(conn).await?)
}

/// What is there already is whole, or is made so.
async fn keep_chunks(
    conn: &mut SqliteConnection,
    now: i64,
    run: RunId,
    chunks: Vec<(Digest, Vec<u8>)>,
    sealed: bool,
) -> DbResult<()> {
    if !is_taken(conn, run, None, sealed).await? {
        return Ok(());
    }
    for (hash, payload) in chunks {
        sqlx::query(
            "INSERT INTO chunks (run, hash, payload, created_at) VALUES (?, ?, ?, ?) \
             ON CONFLICT (run, hash) DO UPDATE SET payload = excluded.payload \
             WHERE chunks.payload <> excluded.payload",
        )
        .bind(run)
        .bind(Hash(hash))
        .bind(payload)
        .bind(now)
        .execute(&mut *conn)
        .await?;
    }
    Ok(())
}

/// One that is sealed gives way to no plain one, of a process that has no keys yet.
async fn keep(conn: &mut SqliteConnection, now: i64, new: NewSnapshot) -> DbResult<()> {
    if !is_taken(conn, new.run, None, seal::is_sealed(&new.document)).await? {
        return Ok(());
    }
    for chunk in new.shared {
        let is_there = sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM chunks WHERE run = ? AND hash = ?)");
        if !is_there.bind(new.run).bind(Hash(chunk)).fetch_one(&mut *conn).await? {
            return Ok(());
        }
    }
    sqlx::query(
        "INSERT INTO snapshots (run, content_hash, turn, boundary, epoch, document, digest, created_at) \
         VALUES (?, ?, ?, ?, ?, ?, ?, ?) \
         ON CONFLICT (run, content_hash) DO UPDATE SET document = excluded.document, digest = excluded.digest \
         WHERE (snapshots.document, snapshots.digest) <> (excluded.document, excluded.digest) \
             AND (hex(substr(excluded.document, 1, 1)) GLOB '[13579BDF]*' \
                  OR hex(substr(snapshots.document, 1, 1)) NOT GLOB '[13579BDF]*')",
    )
    .bind(new.run)
    .bind(Hash(new.content_hash))
    .bind(new.turn)
    .bind(Which(new.boundary))
    .bind(new.epoch)
    .bind(new.document)
    .bind(Hash(new.digest))
    .bind(now)
    .execute(conn)
    .await?;
    Ok(())
}
