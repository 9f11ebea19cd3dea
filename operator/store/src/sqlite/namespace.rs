//! The statement that gives a re-created namespace the runs of its predecessor.

use sqlx::SqliteConnection;

use super::audit::append;
use super::row::RunRow;
use crate::db_error::DbResult;
use dalsegno_model::audit::kind;

/// Moves all runs of one tenant to another. Returns their number.
pub(super) async fn adopt_namespace(
    conn: &mut SqliteConnection,
    now: i64,
    (old, new): (String, String),
    actor: String,
    reason: String,
) -> DbResult<u64> {
    let rows = sqlx::query("SELECT * FROM runs WHERE tenant = ?").bind(&old).fetch_all(&mut *conn).await?;
    let mut moved = 0;
    if old == new {
        return Ok(moved);
    }
    for row in &rows {
        let mut row = RunRow::read(row)?;
        sqlx::query("UPDATE runs SET tenant = ? WHERE id = ?")
            .bind(&new)
            .bind(row.id)
            .execute(&mut *conn)
            .await?;
        let detail = serde_json::json!({ "from": old, "to": new, "reason": reason });
        append(conn, &mut row, now, kind::NAMESPACE_ADOPTED, &actor, detail).await?;
        row.save(conn).await?;
        moved += 1;
    }
    Ok(moved)
}
