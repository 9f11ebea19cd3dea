//! The templates that pods are made of, by their hash.

use sqlx::SqliteConnection;
use sqlx::types::Json;

use super::operate::{done, refused};
use super::row::RunRow;
use crate::fault::Work;
use crate::pages::PAGE_BYTES;
use crate::{AttemptState, CANDIDATES, Lifecycle, Recorded, RunId};

/// So many templates that no run needs, and none after those that hold so many bytes.
const DROP: &str = "\
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

/// Keeps a template for the pod of a reserved attempt.
pub(super) async fn put(
    conn: &mut SqliteConnection,
    now: i64,
    (run, number): (RunId, i32),
    hash: String,
    document: String,
) -> Work<Recorded> {
    let row = RunRow::expect(conn, run).await?;
    let is_reserved = row.lifecycle.0 == Lifecycle::Live && row.attempt_state.0 == AttemptState::Reserved;
    if !is_reserved || row.attempt != number {
        return refused(conn, now, row).await;
    }
    sqlx::query("INSERT INTO revisions (hash, document, created_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING")
        .bind(&hash)
        .bind(document)
        .bind(now)
        .execute(&mut *conn)
        .await?;
    let query = sqlx::query_scalar("SELECT candidates FROM attempts WHERE run = ? AND number = ?");
    let Json(mut candidates): Json<Vec<String>> = query.bind(run).bind(number).fetch_one(&mut *conn).await?;
    if candidates.first() == Some(&hash) {
        return done(conn, now, row).await;
    }
    candidates.retain(|it| *it != hash);
    candidates.insert(0, hash);
    candidates.truncate(CANDIDATES);
    sqlx::query("UPDATE attempts SET candidates = ? WHERE run = ? AND number = ?")
        .bind(Json(candidates))
        .bind(run)
        .bind(number)
        .execute(&mut *conn)
        .await?;
    done(conn, now, row).await
}

/// A template by its hash.
pub(super) async fn get(conn: &mut SqliteConnection, hash: String) -> Work<Option<String>> {
    Ok(sqlx::query_scalar("SELECT document FROM revisions WHERE hash = ?")
        .bind(hash)
        .fetch_optional(conn)
        .await?)
}

/// Drops templates that no run needs.
pub(super) async fn drop_unneeded(conn: &mut SqliteConnection, rows: u32) -> Work<u64> {
    let dropped = sqlx::query(DROP).bind(rows).bind(PAGE_BYTES).execute(conn).await?;
    Ok(dropped.rows_affected())
}
