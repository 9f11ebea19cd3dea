//! The data keys of runs, as they are kept: wrapped.

use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::Postgres;
use super::answers::Answers;
use super::pool::Pool;
use super::row::text;
use super::snapshot::Rows;
use crate::db_error::{DbError, DbResult};
use crate::keys::{DATA_KEY_LOST, KeyReader, KeyState, KeyWriter, PAGE_ROWS, Wrapped};
use crate::seal::{PayloadCipher, SEALED};
use crate::statements::COUNT_UNSEALED;
use crate::{Result, RunId, Shredded};

const READ: &str = "SELECT run, key_id, wrapped, lifecycle = 'live' AS lives \
     FROM data_keys JOIN runs ON runs.id = run WHERE run = $1";

/// The one that stands already, or this one, of a run that lives once its row is not another's. Two that come at once: the
/// second sees neither, and looks again.
const KEEP: &str = "WITH kept AS ( \
         INSERT INTO data_keys (run, key_id, wrapped, created_at) \
         SELECT id, $2, $3, ds_now_v1() FROM runs \
         WHERE id = $1 AND lifecycle = 'live' AND NOT EXISTS (SELECT FROM data_keys WHERE run = $1) \
         FOR SHARE OF runs \
         ON CONFLICT (run) DO NOTHING RETURNING run, key_id, wrapped \
     ) \
     SELECT run, key_id, wrapped, true AS lives FROM kept \
     UNION ALL \
     SELECT run, key_id, wrapped, lifecycle = 'live' FROM data_keys JOIN runs ON runs.id = run WHERE run = $1";

const LIST: &str = "SELECT run, key_id, wrapped FROM data_keys WHERE run > $1 AND wrapped IS NOT NULL \
     ORDER BY run LIMIT $2";

const REWRAP: &str = "UPDATE data_keys SET key_id = $2, wrapped = $3 WHERE run = $1 AND wrapped = $4";

impl<A: Answers> KeyReader for Rows<'_, A> {
    async fn data_key(&self, run: RunId) -> Result<Option<KeyState>> {
        read(self.asked, run).await.map_err(|fault| fault.with_context("reading a data key"))
    }
}

impl KeyWriter for Rows<'_, Pool> {
    async fn store_data_key(&self, run: RunId, wrapped: Wrapped) -> Result<Option<KeyState>> {
        keep(self.asked, run, wrapped).await.map_err(|fault| fault.with_context("keeping a data key"))
    }

    async fn data_keys(&self, after: RunId) -> Result<Vec<(RunId, Wrapped)>> {
        list(self.asked, after).await.map_err(|fault| fault.with_context("listing data keys"))
    }

    async fn rewrap(&self, run: RunId, old: Wrapped, new: Wrapped) -> Result<()> {
        let query = sqlx::query(REWRAP).bind(run).bind(new.key_id).bind(new.bytes).bind(old.bytes);
        self.asked.all(query).await.map_err(|fault| fault.with_context("wrapping a data key anew"))?;
        Ok(())
    }
}

impl Postgres {
    /// How a run's payloads are read, of which any looks sealed or none does.
    pub(super) async fn cipher_to_read(&self, run: RunId, looks_sealed: bool) -> DbResult<PayloadCipher> {
        Ok(self.keys.cipher_to_read(&self.rows(), run, looks_sealed).await?)
    }

    /// How a run's payloads are written.
    pub(super) async fn cipher_to_write(&self, run: RunId) -> DbResult<PayloadCipher> {
        Ok(self.keys.cipher_to_write(&self.rows(), run).await?)
    }

    /// Whether it may be said that a body is another than the one that stands.
    pub(super) async fn ensure_comparable(&self, run: RunId) -> DbResult<()> {
        Ok(self.keys.ensure_comparable(&self.rows(), run).await?)
    }

    /// Where boundaries, snapshots and data keys stand.
    pub(super) fn rows(&self) -> Rows<'_, Pool> {
        Rows { asked: &self.pool, keys: &self.keys }
    }

    pub(super) async fn do_shred(&self, run: RunId, reason: &str, actor: &str) -> DbResult<Shredded> {
        let query = sqlx::query("SELECT ds_shred_v1($1, $2, $3) AS verdict").bind(run);
        let row = self.pool.of(run).one(query.bind(text(reason)).bind(text(actor))).await?;
        self.keys.forget(run);
        match row.try_get("verdict")? {
            "shredded" => Ok(Shredded::Done),
            "gone before" => Ok(Shredded::GoneBefore),
            "never sealed" => Ok(Shredded::NeverSealed),
            "live" => Ok(Shredded::Live),
            "not found" => Ok(Shredded::NotFound),
            other => Err(DbError::unknown_value("verdict on shredding", other)),
        }
    }

    pub(super) async fn do_unsealed(&self, run: RunId) -> DbResult<u64> {
        let row = self.pool.one(sqlx::query(COUNT_UNSEALED).bind(run).bind([SEALED].as_slice())).await?;
        Ok(row.try_get::<i64, _>(0)?.unsigned_abs())
    }
}

async fn read(rows: &impl Answers, run: RunId) -> DbResult<Option<KeyState>> {
    let found = rows.all(sqlx::query(READ).bind(run)).await?;
    found.first().map(standing).transpose()
}

async fn keep(pool: &Pool, run: RunId, new: Wrapped) -> DbResult<Option<KeyState>> {
    let query = sqlx::query(KEEP).bind(run).bind(new.key_id).bind(new.bytes);
    match pool.of(run).optional(query).await? {
        Some(row) => standing(&row).map(Some),
        None => read(pool, run).await,
    }
}

async fn list(pool: &Pool, after: RunId) -> DbResult<Vec<(RunId, Wrapped)>> {
    let rows = pool.all(sqlx::query(LIST).bind(after).bind(PAGE_ROWS)).await?;
    let key = |row: &PgRow| Ok(wrapped(row)?.map(|wrapped| Ok((row.try_get("run")?, wrapped))));
    rows.iter().filter_map(|row| key(row).and_then(Option::transpose).transpose()).collect()
}

fn standing(row: &PgRow) -> DbResult<KeyState> {
    match wrapped(row)? {
        Some(wrapped) => Ok(KeyState::Wrapped(wrapped)),
        None if row.try_get("lives")? => Err(DbError::Corrupt(DATA_KEY_LOST.into())),
        None => Ok(KeyState::Shredded),
    }
}

fn wrapped(row: &PgRow) -> DbResult<Option<Wrapped>> {
    let (key_id, bytes): (Option<String>, Option<Vec<u8>>) =
        (row.try_get("key_id")?, row.try_get("wrapped")?);
    Ok(key_id.zip(bytes).map(|(key_id, bytes)| Wrapped { key_id, bytes }))
}
