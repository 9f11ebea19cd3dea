//! Runs, attempts and templates are looked up.

use std::sync::LazyLock;

use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Row as _};

use super::Postgres;
use crate::db_error::DbResult;
use crate::reads::{AttemptRow, FoundRuns, RunRows, record_sql};
use crate::transitions::OWN_OR_PRIOR_RUN;
use crate::{Attempt, LookUp, NewRun, RunId, RunRecord};

/// The store's clock.
pub(super) const NOW: &str = "ds_now_v1()";

const ATTEMPT: &str = "SELECT * FROM attempts WHERE run = $1 AND number = $2";

const GET_REVISION: &str = "SELECT document FROM revisions WHERE hash = $1";

/// The statement that finds runs by a condition on their row `r`.
macro_rules! find {
    ($which:expr) => {{
        static SQL: LazyLock<String> = LazyLock::new(|| record_sql($which, NOW));
        sqlx::query(AssertSqlSafe(SQL.as_str()))
    }};
}

impl Postgres {
    pub(super) async fn do_look_up(&self, object_uid: &str) -> DbResult<LookUp> {
        self.found(find!("r.object_uid = $1").bind(object_uid)).await?.look_up()
    }

    pub(super) async fn do_get_run(&self, run: RunId) -> DbResult<Option<RunRecord>> {
        self.rows_of(run).await?.map(|rows| rows.record()).transpose()
    }

    /// The rows of the run with this id.
    pub(super) async fn rows_of(&self, run: RunId) -> DbResult<Option<RunRows>> {
        Ok(self.found(find!("r.id = $1").bind(run)).await?.runs.pop())
    }

    pub(super) async fn do_find(&self, namespace: &str, name: &str) -> DbResult<Vec<RunRecord>> {
        let query = find!("r.namespace = $1 AND r.name = $2").bind(namespace).bind(name);
        self.found(query).await?.runs.iter().map(RunRows::record).collect()
    }

    /// What a run that is to be created meets.
    pub(super) async fn look(&self, new: &NewRun) -> DbResult<FoundRuns> {
        self.found(find!(OWN_OR_PRIOR_RUN).bind(&new.object_uid).bind(&new.namespace).bind(&new.name)).await
    }

    async fn found(&self, query: Query<'_, sqlx::Postgres, PgArguments>) -> DbResult<FoundRuns> {
        FoundRuns::read(&self.pool.all(query).await?, None)
    }

    pub(super) async fn do_attempt(&self, run: RunId, number: i32) -> DbResult<Option<Attempt>> {
        let row = self.pool.optional(sqlx::query(ATTEMPT).bind(run).bind(number)).await?;
        row.map(|row| AttemptRow::read(&row)?.record()).transpose()
    }

    pub(super) async fn do_get_revision(&self, hash: &str) -> DbResult<Option<String>> {
        let row = self.pool.optional(sqlx::query(GET_REVISION).bind(hash)).await?;
        Ok(row.map(|row| row.try_get("document")).transpose()?)
    }
}
