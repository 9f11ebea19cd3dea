//! Purging: deletes runs that ended long ago, in steps.

use sqlx::Row as _;

use super::Postgres;
use super::audit::explain_missing_right;
use super::row::without_nul;
use crate::db_error::{DbError, DbResult};
use crate::pages::PAGE_ROWS;
use dalsegno_model::{EndedRun, ForgottenPurges, Purge, PurgeScope, PurgeStep, RunId};

const RUNS_TO_PURGE: &str = "SELECT id, coalesce(finish_at, over_at) AS ended_at FROM runs \
     WHERE lifecycle IN ('deleted', 'abandoned') AND emptied AND coalesce(finish_at, over_at) < $1 \
       AND (coalesce(finish_at, over_at), id) > ($2, $3) AND ($4::text IS NULL OR namespace = $4) \
     ORDER BY coalesce(finish_at, over_at), id LIMIT $5";

const PURGE: &str = "SELECT * FROM ds_purge_v1($1, $2, $3, $4, $5)";

const FORGET: &str = "SELECT * FROM ds_forget_purges_v1($1, $2)";

impl Postgres {
    pub(super) async fn do_runs_to_purge(
        &self,
        scope: &PurgeScope,
        after: EndedRun,
    ) -> DbResult<Vec<EndedRun>> {
        let PurgeScope { before, namespace } = scope;
        let query = sqlx::query(RUNS_TO_PURGE)
            .bind(before.as_millisecond())
            .bind(after.ended_at)
            .bind(after.run)
            .bind(namespace)
            .bind(PAGE_ROWS);
        let rows = self.pool.all(query).await?;
        rows.iter()
            .map(|row| Ok(EndedRun { ended_at: row.try_get("ended_at")?, run: row.try_get("id")? }))
            .collect()
    }

    pub(super) async fn do_purge(&self, purge: &Purge, rows: u32) -> DbResult<PurgeStep> {
        let Purge { run, before, actor, reason } = purge;
        let query = sqlx::query(PURGE)
            .bind(run)
            .bind(before.as_millisecond())
            .bind(i64::from(rows))
            .bind(without_nul(actor))
            .bind(without_nul(reason));
        let row = self.pool.one(query).await.map_err(explain_missing_right)?;
        let rows = row.try_get::<i64, _>("touched")?.unsigned_abs();
        match row.try_get("outcome")? {
            "kept" => Ok(PurgeStep::Kept),
            "recorded" => Ok(PurgeStep::Recorded),
            "not anchored" => Ok(PurgeStep::NotAnchored),
            "deleted" => Ok(PurgeStep::Deleted { rows, done: false }),
            "done" => {
                self.keys.forget(*run);
                Ok(PurgeStep::Deleted { rows, done: true })
            }
            other => Err(DbError::Corrupt(format!("a purge ended with {other}"))),
        }
    }

    pub(super) async fn do_forget_purges(&self, after: RunId) -> DbResult<ForgottenPurges> {
        let query = sqlx::query(FORGET).bind(after).bind(PAGE_ROWS);
        let row = self.pool.one(query).await.map_err(explain_missing_right)?;
        let rows = row.try_get::<i64, _>("touched")?.unsigned_abs();
        Ok(ForgottenPurges { next: row.try_get("next")?, rows })
    }
}
