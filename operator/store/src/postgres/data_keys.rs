//! The data keys of runs, stored wrapped.

use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::Postgres;
use super::pool::Pool;
use super::query::QueryExecutor;
use super::row::without_nul;
use super::snapshot::SnapshotStore;
use crate::db_error::{DbError, DbResult};
use crate::keys::{
    DATA_KEY_LOST, KeyReader, KeyState, KeyWriter, PAGE_ROWS, Rewrapping, Wrapped, WriteCipher,
};
use crate::statements::COUNT_UNSEALED;
use crate::texts::{HoldsRecord, cipher_if_any, has_sealed_texts, open_attempt, open_record};
use dalsegno_format::seal::{PayloadCipher, SEALED, is_sealed_text};
use dalsegno_model::{Attempt, Error, Result, RunId, Shred, Shredded};

const READ: &str = "SELECT run, key_id, wrapped, lifecycle = 'live' AS is_live \
     FROM data_keys JOIN runs ON runs.id = run WHERE run = $1";

/// SQL: a `WITH` whose table `known` has one row, the run `$1`, if the run has ended, or if its data key is this
/// parameter, or if the parameter is null. So a function that is called for each row of `known` does not run with a data
/// key that a failover has lost.
macro_rules! with_known_key {
    ($data_key:literal) => {
        concat!(
            "WITH known AS MATERIALIZED ( \
                 SELECT $1::uuid AS run WHERE ",
            $data_key,
            "::bytea IS NULL \
                    OR EXISTS (SELECT FROM data_keys WHERE run = $1 AND wrapped = ",
            $data_key,
            ") OR EXISTS (SELECT FROM runs WHERE id = $1 AND lifecycle <> 'live') \
             ) "
        )
    };
}
pub(super) use with_known_key;

/// Inserts this key if the run is live and has none, once no other transaction holds the lock of its row, and returns
/// the key that is stored. Of two that insert at once the second gets no row: it must read again.
const INSERT: &str = "WITH inserted AS ( \
         INSERT INTO data_keys (run, key_id, wrapped, created_at) \
         SELECT id, $2, $3, ds_now_v1() FROM runs \
         WHERE id = $1 AND lifecycle = 'live' AND NOT EXISTS (SELECT FROM data_keys WHERE run = $1) \
         FOR SHARE OF runs \
         ON CONFLICT (run) DO NOTHING RETURNING run, key_id, wrapped \
     ) \
     SELECT run, key_id, wrapped, true AS is_live FROM inserted \
     UNION ALL \
     SELECT run, key_id, wrapped, lifecycle = 'live' FROM data_keys JOIN runs ON runs.id = run WHERE run = $1";

const LIST: &str = "SELECT run, key_id, wrapped FROM data_keys WHERE run > $1 AND wrapped IS NOT NULL \
     ORDER BY run LIMIT $2";

const REWRAP: &str = "UPDATE data_keys SET key_id = $2, wrapped = $3 WHERE run = $1 AND wrapped = $4";

impl<E: QueryExecutor> KeyReader for SnapshotStore<'_, E> {
    async fn data_key(&self, run: RunId) -> Result<Option<KeyState>> {
        read(self.executor, run).await.map_err(|fault| fault.with_context("reading a data key"))
    }
}

impl KeyWriter for SnapshotStore<'_, Pool> {
    async fn store_data_key(&self, run: RunId, wrapped: Wrapped) -> Result<Option<KeyState>> {
        insert(self.executor, run, wrapped).await.map_err(|fault| fault.with_context("storing a data key"))
    }

    async fn data_keys(&self, after: RunId) -> Result<Vec<(RunId, Wrapped)>> {
        list(self.executor, after).await.map_err(|fault| fault.with_context("listing data keys"))
    }

    async fn rewrap(&self, run: RunId, Rewrapping { old, new }: Rewrapping) -> Result<()> {
        let query = sqlx::query(REWRAP).bind(run).bind(new.key_id).bind(new.bytes).bind(old.bytes);
        self.executor.all(query).await.map_err(|fault| fault.with_context("rewrapping a data key"))?;
        Ok(())
    }
}

impl Postgres {
    /// The cipher that reads a run's payloads. `looks_sealed`: whether any of these payloads looks sealed.
    pub(super) async fn cipher_to_read(&self, run: RunId, looks_sealed: bool) -> DbResult<PayloadCipher> {
        Ok(self.keys.cipher_to_read(&self.snapshot_store(), run, looks_sealed).await?)
    }

    /// The cipher that writes a run's payloads.
    pub(super) async fn cipher_to_write(&self, run: RunId) -> DbResult<WriteCipher> {
        Ok(self.keys.cipher_to_write(&self.snapshot_store(), run).await?)
    }

    /// The cipher for the texts that a rule stores. Its statement does not compare the data key, so the key is read anew.
    /// `None`: it cannot be had.
    pub(super) async fn cipher_of_texts(&self, run: RunId) -> Result<Option<WriteCipher>> {
        self.keys.forget(run);
        cipher_if_any(self.keys.cipher_to_write(&self.snapshot_store(), run).await)
    }

