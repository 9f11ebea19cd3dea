//! Statements of snapshots and their chunks.

use sqlx::{Row as _, SqliteConnection};

use super::sqlx_types::{BoundaryColumn, Hash};
use crate::db_error::DbResult;
use crate::reads::boundary_id;
use crate::snapshot_io::NewSnapshot;
use dalsegno_format::chain::EncodedSnapshot;
use dalsegno_format::seal;
use dalsegno_model::{BoundaryId, Digest, RunId};

/// Returns those of these chunks that are stored, with their hashes.
pub(super) async fn chunks(
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

/// Returns the snapshot of the boundary with this hash.
pub(super) async fn get(
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

/// Lists the boundaries that have a snapshot, with their hashes, in order.
pub(super) async fn list(conn: &mut SqliteConnection, run: RunId) -> DbResult<Vec<(BoundaryId, Digest)>> {
    let rows = sqlx::query(
        "SELECT turn, boundary, epoch, content_hash FROM snapshots WHERE run = ? ORDER BY turn, boundary, epoch",
    )
    .bind(run)
    .fetch_all(conn)
    .await?;
    rows.iter().map(|row| Ok((boundary_id(row)?, row.try_get::<Hash, _>("content_hash")?.0))).collect()
}

/// Returns whether a part of a snapshot may be stored: not if the run's payloads are being deleted, nothing in plain
/// text if the run has a data key, and nothing of a snapshot at `place` if that is before the last boundary that was
/// dropped.
pub(super) async fn is_accepted(
    conn: &mut SqliteConnection,
    run: RunId,
    boundary_id: Option<BoundaryId>,
    sealed: bool,
) -> DbResult<bool> {
    let is_accepted = sqlx::query_scalar(
        "SELECT EXISTS (SELECT 1 FROM runs WHERE id = ?1 AND expired_at IS NULL \
         AND ((?2, ?3) < (dropped_turn, dropped_boundary) OR ?4 < dropped_epoch) IS NOT TRUE \
         AND (?5 OR NOT EXISTS (SELECT 1 FROM data_keys WHERE run = ?1)))",
    )
    .bind(run)
    .bind(boundary_id.map(|boundary_id| boundary_id.turn))
    .bind(boundary_id.map(|boundary_id| BoundaryColumn(boundary_id.boundary)))
    .bind(boundary_id.map(|boundary_id| boundary_id.epoch))
    .bind(sealed);
    Ok(is_accepted.fetch_one(conn).await?)
}

/// Chunks of a snapshot to store.
pub(super) struct NewChunks {
    pub run: RunId,
    pub chunks: Vec<(Digest, Vec<u8>)>,
    /// Whether they are encrypted.
    pub sealed: bool,
}

/// Stores chunks. A chunk that is stored with other bytes is damaged, and is replaced.
pub(super) async fn put_chunks(
    conn: &mut SqliteConnection,
    now: i64,
    NewChunks { run, chunks, sealed }: NewChunks,
) -> DbResult<()> {
    if !is_accepted(conn, run, None, sealed).await? {
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

/// Stores a snapshot if all its chunks are stored. An encrypted snapshot is never replaced with one in plain text,
/// which a process without keys may have made.
pub(super) async fn put(conn: &mut SqliteConnection, now: i64, new: NewSnapshot) -> DbResult<()> {
    if !is_accepted(conn, new.run, None, seal::is_sealed(&new.document)).await? {
        return Ok(());
    }
    for chunk in new.shared {
        let is_stored = sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM chunks WHERE run = ? AND hash = ?)");
        if !is_stored.bind(new.run).bind(Hash(chunk)).fetch_one(&mut *conn).await? {
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
    .bind(BoundaryColumn(new.boundary))
    .bind(new.epoch)
    .bind(new.document)
    .bind(Hash(new.digest))
    .bind(now)
    .execute(conn)
    .await?;
    Ok(())
}

/// Returns the number of boundaries after which a snapshot of a run is due, if the run has one.
pub(super) async fn every(conn: &mut SqliteConnection, run: RunId) -> DbResult<Option<i32>> {
    let query = sqlx::query_scalar("SELECT snapshot_every FROM runs WHERE id = ?").bind(run);
    Ok(query.fetch_optional(conn).await?.flatten())
}
