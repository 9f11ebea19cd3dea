//! The start of a run's audit, which an anchor names the end of.

use sqlx::Row as _;

use super::Postgres;
use super::row::text;
use crate::Prune;
use crate::audit::CALLS_MISMATCH;
use crate::db_error::{DbError, DbResult};

const PRUNE: &str = "SELECT ds_prune_audit_v1($1, $2, $3, $4, $5) AS rows";

/// The role does not own the table.
const NO_RIGHT: &str = "42501";

impl Postgres {
    pub(super) async fn do_prune_audit(&self, prune: &Prune) -> DbResult<u64> {
        let Prune { run, seq, hash, actor, reason } = prune;
        let query = sqlx::query(PRUNE).bind(run).bind(seq).bind(hash.as_slice());
        let query = query.bind(text(actor)).bind(text(reason));
        let row = self.pool.one(query).await.map_err(refused)?;
        u64::try_from(row.try_get::<i64, _>("rows")?).map_err(|_| DbError::Corrupt(CALLS_MISMATCH.into()))
    }
}

fn refused(fault: DbError) -> DbError {
    if fault.code().as_deref() == Some(NO_RIGHT) {
        let why = "the audit is pruned by the role that owns its tables, and this is another: connect as the one that \
                   `dalsegno migrate` ran as";
        return DbError::Unusable(why.into());
    }
    fault
}
