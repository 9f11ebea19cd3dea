//! Everything about one run but its payloads.

use std::sync::LazyLock;

use sqlx::query::Query;
use sqlx::sqlite::SqliteArguments;
use sqlx::{AssertSqlSafe, Sqlite, SqliteConnection};

use super::open_calls;
use super::row::RunRow;
use crate::db_error::DbResult;
use crate::reads::{AttemptRow, FoundRuns, RunRows, StoreRow, record_sql};
use crate::statements::NAMESPACE_USAGE;
use crate::transitions::OWN_OR_PRIOR_RUN;
use crate::{Attempt, Digest, Held, LookUp, NewRun, RunId, RunRecord, SNAPSHOT_DUE, Sizes};

pub(super) async fn store_row(conn: &mut SqliteConnection) -> DbResult<StoreRow> {
    StoreRow::read(&sqlx::query("SELECT * FROM store").fetch_one(conn).await?)
}

/// Where a run is found: a condition on its row `r`, with one parameter, or two.
macro_rules! record_of {
    ($which:literal) => {{
        static SQL: LazyLock<String> = LazyLock::new(|| record_sql($which, "NULL"));
        sqlx::query(AssertSqlSafe(SQL.as_str()))
    }};
}

/// The rows of the run with this id.
pub(super) async fn rows_of(conn: &mut SqliteConnection, now: i64, run: RunId) -> DbResult<Option<RunRows>> {
    Ok(found(conn, now, record_of!("r.id = ?1").bind(run)).await?.runs.pop())
}

async fn found(
    conn: &mut SqliteConnection,
    now: i64,
    query: Query<'_, Sqlite, SqliteArguments>,
) -> DbResult<FoundRuns> {
    FoundRuns::read(&query.fetch_all(conn).await?, Some(now))
}

/// What a run that is to be created meets.
pub(super) async fn look(conn: &mut SqliteConnection, now: i64, new: &NewRun) -> DbResult<FoundRuns> {
    static SQL: LazyLock<String> = LazyLock::new(|| record_sql(OWN_OR_PRIOR_RUN, "NULL"));
    let query = sqlx::query(AssertSqlSafe(SQL.as_str()));
    found(conn, now, query.bind(&new.object_uid).bind(&new.namespace).bind(&new.name)).await
}

/// The run of an object.
pub(super) async fn look_up(conn: &mut SqliteConnection, now: i64, object_uid: String) -> DbResult<LookUp> {
    found(conn, now, record_of!("r.object_uid = ?1").bind(object_uid)).await?.look_up()
}

/// The run with this id.
pub(super) async fn get_run(
    conn: &mut SqliteConnection,
    now: i64,
    run: RunId,
) -> DbResult<Option<RunRecord>> {
    rows_of(conn, now, run).await?.map(|rows| rows.record()).transpose()
}

/// Which namespaces hold most.
pub(super) async fn capacity(conn: &mut SqliteConnection, namespaces: u32) -> DbResult<Vec<Held>> {
    let rows = sqlx::query_as(NAMESPACE_USAGE).bind(namespaces).fetch_all(conn).await?;
    Ok(rows.into_iter().map(|(namespace, bytes)| Held { namespace, bytes }).collect())
}

/// One of its attempts.
pub(super) async fn attempt(
    conn: &mut SqliteConnection,
    run: RunId,
    number: i32,
) -> DbResult<Option<Attempt>> {
    AttemptRow::load(conn, run, number).await?.map(|row| row.record()).transpose()
}

/// Every run that ever bore the name, the newest first.
pub(super) async fn find(
    conn: &mut SqliteConnection,
    now: i64,
    namespace: String,
    name: String,
) -> DbResult<Vec<RunRecord>> {
    let query = record_of!("r.namespace = ?1 AND r.name = ?2").bind(namespace).bind(name);
    found(conn, now, query).await?.runs.iter().map(RunRows::record).collect()
}

/// Whether this capability is the current epoch's.
pub(super) async fn is_current(
    conn: &mut SqliteConnection,
    run: RunId,
    capability: Digest,
) -> DbResult<bool> {
    Ok(sqlx::query_scalar("SELECT count(*) FROM runs WHERE id = ? AND capability = ?")
        .bind(run)
        .bind(super::columns::Hash(capability))
        .fetch_one(conn)
        .await?)
}

/// How much a lookup of the head reads.
pub(super) async fn sizes(conn: &mut SqliteConnection, run: RunId) -> DbResult<Sizes> {
    let Some(row) = RunRow::load(conn, run).await? else { return Ok(Sizes::default()) };
    let tail = sqlx::query_scalar(
        "SELECT coalesce(sum(bytes), 0) FROM ( \
             SELECT coalesce(length(ops), 0) + coalesce(length(events), 0) AS bytes FROM boundaries \
             WHERE run = ?1 AND turn <= ?2 AND NOT undone \
             ORDER BY turn DESC, boundary DESC LIMIT ?3 \
         )",
    );
    Ok(Sizes {
        state: row.known_state_bytes(),
        tail: tail.bind(run).bind(row.head_turn).bind(SNAPSHOT_DUE * 2).fetch_one(&mut *conn).await?,
        calls: open_calls::bytes(conn, &row).await?,
    })
}
