//! Transitions that first have to find their run: creation, and the deletion of the AgentRun.

use sqlx::SqliteConnection;

use super::database::Sqlite;
use super::read::find_existing;
use super::transact::{apply, transact};
use crate::db_error::DbResult;
use crate::transitions::{
    Abandon, Adopt, CreateStep, Decision, MarkDeleted, Transition as _, create, next_create_step,
};
use dalsegno_model::{Created, NewRun, RequestedBy, Result};

impl Sqlite {
    pub(super) async fn create(&self, new: &NewRun) -> Result<Created> {
        let new = new.clone();
        self.write(Adopt::OPERATION, |conn, now| Box::pin(create_run(conn, now, new))).await
    }

    pub(super) async fn mark_object_deleted(
        &self,
        object_uid: &str,
        requested_by: &RequestedBy,
    ) -> Result<()> {
        let rule = MarkDeleted { object_uid: object_uid.to_owned(), requested_by: requested_by.clone() };
        self.write(MarkDeleted::OPERATION, |conn, now| Box::pin(mark_deleted(conn, now, rule))).await
    }
}

/// All steps run in one transaction of the only writer, so no other write comes between them.
async fn create_run(conn: &mut SqliteConnection, now: i64, new: NewRun) -> DbResult<Created> {
    loop {
        let found = find_existing(conn, now, &new).await?;
        match next_create_step(&found, &new)? {
            CreateStep::Answer(answer) => return Ok(answer),
            CreateStep::Adopt(prior) => transact(conn, now, prior, Adopt(new.clone())).await?,
            CreateStep::Replace(prior) => drop(transact(conn, now, prior, Abandon(new.clone())).await?),
            CreateStep::Create => {
                let Decision { write, answer } = create(&found, &new)?;
                apply(conn, now, write).await?;
                return Ok(Created::Run(Box::new(answer)));
            }
        }
    }
}

async fn mark_deleted(conn: &mut SqliteConnection, now: i64, rule: MarkDeleted) -> DbResult<()> {
    let query = sqlx::query_scalar("SELECT id FROM runs WHERE object_uid = ?").bind(&rule.object_uid);
    match query.fetch_optional(&mut *conn).await? {
        Some(run) => transact(conn, now, run, rule).await,
        None => Ok(()),
    }
}
