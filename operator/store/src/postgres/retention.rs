//! Retention: deletes the payloads of runs that have expired, and templates that no run uses.

use sqlx::Row as _;

use super::Postgres;
use crate::db_error::DbResult;
use crate::pages::{PAGE_BYTES, PAGE_ROWS};
use dalsegno_model::{Dropped, RunId};

/// Reads the index by the time from which payloads are deleted. The lower bound, which is always met, tells the planner
/// that few runs are in the range; `MATERIALIZED` keeps it from going through all runs in the order of their ids.
const EXPIRED: &str = "WITH due AS MATERIALIZED ( \
         SELECT id FROM runs \
         WHERE lifecycle <> 'live' AND NOT emptied \
           AND CASE WHEN expired_at IS NULL THEN coalesce(finish_at, over_at) + retention_days * 86400000::bigint \
                    ELSE 0 END \
               BETWEEN 0 AND (SELECT ds_now_v1()) \
     ) \
     SELECT id FROM due WHERE id > $1 ORDER BY id LIMIT $2";

const DROP_REVISIONS: &str = "SELECT ds_drop_revisions_v1($1, $2) AS rows";

const EXPIRE: &str = "SELECT expired, touched, done FROM ds_expire_v3($1, $2, $3)";

impl Postgres {
    pub(super) async fn do_runs_to_expire(&self, after: RunId) -> DbResult<Vec<RunId>> {
        let rows = self.pool.all(sqlx::query(EXPIRED).bind(after).bind(PAGE_ROWS)).await?;
        rows.iter().map(|row| Ok(row.try_get("id")?)).collect()
    }

    pub(super) async fn do_expire(&self, run: RunId, rows: u32) -> DbResult<Dropped> {
        let query = sqlx::query(EXPIRE).bind(run).bind(i64::from(rows)).bind(PAGE_BYTES);
        let row = self.pool.one(query).await?;
        let run: Option<RunId> = row.try_get("expired")?;
        if let Some(run) = run {
            self.keys.forget(run);
        }
        let rows = row.try_get::<i64, _>("touched")?.unsigned_abs();
        Ok(Dropped { run, rows, done: row.try_get("done")? })
    }

    pub(super) async fn do_drop_revisions(&self, rows: u32) -> DbResult<u64> {
        let query = sqlx::query(DROP_REVISIONS).bind(i64::from(rows)).bind(PAGE_BYTES);
        Ok(self.pool.one(query).await?.try_get::<i64, _>("rows")?.unsigned_abs())
    }
}
