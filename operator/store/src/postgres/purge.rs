//! Purging: deletes runs that ended long ago, in steps.

use sqlx::Row as _;

use super::Postgres;
use super::audit::explain_missing_right;
use crate::db_error::DbResult;
use crate::pages::PAGE_ROWS;
use crate::transitions::{PurgeRecord, RecordPurge};
use dalsegno_model::{EndedRun, ForgottenPurges, Purge, PurgeScope, PurgeStep, RunId};

const RUNS_TO_PURGE: &str = "SELECT id, coalesce(finish_at, over_at) AS ended_at FROM runs \
     WHERE lifecycle IN ('deleted', 'abandoned') AND emptied AND coalesce(finish_at, over_at) < $1 \
       AND (coalesce(finish_at, over_at), id) > ($2, $3) AND ($4::text IS NULL OR namespace = $4) \
     ORDER BY coalesce(finish_at, over_at), id LIMIT $5";

/// Fails without the right to delete runs. Otherwise the audit would record purges that cannot happen.
const CHECK_RIGHT: &str = "DELETE FROM runs WHERE false";

const PURGE: &str = "SELECT done, touched FROM ds_purge_v3($1, $2, $3)";

const FORGET: &str = "SELECT next, touched FROM ds_forget_purges_v1($1, $2)";

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
        self.pool.all(sqlx::query(CHECK_RIGHT)).await.map_err(explain_missing_right)?;
        let run = purge.run;
        let last = match self.transact(run, &RecordPurge(purge.clone())).await? {
            PurgeRecord::Kept => return Ok(PurgeStep::Kept),
            PurgeRecord::Recorded => return Ok(PurgeStep::Recorded),
            PurgeRecord::NotAnchored => return Ok(PurgeStep::NotAnchored),
            PurgeRecord::Anchored(last) => last,
        };
        let query = sqlx::query(PURGE).bind(run).bind(last).bind(i64::from(rows));
        let row = self.pool.one(query).await.map_err(explain_missing_right)?;
        let rows = row.try_get::<i64, _>("touched")?.unsigned_abs();
        let Some(done) = row.try_get("done")? else { return Ok(PurgeStep::Kept) };
        if done {
            self.keys.forget(run);
        }
        Ok(PurgeStep::Deleted { rows, done })
    }

    pub(super) async fn do_forget_purges(&self, after: RunId) -> DbResult<ForgottenPurges> {
        let query = sqlx::query(FORGET).bind(after).bind(PAGE_ROWS);
        let row = self.pool.one(query).await.map_err(explain_missing_right)?;
        let rows = row.try_get::<i64, _>("touched")?.unsigned_abs();
        Ok(ForgottenPurges { next: row.try_get("next")?, rows })
    }
}
