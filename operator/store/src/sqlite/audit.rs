//! Rows of the audit that belong to writes which are no transitions.

use serde_json::Value;
use sqlx::SqliteConnection;

use super::columns::insert;
use super::row::RunRow;
use crate::db_error::DbResult;
use crate::transitions::AuditEntry;

/// Appends to the run's audit chain; the caller saves the row.
pub(super) async fn append(
    conn: &mut SqliteConnection,
    row: &mut RunRow,
    now: i64,
    kind: &'static str,
    actor: &str,
    detail: Value,
) -> DbResult<()> {
    let entry = AuditEntry::append(row, now, kind, actor, &detail);
    insert(conn, AuditEntry::TABLE, entry.assignments(row.id)).await
}
