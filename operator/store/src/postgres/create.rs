//! Creates and adopts runs, and closes the run of an AgentRun that was deleted.

use sqlx::Row as _;

use super::Postgres;
use super::row::without_nul;
use super::transitions::{apply, apply_create};
use crate::db_error::{DbError, DbResult};
use crate::pages::PAGE_ROWS;
use crate::reads::FoundRuns;
use crate::transitions::{
    Abandon, Adopt, CreateStep, Decision, MarkDeleted, Needs, Transition as _, create, next_create_step,
};
use dalsegno_model::read_transaction::EVERY_RUN;
use dalsegno_model::{Created, NamespaceAdoption, NewRun, RequestedBy, RunId};

/// How often a create reads the existing runs again after another create got in between. Progress is guaranteed: each
/// time, the other one has committed.
const MAX_ROUNDS: usize = 8;

const ADOPT_PAGE: &str = "SELECT next, moved FROM ds_adopt_namespace_v2($1, $2, $3, $4, $5, $6)";

impl Postgres {
    pub(super) async fn do_create_run(&self, new: &NewRun) -> DbResult<Created> {
        for _ in 0..MAX_ROUNDS {
            let found = self.find_existing(new).await?;
            let created = match next_create_step(&found, new)? {
                CreateStep::Answer(answer) => Some(answer),
                CreateStep::Create => self.create(&found, new).await?,
                CreateStep::Replace(prior) => self.replace(prior, &found, new).await?,
                CreateStep::Adopt(prior) => {
                    self.transact(prior, &Adopt(new.clone())).await?;
                    None
                }
            };
            if let Some(created) = created {
                return Ok(created);
            }
        }
        Err(DbError::unavailable("other processes are creating runs of this name"))
    }

    /// `None`: another process has created a run of this object or name since `found` was read.
    async fn create(&self, found: &FoundRuns, new: &NewRun) -> DbResult<Option<Created>> {
        let Decision { write: set, answer } = create(found, new)?;
        let is_written = apply_create(&self.pool, set).await?;
        Ok(is_written.then(|| Created::Run(Box::new(answer))))
    }

    /// Abandons the prior run and creates the new one, in one transaction. `None`: the store has changed since `found`
    /// was read.
    async fn replace(&self, prior: RunId, found: &FoundRuns, new: &NewRun) -> DbResult<Option<Created>> {
        let queued = self.pool.join(prior);
        let work = async {
            let _served = queued.acquire().await?;
            let (mut transaction, rows) = self.lock(prior, Needs::Nothing).await?;
            let abandoned = rows.map(|rows| Abandon(new.clone()).decide(rows)).transpose()?;
            if let Some(Decision { write: abandoned, answer: true }) = abandoned {
                apply(&mut transaction, abandoned).await?;
                let Decision { write: created, answer } = create(found, new)?;
                if apply(&mut transaction, created).await? {
                    transaction.commit().await?;
                    return Ok(Some(Created::Run(Box::new(answer))));
                }
            }
            transaction.rollback().await?;
            Ok(None)
        };
        self.pool.with_timeout(work).await
    }

    /// Another object may adopt the run while this waits for its lock: the rule checks the object again under the lock.
    pub(super) async fn do_mark_deleted(&self, object_uid: &str, by: &RequestedBy) -> DbResult<()> {
        let query = sqlx::query("SELECT id FROM runs WHERE object_uid = $1").bind(object_uid);
        let Some(row) = self.pool.optional(query).await? else { return Ok(()) };
        let rule = MarkDeleted { object_uid: object_uid.to_owned(), requested_by: by.clone() };
        self.transact(row.try_get("id")?, &rule).await
    }

    pub(super) async fn do_adopt_namespace(&self, adoption: &NamespaceAdoption) -> DbResult<u64> {
        let NamespaceAdoption { from, to, actor, reason } = adoption;
        if from == to {
            return Ok(0);
        }
        let (mut before, mut moved) = (EVERY_RUN, 0);
        loop {
            let query = sqlx::query(ADOPT_PAGE).bind(from).bind(to);
            let query = query.bind(without_nul(actor)).bind(without_nul(reason));
            let page = self.pool.one(query.bind(before).bind(PAGE_ROWS)).await?;
            moved += page.try_get::<i64, _>("moved")?.unsigned_abs();
            let Some(last) = page.try_get("next")? else { return Ok(moved) };
            before = last;
        }
    }
}
