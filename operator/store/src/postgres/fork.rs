//! What a fork reads of its parent, and how it stores what is sealed under its own data key.

use sqlx::Row as _;

use super::Postgres;
use super::data_keys::with_known_key;
use super::read::attempt_query;
use super::record_columns::RecordColumns;
use super::row::{any_sealed, boundary_number};
use super::transaction::Transaction;
use crate::db_error::{DbError, DbResult};
use crate::fork::{ForkStore, HeldRecord, PAGE, RecordsAt, held_record};
use crate::keys::WriteCipher;
use crate::reads::{AttemptRow, Column as _, Hash, RunRow};
use crate::statements::{EFFECTS_SINCE, FORK_POINT, RECORDS_AT};
use crate::transitions::{CopiedRecords, ForkPoint, NewBase, Transition};
use dalsegno_model::{Result, RunId};

const APPLY_RECORDS: &str = concat!(
    with_known_key!("$13"),
    "SELECT ds_apply_records_v2(known.run, $2, $3, $4, ds_now_v1(), $5, $6, $7, $8, $9, $10, $11, $12) FROM known"
);

const KNOWN_KEY: &str = concat!(with_known_key!("$2"), "SELECT run FROM known");

impl ForkStore for Postgres {
    async fn run_row(&self, run: RunId) -> Result<Option<RunRow>> {
        let rows = self.run_rows(run).await.map_err(|fault| fault.with_context("reading a run"))?;
        Ok(rows.map(|rows| rows.run))
    }

    async fn fork_point(&self, run: RunId, turn: i32) -> Result<Option<ForkPoint>> {
        let read = self.read_fork_point(run, turn).await;
        read.map_err(|fault| fault.with_context("reading a turn to fork"))
    }

    async fn effects_since(&self, run: RunId, turn: i32) -> Result<Vec<String>> {
        let read = async {
            let rows = self.pool.all(sqlx::query(EFFECTS_SINCE).bind(run).bind(turn)).await?;
            rows.iter().map(|row| Ok(row.try_get("id")?)).collect::<DbResult<_>>()
        };
        read.await.map_err(|fault: DbError| fault.with_context("listing calls with effects"))
    }

    async fn records_at(&self, page: RecordsAt) -> Result<Vec<HeldRecord>> {
        let read = self.read_records_at(page).await;
        read.map_err(|fault| fault.with_context("reading records to copy"))
    }

    async fn fork_cipher(&self, run: RunId) -> Result<WriteCipher> {
        // A fork has few steps: its data key is read anew, so that it is the stored one.
        self.keys.forget(run);
        self.keys.cipher_to_write(&self.snapshot_store(), run).await
    }

    async fn decide<T: Transition>(&self, run: RunId, rule: T) -> Result<T::Answer> {
        self.transition(run, rule).await
    }
}

impl Postgres {
    async fn read_fork_point(&self, run: RunId, turn: i32) -> DbResult<Option<ForkPoint>> {
        let query = sqlx::query(FORK_POINT).bind(run).bind(turn);
        let Some(row) = self.pool.optional(query).await? else { return Ok(None) };
        let number = i32::read(&row, "attempt")?;
        let attempt = self.pool.optional(attempt_query().bind(run).bind(number)).await?;
        Ok(Some(ForkPoint {
            run,
            turn,
            epoch: i64::read(&row, "epoch")?,
            content_hash: Hash::read(&row, "content_hash")?.0,
            attempt: attempt.as_ref().map(AttemptRow::read).transpose()?,
        }))
    }

    async fn read_records_at(&self, page: RecordsAt) -> DbResult<Vec<HeldRecord>> {
        let RecordsAt { run, turn, after } = page;
        let (limit, bytes) = PAGE;
        let query =
            sqlx::query(RECORDS_AT).bind(run).bind(turn).bind(after.space).bind(after.key).bind(after.seq);
        let rows = self.pool.all(query.bind(limit).bind(bytes)).await?;
        let cipher = self.cipher_to_read(run, any_sealed(&rows, "value")).await?;
        rows.iter().map(|row| held_record(row, &cipher)).collect()
    }
}

/// Stores records in a transaction that holds the lock of the run's row.
pub(super) async fn apply_records(
    transaction: &mut Transaction<'_>,
    run: RunId,
    records: CopiedRecords,
) -> DbResult<()> {
    let CopiedRecords { boundary, changes, data_key } = records;
    let columns = RecordColumns::from((*changes).clone());
    let query = sqlx::query(APPLY_RECORDS)
        .bind(run)
        .bind(boundary.turn)
        .bind(boundary_number(boundary.boundary))
        .bind(boundary.epoch)
        .bind(columns.digest.unwrap_or_default().to_vec());
    let rows = transaction.all(columns.bind(query).bind(data_key.as_deref())).await?;
    rows.first().map(drop).ok_or(DbError::OtherDataKey)
}

/// Fails if the first boundary of a fork is sealed under another data key than the stored one.
pub(super) async fn check_key(transaction: &mut Transaction<'_>, run: RunId, base: &NewBase) -> DbResult<()> {
    let rows = transaction.all(sqlx::query(KNOWN_KEY).bind(run).bind(base.data_key.as_deref())).await?;
    rows.first().map(drop).ok_or(DbError::OtherDataKey)
}
