//! The data keys of runs, as they are kept: wrapped.

use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, SqliteConnection};

use super::audit::append;
use super::row::RunRow;
use super::snapshot::Rows;
use super::{Reads, Sqlite};
use crate::audit::kind;
use crate::db_error::{DbError, DbResult};
use crate::keys::{DATA_KEY_LOST, KeyReader, KeyState, KeyWriter, PAGE_ROWS, Wrapped};
use crate::seal::{PayloadCipher, SEALED};
use crate::statements::COUNT_UNSEALED;
use crate::{Lifecycle, Result, RunId, Shredded};

impl<R: Reads> KeyReader for Rows<'_, R> {
    async fn data_key(&self, run: RunId) -> Result<Option<KeyState>> {
        self.asked.read("reading a data key", move |conn, _| Box::pin(read(conn, run))).await
    }
}

impl KeyWriter for Rows<'_, Sqlite> {
    /// Looks before it writes: each write costs the disk a sync.
    async fn store_data_key(&self, run: RunId, wrapped: Wrapped) -> Result<Option<KeyState>> {
        if let standing @ Some(_) = self.data_key(run).await? {
            return Ok(standing);
        }
        let keep =
            self.asked.write("keeping a data key", move |conn, now| Box::pin(keep(conn, now, run, wrapped)));
        keep.await
    }

    async fn data_keys(&self, after: RunId) -> Result<Vec<(RunId, Wrapped)>> {
        self.asked.read("listing data keys", move |conn, _| Box::pin(list(conn, after))).await
    }

    async fn rewrap(&self, run: RunId, old: Wrapped, new: Wrapped) -> Result<()> {
        let work = self
            .asked
            .write("wrapping a data key anew", move |conn, _| Box::pin(rewrap(conn, run, old, new)));
        work.await
    }
}

impl Sqlite {
    /// How a run's payloads are read, of which any looks sealed or none does.
    pub(super) async fn cipher_to_read(&self, run: RunId, looks_sealed: bool) -> Result<PayloadCipher> {
        self.keys.cipher_to_read(&self.rows(), run, looks_sealed).await
    }

    /// How a run's payloads are written.
    pub(super) async fn cipher_to_write(&self, run: RunId) -> Result<PayloadCipher> {
        self.keys.cipher_to_write(&self.rows(), run).await
    }

    /// Whether it may be said that a body is another than the one that stands.
    pub(super) async fn ensure_comparable(&self, run: RunId) -> Result<()> {
        self.keys.ensure_comparable(&self.rows(), run).await
    }

    /// Where boundaries, snapshots and data keys stand.
    pub(super) fn rows(&self) -> Rows<'_, Self> {
        Rows { asked: self, keys: &self.keys }
    }
}

async fn read(conn: &mut SqliteConnection, run: RunId) -> DbResult<Option<KeyState>> {
    let row = sqlx::query(
        "SELECT key_id, wrapped, lifecycle = 'live' AS lives FROM data_keys JOIN runs ON runs.id = run WHERE run = ?",
    )
    .bind(run)
    .fetch_optional(conn)
    .await?;
    let Some(row) = row else { return Ok(None) };
    match wrapped(&row)? {
        Some(wrapped) => Ok(Some(KeyState::Wrapped(wrapped))),
        None if row.try_get("lives")? => Err(DbError::Corrupt(DATA_KEY_LOST.into())),
        None => Ok(Some(KeyState::Shredded)),
    }
}

async fn keep(conn: &mut SqliteConnection, now: i64, run: RunId, new: Wrapped) -> DbResult<Option<KeyState>> {
    sqlx::query(
        "INSERT INTO data_keys (run, key_id, wrapped, created_at) SELECT id, ?, ?, ? FROM runs \
         WHERE id = ? AND lifecycle = 'live' ON CONFLICT (run) DO NOTHING",
    )
    .bind(new.key_id)
    .bind(new.bytes)
    .bind(now)
    .bind(run)
    .execute(&mut *conn)
    .await?;
    read(conn, run).await
}

async fn list(conn: &mut SqliteConnection, after: RunId) -> DbResult<Vec<(RunId, Wrapped)>> {
    let rows = sqlx::query(
        "SELECT run, key_id, wrapped FROM data_keys WHERE run > ? AND wrapped IS NOT NULL ORDER BY run LIMIT ?",
    )
    .bind(after)
    .bind(PAGE_ROWS)
    .fetch_all(conn)
    .await?;
    let key = |row: &SqliteRow| {
        DbResult::Ok(wrapped(row)?.map(|wrapped| DbResult::Ok((row.try_get("run")?, wrapped))))
    };
    rows.iter().filter_map(|row| key(row).and_then(Option::transpose).transpose()).collect()
}

async fn rewrap(conn: &mut SqliteConnection, run: RunId, old: Wrapped, new: Wrapped) -> DbResult<()> {
    sqlx::query("UPDATE data_keys SET key_id = ?, wrapped = ? WHERE run = ? AND wrapped = ?")
        .bind(new.key_id)
        .bind(new.bytes)
        .bind(run)
        .bind(old.bytes)
        .execute(conn)
        .await?;
    Ok(())
}

/// How many payloads of a run are plain.
pub(super) async fn unsealed(conn: &mut SqliteConnection, run: RunId) -> DbResult<u64> {
    let count: i64 =
        sqlx::query_scalar(COUNT_UNSEALED).bind(run).bind([SEALED].as_slice()).fetch_one(conn).await?;
    Ok(count.unsigned_abs())
}

/// Whether the run has a data key, or had one.
pub(super) async fn has_one(conn: &mut SqliteConnection, run: RunId) -> DbResult<bool> {
    let has_one = sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM data_keys WHERE run = ?)");
    Ok(has_one.bind(run).fetch_one(conn).await?)
}

/// Deletes the data key of a run that is over.
pub(super) async fn shred(
    conn: &mut SqliteConnection,
    now: i64,
    run: RunId,
    reason: String,
    actor: String,
) -> DbResult<Shredded> {
    let Some(mut row) = RunRow::load(conn, run).await? else {
        return Ok(Shredded::NotFound);
    };
    if row.lifecycle.0 == Lifecycle::Live {
        return Ok(Shredded::Live);
    }
    if !has_one(conn, run).await? {
        return Ok(Shredded::NeverSealed);
    }
    let deleted = sqlx::query(
        "UPDATE data_keys SET key_id = NULL, wrapped = NULL, shredded_at = ?2 WHERE run = ?1 AND shredded_at IS NULL",
    )
    .bind(run)
    .bind(now)
    .execute(&mut *conn)
    .await?;
    if deleted.rows_affected() == 0 {
        return Ok(Shredded::GoneBefore);
    }
    append(conn, &mut row, now, kind::SHREDDED, &actor, serde_json::json!({ "reason": reason })).await?;
    row.save(conn).await?;
    Ok(Shredded::Done)
}

fn wrapped(row: &SqliteRow) -> DbResult<Option<Wrapped>> {
    let (key_id, bytes): (Option<String>, Option<Vec<u8>>) =
        (row.try_get("key_id")?, row.try_get("wrapped")?);
    Ok(key_id.zip(bytes).map(|(key_id, bytes)| Wrapped { key_id, bytes }))
}
