//! Payloads that are past their retention.

use sqlx::Row as _;

use super::Postgres;
use super::row::record;
use crate::fault::Work;
use crate::{Dropped, Retention, RunId, RunRecord};

const SET: &str = "SELECT ds_set_retention_v2($1, $2, $3) AS record";

const EXPIRE: &str = "SELECT * FROM ds_expire_v1($1)";

impl Postgres {
    pub(super) async fn do_set_retention(&self, run: RunId, retention: &Retention) -> Work<RunRecord> {
        let Retention { days, keep_last } = retention;
        record(&self.pool.of(run).one(sqlx::query(SET).bind(run).bind(days).bind(keep_last)).await?, run)
    }

    pub(super) async fn do_drop_expired(&self, rows: u32) -> Work<Dropped> {
        let row = self.pool.one(sqlx::query(EXPIRE).bind(i64::from(rows))).await?;
        let run: Option<RunId> = row.try_get("expired")?;
        run.inspect(|run| self.keys.forget(*run));
        let rows = row.try_get::<i64, _>("touched")?.unsigned_abs();
        Ok(Dropped { run, rows, done: row.try_get("done")? })
    }
}
