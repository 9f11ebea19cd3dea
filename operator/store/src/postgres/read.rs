//! Reads of runs, attempts, templates, sizes and usage.

use std::sync::LazyLock;

use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Row as _};

use super::Postgres;
use crate::db_error::DbResult;
use crate::reads::{AttemptRow, FoundRuns, OpenWaitsSql, RunRows, record_sql};
use crate::statements::namespace_usage;
use crate::transitions::OWN_OR_PRIOR_RUN;
use dalsegno_model::{
    Attempt, Digest, LookUp, NamespaceUsage, NewRun, RunId, RunRecord, SNAPSHOT_DUE, Sizes,
};

/// The store's clock.
pub(super) const NOW: &str = "ds_now_v1()";

/// The query of an attempt, by its run and its number.
pub(super) fn attempt_query<'q>() -> Query<'q, sqlx::Postgres, PgArguments> {
    static SQL: LazyLock<String> = LazyLock::new(|| {
        let attempt = AttemptRow::columns_of("attempts");
        format!("SELECT {attempt} FROM attempts WHERE run = $1 AND number = $2")
    });
    sqlx::query(AssertSqlSafe(SQL.as_str()))
}

const GET_REVISION: &str = "SELECT document FROM revisions WHERE hash = $1";

const SIZES: &str = "SELECT CASE WHEN state_hash IS NOT DISTINCT FROM head_hash THEN state_bytes END AS state, ( \
         SELECT coalesce(sum(bytes), 0)::bigint FROM ( \
             SELECT coalesce(octet_length(ops), 0) + coalesce(octet_length(events), 0) AS bytes FROM boundaries \
             WHERE run = runs.id AND turn <= runs.head_turn AND NOT undone \
             ORDER BY turn DESC, boundary DESC \
             LIMIT (SELECT 2 * coalesce(snapshot_every, $2) FROM runs WHERE id = $1) \
         ) AS latest \
     ) AS tail, ds_open_calls_v1(runs) AS calls FROM runs WHERE id = $1";

const IS_CURRENT: &str = "SELECT EXISTS (SELECT FROM runs WHERE id = $1 AND capability = $2) AS is_current";

/// The statement that finds runs by a condition on their row `r`.
macro_rules! find_sql {
    ($condition:expr) => {{
        static SQL: LazyLock<String> = LazyLock::new(|| record_sql($condition, NOW, OpenWaitsSql::Postgres));
        sqlx::query(AssertSqlSafe(SQL.as_str()))
    }};
}

impl Postgres {
    pub(super) async fn do_find_by_object(&self, object_uid: &str) -> DbResult<LookUp> {
        self.found(find_sql!("r.object_uid = $1").bind(object_uid)).await?.look_up()
    }

    pub(super) async fn do_get_run(&self, run: RunId) -> DbResult<Option<RunRecord>> {
        self.run_rows(run).await?.map(|rows| rows.record()).transpose()
    }

    /// The rows of the run with this id.
    pub(super) async fn run_rows(&self, run: RunId) -> DbResult<Option<RunRows>> {
        Ok(self.found(find_sql!("r.id = $1").bind(run)).await?.runs.pop())
    }

    pub(super) async fn do_find(&self, namespace: &str, name: &str) -> DbResult<Vec<RunRecord>> {
        let query = find_sql!("r.namespace = $1 AND r.name = $2").bind(namespace).bind(name);
        self.found(query).await?.runs.iter().map(RunRows::record).collect()
    }

    /// The runs that a new run could conflict with: those of its object or its name.
    pub(super) async fn find_existing(&self, new: &NewRun) -> DbResult<FoundRuns> {
        self.found(find_sql!(OWN_OR_PRIOR_RUN).bind(&new.object_uid).bind(&new.namespace).bind(&new.name))
            .await
    }

    async fn found(&self, query: Query<'_, sqlx::Postgres, PgArguments>) -> DbResult<FoundRuns> {
        FoundRuns::read(&self.pool.all(query).await?, None)
    }

    pub(super) async fn do_attempt(&self, run: RunId, number: i32) -> DbResult<Option<Attempt>> {
        let row = self.pool.optional(attempt_query().bind(run).bind(number)).await?;
        row.map(|row| AttemptRow::read(&row)?.record()).transpose()
    }

    pub(super) async fn do_get_revision(&self, hash: &str) -> DbResult<Option<String>> {
        let row = self.pool.optional(sqlx::query(GET_REVISION).bind(hash)).await?;
        Ok(row.map(|row| row.try_get("document")).transpose()?)
    }

    pub(super) async fn do_sizes(&self, run: RunId) -> DbResult<Sizes> {
        let query = sqlx::query(SIZES).bind(run).bind(SNAPSHOT_DUE);
        let Some(row) = self.pool.optional(query).await? else { return Ok(Sizes::default()) };
        Ok(Sizes { state: row.try_get("state")?, tail: row.try_get("tail")?, calls: row.try_get("calls")? })
    }

    pub(super) async fn do_is_current(&self, run: RunId, capability: &Digest) -> DbResult<bool> {
        let query = sqlx::query(IS_CURRENT).bind(run).bind(capability.as_slice());
        Ok(self.pool.one(query).await?.try_get("is_current")?)
    }

    pub(super) async fn do_namespace_usage(&self, namespaces: u32) -> DbResult<Vec<NamespaceUsage>> {
        let rows = self
            .pool
            .all(sqlx::query(namespace_usage!("runs WHERE NOT emptied")).bind(i64::from(namespaces)))
            .await?;
        rows.iter()
            .map(|row| {
                Ok(NamespaceUsage { namespace: row.try_get("namespace")?, bytes: row.try_get("bytes")? })
            })
            .collect()
    }
}