    /// Opens the texts of the record in an answer: one round trip if any of them is sealed and the data key is not cached.
    pub(super) async fn open_texts(&self, answer: &mut impl HoldsRecord) -> Result<()> {
        let Some(record) = answer.record().filter(|record| has_sealed_texts(record)) else { return Ok(()) };
        let cipher = self.keys.cipher_to_read(&self.snapshot_store(), record.id, true).await;
        open_record(record, cipher_if_any(cipher)?.as_ref());
        Ok(())
    }

    /// As [`Self::open_texts`], for one attempt.
    pub(super) async fn open_end(&self, run: RunId, attempt: &mut Attempt) -> Result<()> {
        if attempt.end.as_ref().is_some_and(|end| is_sealed_text(&end.message)) {
            let cipher = self.keys.cipher_to_read(&self.snapshot_store(), run, true).await;
            open_attempt(attempt, cipher_if_any(cipher)?.as_ref());
        }
        Ok(())
    }

    /// Does work that seals payloads of a run. If another data key is stored than this process has cached, the work has
    /// written nothing and is done once more with the stored key.
    pub(super) async fn with_stored_key<T, F>(&self, run: RunId, work: impl Fn() -> F) -> DbResult<T>
    where
        F: Future<Output = DbResult<T>>,
    {
        match work().await {
            Err(DbError::OtherDataKey) => {
                self.keys.forget(run);
                work().await
            }
            done => done,
        }
    }

    /// Does work that reads payloads of a run. What is damaged or missing under a cached data key is tried once more with the
    /// stored one: a failover may have lost the cached key, and another process has made a new one.
    pub(super) async fn with_fresh_key<T, F>(&self, run: RunId, work: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        match work().await {
            Err(Error::Corrupt { .. } | Error::Gone { .. }) if self.keys.forget(run) => work().await,
            done => done,
        }
    }

    /// Fails where this process has no keys and cannot tell whether a body equals the stored one.
    pub(super) async fn ensure_comparable(&self, run: RunId) -> DbResult<()> {
        Ok(self.keys.ensure_comparable(&self.snapshot_store(), run).await?)
    }

    /// The rows of boundaries, snapshots and data keys.
    pub(super) fn snapshot_store(&self) -> SnapshotStore<'_, Pool> {
        SnapshotStore { executor: &self.pool, keys: &self.keys }
    }

    pub(super) async fn do_shred(&self, shred: &Shred) -> DbResult<Shredded> {
        let Shred { run, actor, reason } = shred;
        let run = *run;
        let query = sqlx::query("SELECT ds_shred_v1($1, $2, $3) AS verdict").bind(run);
        let row =
            self.pool.for_run(run).one(query.bind(without_nul(reason)).bind(without_nul(actor))).await?;
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

    pub(super) async fn do_count_unsealed(&self, run: RunId) -> DbResult<u64> {
        let row = self.pool.one(sqlx::query(COUNT_UNSEALED).bind(run).bind([SEALED].as_slice())).await?;
        Ok(row.try_get::<i64, _>(0)?.unsigned_abs())
    }
}

async fn read(executor: &impl QueryExecutor, run: RunId) -> DbResult<Option<KeyState>> {
    let found = executor.all(sqlx::query(READ).bind(run)).await?;
    found.first().map(key_state).transpose()
}

async fn insert(pool: &Pool, run: RunId, new: Wrapped) -> DbResult<Option<KeyState>> {
    let query = sqlx::query(INSERT).bind(run).bind(new.key_id).bind(new.bytes);
    match pool.for_run(run).optional(query).await? {
        Some(row) => key_state(&row).map(Some),
        None => read(pool, run).await,
    }
}

async fn list(pool: &Pool, after: RunId) -> DbResult<Vec<(RunId, Wrapped)>> {
    let rows = pool.all(sqlx::query(LIST).bind(after).bind(PAGE_ROWS)).await?;
    let key = |row: &PgRow| Ok(wrapped(row)?.map(|wrapped| Ok((row.try_get("run")?, wrapped))));
    rows.iter().filter_map(|row| key(row).and_then(Option::transpose).transpose()).collect()
}

fn key_state(row: &PgRow) -> DbResult<KeyState> {
    match wrapped(row)? {
        Some(wrapped) => Ok(KeyState::Wrapped(wrapped)),
        None if row.try_get("is_live")? => Err(DbError::Corrupt(DATA_KEY_LOST.into())),
        None => Ok(KeyState::Shredded),
    }
}

fn wrapped(row: &PgRow) -> DbResult<Option<Wrapped>> {
    let (key_id, bytes): (Option<String>, Option<Vec<u8>>) =
        (row.try_get("key_id")?, row.try_get("wrapped")?);
    Ok(key_id.zip(bytes).map(|(key_id, bytes)| Wrapped { key_id, bytes }))
}
