//! Statements of pod templates. The key of a template is its hash.

use sqlx::SqliteConnection;

use crate::db_error::DbResult;
use crate::pages::PAGE_BYTES;

/// Deletes at most `?1` templates that no run needs, and no further one once `?2` bytes are reached.
const DELETE_UNUSED: &str = "\
    DELETE FROM revisions WHERE hash IN ( \
        SELECT hash FROM ( \
            SELECT hash, sum(bytes) OVER (ORDER BY hash ROWS UNBOUNDED PRECEDING) - bytes AS before FROM ( \
                SELECT hash, octet_length(document) AS bytes FROM revisions WHERE hash NOT IN ( \
                    SELECT a.revision FROM runs r JOIN attempts a ON a.run = r.id \
                    WHERE r.lifecycle = 'live' AND a.revision IS NOT NULL \
                    UNION ALL \
                    SELECT c.value FROM runs r \
                    JOIN attempts a ON a.run = r.id AND a.number = r.attempt, json_each(a.candidates) c \
                    WHERE r.lifecycle = 'live' AND r.attempt_state = 'reserved') \
                ORDER BY hash LIMIT ?1)) \
        WHERE before < ?2)";

/// Returns the template with this hash.
pub(super) async fn get(conn: &mut SqliteConnection, hash: String) -> DbResult<Option<String>> {
    Ok(sqlx::query_scalar("SELECT document FROM revisions WHERE hash = ?")
        .bind(hash)
        .fetch_optional(conn)
        .await?)
}

/// Deletes at most `rows` templates that no run needs.
pub(super) async fn delete_unused(conn: &mut SqliteConnection, rows: u32) -> DbResult<u64> {
    let deleted = sqlx::query(DELETE_UNUSED).bind(rows).bind(PAGE_BYTES).execute(conn).await?;
    Ok(deleted.rows_affected())
}
