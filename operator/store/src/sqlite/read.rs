//! Statements that read a run, without its payloads.

use std::sync::LazyLock;

use sqlx::query::Query;
use sqlx::sqlite::SqliteArguments;
use sqlx::{AssertSqlSafe, Sqlite, SqliteConnection};

use super::open_calls;
use super::row::RunRow;
use super::sqlx_types::Hash;
use crate::db_error::DbResult;
use crate::reads::{AttemptRow, FoundRuns, OpenWaitsSql, RunRows, StoreRow, record_sql};
use crate::statements::namespace_usage;
use crate::transitions::OWN_OR_PRIOR_RUN;
use dalsegno_model::{Attempt, Digest, LookUp, NamespaceUsage, NewRun, RunId, RunRecord, Sizes};

pub(super) async fn store_row(conn: &mut SqliteConnection) -> DbResult<StoreRow> {
    static SQL: LazyLock<String> =
        LazyLock::new(|| format!("SELECT {} FROM store", StoreRow::COLUMNS.join(", ")));
    StoreRow::read(&sqlx::query(AssertSqlSafe(SQL.as_str())).fetch_one(conn).await?)
}

/// The query of the runs that meet a condition on the row `r`, which has one parameter or two.
macro_rules! runs_where {
    ($condition:literal) => {{
        static SQL: LazyLock<String> = LazyLock::new(|| record_sql($condition, "NULL", OpenWaitsSql::Sqlite));
        sqlx::query(AssertSqlSafe(SQL.as_str()))
    }};
}

/// Returns the rows of a run.
pub(super) async fn run_rows(conn: &mut SqliteConnection, now: i64, run: RunId) -> DbResult<Option<RunRows>> {
    Ok(fetch(conn, now, runs_where!("r.id = ?1").bind(run)).await?.runs.pop())
}

async fn fetch(
    conn: &mut SqliteConnection,
    now: i64,
    query: Query<'_, Sqlite, SqliteArguments>,
) -> DbResult<FoundRuns> {
    FoundRuns::read(&query.fetch_all(conn).await?, Some(now))
}

/// Returns the runs that matter to the creation of a run: that of its object, and those of its name that are not
/// closed.
pub(super) async fn find_existing(
    conn: &mut SqliteConnection,
    now: i64,
    new: &NewRun,
) -> DbResult<FoundRuns> {
    static SQL: LazyLock<String> =
        LazyLock::new(|| record_sql(OWN_OR_PRIOR_RUN, "NULL", OpenWaitsSql::Sqlite));
    let query = sqlx::query(AssertSqlSafe(SQL.as_str()));
    fetch(conn, now, query.bind(&new.object_uid).bind(&new.namespace).bind(&new.name)).await
}

/// Returns the run of an object.
pub(super) async fn find_by_object(
    conn: &mut SqliteConnection,
    now: i64,
    object_uid: String,
) -> DbResult<LookUp> {
    fetch(conn, now, runs_where!("r.object_uid = ?1").bind(object_uid)).await?.look_up()
}

/// Returns a run.
pub(super) async fn get_run(
    conn: &mut SqliteConnection,
    now: i64,
    run: RunId,
) -> DbResult<Option<RunRecord>> {
    run_rows(conn, now, run).await?.map(|rows| rows.record()).transpose()
}

pub(super) const NAMESPACE_USAGE: &str =
    namespace_usage!("runs INDEXED BY runs_with_payloads WHERE NOT emptied");

/// Returns the stored bytes of the largest namespaces, and the sum of all others.
pub(super) async fn namespace_usage(
    conn: &mut SqliteConnection,
    namespaces: u32,
) -> DbResult<Vec<NamespaceUsage>> {
    let rows = sqlx::query_as(NAMESPACE_USAGE).bind(namespaces).fetch_all(conn).await?;
    Ok(rows.into_iter().map(|(namespace, bytes)| NamespaceUsage { namespace, bytes }).collect())
}

/// Returns an attempt of a run.
pub(super) async fn attempt(
    conn: &mut SqliteConnection,
    run: RunId,
    number: i32,
) -> DbResult<Option<Attempt>> {
    AttemptRow::load(conn, run, number).await?.map(|row| row.record()).transpose()
}

/// Returns all runs that ever had this name, the newest first.
pub(super) async fn find(
    conn: &mut SqliteConnection,
    now: i64,
    namespace: String,
    name: String,
) -> DbResult<Vec<RunRecord>> {
    let query = runs_where!("r.namespace = ?1 AND r.name = ?2").bind(namespace).bind(name);
    fetch(conn, now, query).await?.runs.iter().map(RunRows::record).collect()
}

/// Returns whether this capability belongs to the current epoch.
pub(super) async fn is_current(
    conn: &mut SqliteConnection,
    run: RunId,
    capability: Digest,
) -> DbResult<bool> {
    Ok(sqlx::query_scalar("SELECT count(*) FROM runs WHERE id = ? AND capability = ?")
        .bind(run)
        .bind(Hash(capability))
        .fetch_one(conn)
        .await?)
}

/// Returns the bytes that a read of the head returns.
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
        tail: tail
            .bind(run)
            .bind(row.head_turn)
            .bind(row.retention().snapshot_due() * 2)
            .fetch_one(&mut *conn)
            .await?,
        calls: open_calls::bytes(conn, &row).await?,
    })
}
