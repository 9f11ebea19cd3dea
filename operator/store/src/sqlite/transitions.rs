//! How the rules of a run are applied: in the writer's transaction.

use std::collections::BTreeMap;

use sqlx::SqliteConnection;

use super::database::{QueryExecutor as _, Sqlite};
use super::read::run_rows;
use super::transact::transact;
use crate::db_error::DbResult;
use crate::transitions::{Decision, Rows, Transition};
use dalsegno_model::{Result, RunId};

impl Sqlite {
    /// Performs a transition of a run.
    pub(super) async fn transition<T: Transition>(&self, run: RunId, rule: T) -> Result<T::Answer> {
        let written = self.write(T::OPERATION, move |conn, now| Box::pin(transact(conn, now, run, rule)));
        let mut answer = written.await?;
        self.open_texts(&mut answer).await?;
        Ok(answer)
    }

    /// Performs a transition that rarely writes, and whose rule needs only the run and its attempts. If the rule writes
    /// nothing on the rows as they are, this takes neither the writer nor the disk.
    pub(super) async fn read_then_transition<T: Transition + Clone>(
        &self,
        run: RunId,
        rule: T,
    ) -> Result<T::Answer> {
        let first = rule.clone();
        let looked = self.read(T::OPERATION, move |conn, now| Box::pin(look(conn, now, run, first))).await?;
        match looked {
            Some(answer) => Ok(answer),
            None => self.transition(run, rule).await,
        }
    }
}

/// The answer of a rule that writes nothing on the rows as they are. `None`: it would write.
async fn look<T: Transition>(
    conn: &mut SqliteConnection,
    now: i64,
    run: RunId,
    rule: T,
) -> DbResult<Option<T::Answer>> {
    let Some(of_run) = run_rows(conn, now, run).await? else { return rule.without_run(run).map(Some) };
    let Decision { write, answer } = rule.decide(Rows::new(of_run, BTreeMap::new()))?;
    Ok(write.is_empty().then_some(answer))
}
