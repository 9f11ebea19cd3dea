//! The audit of a run: read whole, and pruned up to an anchor.

use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::Postgres;
use super::row::{digest, without_nul};
use crate::db_error::{DbError, DbResult, timestamp};
use crate::statements::audit_columns;
use dalsegno_format::audit::CALLS_MISMATCH;
use dalsegno_model::{AuditRow, Prune, RunId};

const AUDIT: &str = concat!("SELECT ", audit_columns!(), " FROM audit WHERE run = $1 ORDER BY seq");

const PRUNE: &str = "SELECT ds_prune_audit_v1($1, $2, $3, $4, $5) AS rows";

/// SQLSTATE `insufficient_privilege`: the role does not own the table.
const INSUFFICIENT_PRIVILEGE: &str = "42501";

impl Postgres {
    pub(super) async fn do_audit(&self, run: RunId) -> DbResult<Vec<AuditRow>> {
        let rows = self.pool.all(sqlx::query(AUDIT).bind(run)).await?;
        rows.iter().map(audit_row).collect()
    }

    pub(super) async fn do_prune_audit(&self, prune: &Prune) -> DbResult<u64> {
        let Prune { run, seq, hash, actor, reason } = prune;
        let query = sqlx::query(PRUNE).bind(run).bind(seq).bind(hash.as_slice());
        let query = query.bind(without_nul(actor)).bind(without_nul(reason));
        let row = self.pool.one(query).await.map_err(explain_missing_right)?;
        u64::try_from(row.try_get::<i64, _>("rows")?).map_err(|_| DbError::Corrupt(CALLS_MISMATCH.into()))
    }
}

/// A row of the audit.
pub(super) fn audit_row(row: &PgRow) -> DbResult<AuditRow> {
    Ok(AuditRow {
        seq: row.try_get("seq")?,
        at: timestamp(row.try_get("at")?)?,
        kind: row.try_get("kind")?,
        actor: row.try_get("actor")?,
        detail: row.try_get("detail")?,
        parent_hash: digest(row, "parent_hash")?,
        hash: digest(row, "hash")?,
    })
}

pub(super) fn explain_missing_right(fault: DbError) -> DbError {
    if fault.code().as_deref() == Some(INSUFFICIENT_PRIVILEGE) {
        let why = "only the role that owns its tables may delete rows of the audit: connect as the role that ran \
                   `dalsegno migrate`";
        return DbError::Unusable(why.into());
    }
    fault
}
