//! The statement that gives a re-created namespace the runs of its predecessor.

use sqlx::SqliteConnection;

use super::audit::append;
use super::row::RunRow;
use crate::db_error::DbResult;
use crate::transitions::AuditEvent;
use dalsegno_model::NamespaceAdoption;
use dalsegno_model::audit::kind;

/// Moves all runs of one tenant to another. Returns their number.
pub(super) async fn adopt_namespace(
    conn: &mut SqliteConnection,
    now: i64,
    adoption: NamespaceAdoption,
) -> DbResult<u64> {
    let NamespaceAdoption { from, to, actor, reason } = adoption;
    let rows = sqlx::query("SELECT * FROM runs WHERE tenant = ?").bind(&from).fetch_all(&mut *conn).await?;
    let mut moved = 0;
    if from == to {
        return Ok(moved);
    }
    for row in &rows {
        let mut row = RunRow::read(row)?;
        sqlx::query("UPDATE runs SET tenant = ? WHERE id = ?")
            .bind(&to)
            .bind(row.id)
            .execute(&mut *conn)
            .await?;
        let detail = serde_json::json!({ "from": from, "to": to, "reason": reason });
        append(conn, &mut row, now, AuditEvent { kind: kind::NAMESPACE_ADOPTED, actor: &actor, detail })
            .await?;
        row.save(conn).await?;
        moved += 1;
    }
    Ok(moved)
}
