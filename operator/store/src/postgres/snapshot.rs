//! Snapshots and their chunks.

use sqlx::Row as _;

use super::pool::Pool;
use super::query::QueryExecutor;
use super::row::{boundary_number, digest};
use super::{boundary_facts, boundary_pages, branch};
use crate::db_error::DbResult;
use crate::keys::{Keys, WriteCipher};
use crate::reads::boundary_id;
use crate::snapshot_io::{Branch, NewSnapshot, PageEntry, SnapshotReader, SnapshotWriter, StoredHash, Walk};
use dalsegno_format::chain::EncodedSnapshot;
use dalsegno_format::seal::{self, PayloadCipher};
use dalsegno_model::{BoundaryId, Digest, Result, RunId};

const CHUNKS: &str = "SELECT hash, payload FROM chunks WHERE run = $1 AND hash = ANY ($2)";

const SNAPSHOT: &str = "SELECT document, digest FROM snapshots WHERE run = $1 AND content_hash = $2";

const SNAPSHOTS: &str = "SELECT turn, boundary, epoch, content_hash FROM snapshots WHERE run = $1 \
     ORDER BY turn, boundary, epoch";

/// Inserts a snapshot and its chunks, both or neither. An existing row that differs is damaged and is replaced. A
/// sealed snapshot is never replaced by a plain one, which a process without keys could send.
const INSERT: &str = "WITH run AS MATERIALIZED ( \
         SELECT ds_takes_snapshot_v1($1, $3, $4, $5, $10, $11) AND ( \
             $12::bytea IS NULL OR EXISTS (SELECT FROM data_keys WHERE run = $1 AND wrapped = $12) \
         ) AS takes \
     ), inserted_chunks AS ( \
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

/// Access to the rows of boundaries, snapshots and data keys, in the pool or in a read transaction.
pub(super) struct SnapshotStore<'a, E> {
    pub executor: &'a E,
    pub keys: &'a Keys,
}

const SNAPSHOT_EVERY: &str = "SELECT snapshot_every FROM runs WHERE id = $1";

impl<E: QueryExecutor> SnapshotReader for SnapshotStore<'_, E> {
    async fn walk(&self, run: RunId, walk: &Walk) -> Result<Option<Branch>> {
        branch::walk(self.executor, run, walk)
            .await
            .map_err(|fault| fault.with_context("reading a live branch"))
    }

    async fn page(&self, run: RunId, after: Option<BoundaryId>) -> Result<Vec<PageEntry>> {
        boundary_pages::page(self.executor, run, after)
            .await
            .map_err(|fault| fault.with_context("reading boundaries"))
    }

    async fn boundary_hash(&self, run: RunId, id: BoundaryId) -> Result<Option<StoredHash>> {
        boundary_facts::hash(self.executor, run, id)
            .await
            .map_err(|fault| fault.with_context("reading a boundary"))
    }

    async fn chunks(&self, run: RunId, hashes: &[Digest]) -> Result<Vec<(Digest, Vec<u8>)>> {
        chunks(self.executor, run, hashes).await.map_err(|fault| fault.with_context("reading chunks"))
    }

    async fn snapshot(&self, run: RunId, content_hash: &Digest) -> Result<Option<EncodedSnapshot>> {
        snapshot(self.executor, run, content_hash)
            .await
            .map_err(|fault| fault.with_context("reading a snapshot"))
    }

    async fn cipher(&self, run: RunId) -> Result<PayloadCipher> {
        self.keys.cipher_to_read(self, run, true).await
    }

    async fn snapshots(&self, run: RunId) -> Result<Vec<(BoundaryId, Digest)>> {
        snapshots(self.executor, run).await.map_err(|fault| fault.with_context("listing snapshots"))
    }
}

impl SnapshotWriter for SnapshotStore<'_, Pool> {
    async fn cipher_to_write(&self, run: RunId) -> Result<WriteCipher> {
        self.keys.cipher_to_snapshot(self, run).await
    }

    async fn snapshot_every(&self, run: RunId) -> Result<Option<i32>> {
        let found = self.executor.all(sqlx::query(SNAPSHOT_EVERY).bind(run)).await;
        let every = found.and_then(|rows| Ok(rows.first().map(|row| row.try_get(0)).transpose()?.flatten()));
        every.map_err(|fault| fault.with_context("reading a setting"))
    }

    async fn store_snapshot(&self, new: NewSnapshot) -> Result<()> {
        insert(self.executor, new).await.map_err(|fault| fault.with_context("storing a snapshot"))
    }
}

async fn chunks(
    executor: &impl QueryExecutor,
    run: RunId,
    hashes: &[Digest],
) -> DbResult<Vec<(Digest, Vec<u8>)>> {
    let hashes: Vec<_> = hashes.iter().map(Digest::as_slice).collect();
    let found = executor.all(sqlx::query(CHUNKS).bind(run).bind(hashes)).await?;
    found.iter().map(|row| Ok((digest(row, "hash")?, row.try_get("payload")?))).collect()
}

async fn snapshot(
    executor: &impl QueryExecutor,
    run: RunId,
    content_hash: &Digest,
) -> DbResult<Option<EncodedSnapshot>> {
    let found = executor.all(sqlx::query(SNAPSHOT).bind(run).bind(content_hash.as_slice())).await?;
    let Some(row) = found.first() else { return Ok(None) };
    Ok(Some(EncodedSnapshot { document: row.try_get("document")?, digest: row.try_get("digest")? }))
}

async fn snapshots(executor: &impl QueryExecutor, run: RunId) -> DbResult<Vec<(BoundaryId, Digest)>> {
    let found = executor.all(sqlx::query(SNAPSHOTS).bind(run)).await?;
    found.iter().map(|row| Ok((boundary_id(row)?, digest(row, "content_hash")?))).collect()
}

async fn insert(pool: &Pool, new: NewSnapshot) -> DbResult<()> {
    let NewSnapshot { run, content_hash, turn, boundary, epoch, document, digest, chunks, shared, data_key } =
        new;
    let (hashes, payloads): (Vec<_>, Vec<_>) =
        chunks.into_iter().map(|(hash, payload)| (Vec::from(hash), payload)).unzip();
    let sealed = seal::is_sealed(&document);
    let query = sqlx::query(INSERT)
        .bind(run)
        .bind(Vec::from(content_hash))
        .bind(turn)
        .bind(boundary_number(boundary))
        .bind(epoch)
        .bind(document)
        .bind(Vec::from(digest))
        .bind(hashes)
        .bind(payloads)
        .bind(sealed)
        .bind(shared.into_iter().map(Vec::from).collect::<Vec<_>>())
        .bind(data_key.as_deref());
    pool.all(query).await?;
    Ok(())
}
