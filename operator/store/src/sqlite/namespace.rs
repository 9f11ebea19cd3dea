//! What belongs to no single run: templates by their hash, and namespaces that were re-created.

use sqlx::SqliteConnection;

use super::change::append;
use super::row::RunRow;
use crate::audit::kind;
use crate::fault::Work;

/// Keeps a template.
pub(super) async fn put_revision(
    conn: &mut SqliteConnection,
    now: i64,
    hash: String,
    document: String,
) -> Work<()> {
    sqlx::query("INSERT INTO revisions (hash, document, created_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING")
        .bind(hash)
        .bind(document)
        .bind(now)
        .execute(conn)
        .await?;
    Ok(())
}

/// A template by its hash.
pub(super) async fn get_revision(conn: &mut SqliteConnection, hash: String) -> Work<Option<String>> {
    Ok(sqlx::query_scalar("SELECT document FROM revisions WHERE hash = ?")
        .bind(hash)
        .fetch_optional(conn)
        .await?)
}

/// Moves every row of one tenant to another.
pub(super) async fn adopt_namespace(
    conn: &mut SqliteConnection,
    now: i64,
    (old, new): (String, String),
    actor: String,
    reason: String,
) -> Work<u64> {
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
