//! What a fork reads of its parent.

use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;

use super::database::{QueryExecutor as _, Sqlite};
use super::row::RunRow;
use crate::db_error::DbResult;
use crate::fork::{ForkStore, HeldRecord, PAGE, RecordsAt, held_record};
use crate::keys::WriteCipher;
use crate::reads::{AttemptRow, Column as _, Columns as _, Hash};
use crate::statements::{EFFECTS_SINCE, FORK_POINT, RECORDS_AT};
use crate::transitions::{ForkPoint, Transition};
use dalsegno_format::seal::is_sealed;
use dalsegno_model::{Result, RunId};

impl ForkStore for Sqlite {
    async fn run_row(&self, run: RunId) -> Result<Option<RunRow>> {
        self.read("reading a run", move |conn, _| Box::pin(RunRow::load(conn, run))).await
    }

    async fn fork_point(&self, run: RunId, turn: i32) -> Result<Option<ForkPoint>> {
        let operation = "reading a turn to fork";
        self.read(operation, move |conn, _| Box::pin(fork_point(conn, run, turn))).await
    }

    async fn effects_since(&self, run: RunId, turn: i32) -> Result<Vec<String>> {
        self.read("listing calls with effects", move |conn, _| {
            Box::pin(async move {
                Ok(sqlx::query_scalar(EFFECTS_SINCE).bind(run).bind(turn).fetch_all(conn).await?)
            })
        })
        .await
    }

    async fn records_at(&self, page: RecordsAt) -> Result<Vec<HeldRecord>> {
        let (operation, run) = ("reading records to copy", page.run);
        let rows = self.read(operation, move |conn, _| Box::pin(records_at(conn, page))).await?;
        let is_any_sealed = |row: &SqliteRow| Ok(row.bytes("value")?.is_some_and(|value| is_sealed(&value)));
        let is_sealed = rows.iter().map(is_any_sealed).collect::<DbResult<Vec<_>>>();
        let is_sealed = is_sealed.map_err(|fault| fault.with_context(operation))?.contains(&true);
        let cipher = self.cipher_to_read(run, is_sealed).await?;
        let records = rows.iter().map(|row| held_record(row, &cipher)).collect::<DbResult<_>>();
        records.map_err(|fault| fault.with_context(operation))
    }

    async fn fork_cipher(&self, run: RunId) -> Result<WriteCipher> {
        self.room().check().map_err(|fault| fault.with_context("forking a run"))?;
        self.keys.cipher_to_write(&self.snapshot_store(), run).await
    }

    async fn decide<T: Transition>(&self, run: RunId, rule: T) -> Result<T::Answer> {
        self.transition(run, rule).await
    }
}

async fn fork_point(conn: &mut SqliteConnection, run: RunId, turn: i32) -> DbResult<Option<ForkPoint>> {
    let query = sqlx::query(FORK_POINT).bind(run).bind(turn);
    let Some(row) = query.fetch_optional(&mut *conn).await? else { return Ok(None) };
    Ok(Some(ForkPoint {
        run,
        turn,
        epoch: i64::read(&row, "epoch")?,
        content_hash: Hash::read(&row, "content_hash")?.0,
        attempt: AttemptRow::load(conn, run, i32::read(&row, "attempt")?).await?,
    }))
}

async fn records_at(conn: &mut SqliteConnection, page: RecordsAt) -> DbResult<Vec<SqliteRow>> {
    let RecordsAt { run, turn, after } = page;
    let (rows, bytes) = PAGE;
    let query =
        sqlx::query(RECORDS_AT).bind(run).bind(turn).bind(after.space).bind(after.key).bind(after.seq);
    Ok(query.bind(rows).bind(bytes).fetch_all(conn).await?)
}
