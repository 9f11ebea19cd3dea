//! Audit entries of writes that are not transitions.

use sqlx::SqliteConnection;

use super::row::RunRow;
use super::sqlx_types::insert;
use crate::db_error::DbResult;
use crate::transitions::{AuditEntry, AuditEvent};

/// Appends an entry to the run's audit chain. The caller saves the run's row.
pub(super) async fn append(
    conn: &mut SqliteConnection,
    row: &mut RunRow,
    now: i64,
    event: AuditEvent<'_>,
) -> DbResult<()> {
    let entry = AuditEntry::append(row, now, event);
    insert(conn, AuditEntry::TABLE, entry.assignments(row.id)).await
}
