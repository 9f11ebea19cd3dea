//! Snapshots and their chunks.

use sqlx::Row as _;

use super::answers::Answers;
use super::pool::Pool;
use super::row::{digest, number, place};
use super::{branch, links};
use crate::chain::EncodedSnapshot;
use crate::db_error::DbResult;
use crate::keys::Keys;
use crate::seal::{self, PayloadCipher};
use crate::snapshot_io::{Branch, NewSnapshot, PageEntry, SnapshotReader, SnapshotWriter, Walk};
use crate::{Digest, Place, Result, RunId};

const CHUNKS: &str = "SELECT hash, payload FROM chunks WHERE run = $1 AND hash = ANY ($2)";

const SNAPSHOT: &str = "SELECT document, digest FROM snapshots WHERE run = $1 AND content_hash = $2";

const MARKS: &str = "SELECT turn, boundary, epoch, content_hash FROM snapshots WHERE run = $1 \
     ORDER BY turn, boundary, epoch";

/// The chunks and their snapshot, together or not at all. What is there already is whole, or is made so; but one that is
/// sealed gives way to no plain one, of a process that has no keys yet.
const KEEP: &str = "WITH run AS MATERIALIZED ( \
         SELECT ds_takes_snapshot_v1($1, $3, $4, $5, $10, $11) AS takes \
     ), kept AS ( \
         INSERT INTO chunks (run, hash, payload, created_at) \
         SELECT $1, chunk.hash, chunk.payload, ds_now_v1() FROM unnest($8, $9) AS chunk (hash, payload) \
         WHERE (SELECT takes FROM run) \
         ON CONFLICT (run, hash) DO UPDATE SET payload = excluded.payload \
         WHERE chunks.payload <> excluded.payload \
     ) \
     INSERT INTO snapshots (run, content_hash, turn, boundary, epoch, document, digest, created_at) \
     SELECT $1, $2, $3, $4, $5, $6, $7, ds_now_v1() FROM run WHERE takes \
     ON CONFLICT (run, content_hash) DO UPDATE SET document = excluded.document, digest = excluded.digest \
     WHERE (snapshots.document, snapshots.digest) <> (excluded.document, excluded.digest) \
         AND (encode(substr(excluded.document, 1, 1), 'hex') ~ '^[13579bdf]' \
              OR encode(substr(snapshots.document, 1, 1), 'hex') !~ '^[13579bdf]')";

/// Where the boundaries and the snapshots stand.
pub(super) struct Rows<'a, A> {
    pub asked: &'a A,
    pub keys: &'a Keys,
}

impl<A: Answers> SnapshotReader for Rows<'_, A> {
    async fn walk(&self, run: RunId, walk: &Walk) -> Result<Option<Branch>> {
        branch::walk(self.asked, run, walk).await.map_err(|fault| fault.with_context("reading a live branch"))
    }

    async fn page(&self, run: RunId, after: Option<Place>) -> Result<Vec<PageEntry>> {
        links::page(self.asked, run, after).await.map_err(|fault| fault.with_context("surveying boundaries"))
    }

    async fn chunks(&self, run: RunId, hashes: &[Digest]) -> Result<Vec<(Digest, Vec<u8>)>> {
        chunks(self.asked, run, hashes).await.map_err(|fault| fault.with_context("reading chunks"))
    }

    async fn snapshot(&self, run: RunId, content_hash: &Digest) -> Result<Option<EncodedSnapshot>> {
        snapshot(self.asked, run, content_hash)
            .await
            .map_err(|fault| fault.with_context("reading a snapshot"))
    }

    async fn cipher(&self, run: RunId) -> Result<PayloadCipher> {
        self.keys.cipher_to_read(self, run, true).await
    }

    async fn snapshots(&self, run: RunId) -> Result<Vec<(Place, Digest)>> {
        marks(self.asked, run).await.map_err(|fault| fault.with_context("listing snapshots"))
    }
}

impl SnapshotWriter for Rows<'_, Pool> {
    async fn cipher_to_write(&self, run: RunId) -> Result<PayloadCipher> {
        self.keys.cipher_to_snapshot(self, run).await
    }

    async fn store_snapshot(&self, new: NewSnapshot) -> Result<()> {
        keep(self.asked, new).await.map_err(|fault| fault.with_context("keeping a snapshot"))
    }
}

async fn chunks(rows: &impl Answers, run: RunId, hashes: &[Digest]) -> DbResult<Vec<(Digest, Vec<u8>)>> {
    let hashes: Vec<_> = hashes.iter().map(Digest::as_slice).collect();
    let found = rows.all(sqlx::query(CHUNKS).bind(run).bind(hashes)).await?;
    found.iter().map(|row| Ok((digest(row, "hash")?, row.try_get("payload")?))).collect()
}

async fn snapshot(
    rows: &impl Answers,
    run: RunId,
    content_hash: &Digest,
) -> DbResult<Option<EncodedSnapshot>> {
    let found = rows.all(sqlx::query(SNAPSHOT).bind(run).bind(content_hash.as_slice())).await?;
    let Some(row) = found.first() else { return Ok(None) };
    Ok(Some(EncodedSnapshot { document: row.try_get("document")?, digest: row.try_get("digest")? }))
}

async fn marks(rows: &impl Answers, run: RunId) -> DbResult<Vec<(Place, Digest)>> {
    let found = rows.all(sqlx::query(MARKS).bind(run)).await?;
    found.iter().map(|row| Ok((place(row)?, digest(row, "content_hash")?))).collect()
}

async fn keep(pool: &Pool, new: NewSnapshot) -> DbResult<()> {
    let NewSnapshot { run, content_hash, turn, boundary, epoch, document, digest, chunks, shared } = new;
    let (hashes, payloads): (Vec<_>, Vec<_>) =
        chunks.into_iter().map(|(hash, payload)| (Vec::from(hash), payload)).unzip();
    let sealed = seal::is_sealed(&document);
    let query = sqlx::query(KEEP)
        .bind(run)
        .bind(Vec::from(content_hash))
        .bind(turn)
        .bind(number(boundary))
        .bind(epoch)
        .bind(document)
        .bind(Vec::from(digest))
        .bind(hashes)
        .bind(payloads)
        .bind(sealed)
        .bind(shared.into_iter().map(Vec::from).collect::<Vec<_>>());
    pool.all(query).await?;
    Ok(())
}
