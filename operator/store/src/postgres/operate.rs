//! What the operator records of attempts, and the ends it makes.

use sqlx::Row as _;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;

use super::Postgres;
use super::row::{record, text};
use crate::fault::Work;
use crate::{AskedBy, Recorded, RunId};

const PUT_REVISION: &str = "SELECT * FROM ds_put_revision_v1($1, $2, $3, $4)";

impl Postgres {
    pub(super) async fn do_put_revision(
        &self,
        run: RunId,
        attempt: i32,
        hash: &str,
        document: &str,
    ) -> Work<Recorded> {
        let query = sqlx::query(PUT_REVISION).bind(run).bind(attempt).bind(hash).bind(document);
        recorded(&self.pool.of(run).one(query).await?, run)
    }
}

/// The last two parameters of what somebody has asked for.
pub(super) fn asking<'q>(
    query: Query<'q, sqlx::Postgres, PgArguments>,
    asked: &AskedBy,
) -> Query<'q, sqlx::Postgres, PgArguments> {
    let AskedBy { manager, reason } = asked;
    query.bind(manager.as_deref().map(text)).bind(reason.as_deref().map(text))
}

fn recorded(row: &PgRow, run: RunId) -> Work<Recorded> {
    let record = Box::new(record(row, run)?);
    Ok(if row.try_get("done")? { Recorded::Done(record) } else { Recorded::Refused(record) })
}
