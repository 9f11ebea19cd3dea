//! Runs are created, adopted, or closed with their AgentRun.

use sqlx::Row as _;

use super::Postgres;
use super::row::text;
use super::transitions::{self, apply};
use crate::db_error::{DbError, DbResult};
use crate::reads::FoundRuns;
use crate::transitions::{
    Abandon, Adopt, CreateStep, Decision, MarkDeleted, Needs, Transition as _, create, next_create_step,
};
use crate::{AskedBy, Created, NewRun, RunId};

/// How often a creator looks again that has met another one. Each of them has then done something for good.
const LOOKS: usize = 8;

const ADOPT_NAMESPACE: &str = "SELECT ds_adopt_namespace_v1($1, $2, $3, $4) AS moved";

impl Postgres {
    pub(super) async fn do_create_run(&self, new: &NewRun) -> DbResult<Created> {
        for _ in 0..LOOKS {
            let found = self.look(new).await?;
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
        Err(DbError::unavailable("others create runs of this name"))
    }

    /// `None`: another one has created a run of this object or this name meanwhile.
    async fn create(&self, found: &FoundRuns, new: &NewRun) -> DbResult<Option<Created>> {
        let Decision { write: set, answer } = create(found, new)?;
        let is_written = transitions::create(&self.pool, set).await?;
        Ok(is_written.then(|| Created::Run(Box::new(answer))))
    }

    /// Both in one transaction. `None`: what was found is no more so.
    async fn replace(&self, prior: RunId, found: &FoundRuns, new: &NewRun) -> DbResult<Option<Created>> {
        let place = self.pool.join(prior);
        let work = async {
            let _served = place.acquire().await?;
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
            transaction.roll_back().await?;
            Ok(None)
        };
        self.pool.in_time(work).await
    }

    /// An object's row may change hands while its lock is waited for: the rule looks once more.
    pub(super) async fn do_mark_deleted(&self, object_uid: &str, asked: &AskedBy) -> DbResult<()> {
        let query = sqlx::query("SELECT id FROM runs WHERE object_uid = $1").bind(object_uid);
        let Some(row) = self.pool.optional(query).await? else { return Ok(()) };
        let rule = MarkDeleted { object_uid: object_uid.to_owned(), requested_by: asked.clone() };
        self.transact(row.try_get("id")?, &rule).await
    }

    pub(super) async fn do_adopt_namespace(
        &self,
        old: &str,
        new: &str,
        actor: &str,
        reason: &str,
    ) -> DbResult<u64> {
        let query = sqlx::query(ADOPT_NAMESPACE).bind(old).bind(new).bind(text(actor)).bind(text(reason));
        let moved: i64 = self.pool.one(query).await?.try_get("moved")?;
        Ok(moved.unsigned_abs())
    }
}
