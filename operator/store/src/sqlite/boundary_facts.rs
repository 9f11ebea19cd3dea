//! Statements that read a boundary by its id, and what is known of it besides its own row.

use dalsegno_protocol::Limits;
use sqlx::query::Query;
use sqlx::sqlite::SqliteArguments;
use sqlx::{AssertSqlSafe, Row as _, Sqlite, SqliteConnection};

use super::sqlx_types::{BoundaryColumn, Hash};
use crate::db_error::DbResult;
use crate::reads::{BOUNDARY_FACTS, BoundaryFactsRow, LED_BY, PAST_CALLS_SQL, PastCallRow, led_by};
use crate::snapshot_io::{HashedBoundary, StoredHash};
use crate::statements::BOUNDARY_HASH;
use dalsegno_model::{BoundaryId, LedBy, RunId};

/// A query whose first parameters are a run and a boundary.
fn of_boundary(sql: &'static str, run: RunId, id: BoundaryId) -> Query<'static, Sqlite, SqliteArguments> {
    sqlx::query(sql).bind(run).bind(id.turn).bind(BoundaryColumn(id.boundary)).bind(id.epoch)
}

/// Returns the hash of a boundary, and whether it is on the live branch.
pub(super) async fn hash(
    conn: &mut SqliteConnection,
    run: RunId,
    id: BoundaryId,
) -> DbResult<Option<StoredHash>> {
    let Some(row) = of_boundary(BOUNDARY_HASH, run, id).fetch_optional(conn).await? else { return Ok(None) };
    let boundary = HashedBoundary { id, content_hash: row.try_get::<Hash, _>("content_hash")?.0 };
    Ok(Some(StoredHash { boundary, is_live: !row.try_get::<bool, _>("undone")? }))
}

/// What is known of a boundary, with the payloads of calls still encoded.
pub(super) struct EncodedFacts {
    pub row: BoundaryFactsRow,
    pub calls: Vec<PastCallRow>,
    pub led_by: LedBy,
}

/// Returns what is known of a boundary.
pub(super) async fn read(
    conn: &mut SqliteConnection,
    run: RunId,
    id: BoundaryId,
) -> DbResult<Option<EncodedFacts>> {
    let Some(row) = of_boundary(BOUNDARY_FACTS, run, id).fetch_optional(&mut *conn).await? else {
        return Ok(None);
    };
    let row = BoundaryFactsRow::read(&row)?;
    let calls = sqlx::query(AssertSqlSafe(PAST_CALLS_SQL.as_str()))
        .bind(run)
        .bind(id.turn)
        .bind(Limits::CHECKPOINT_CALLS)
        .bind(Limits::CHECKPOINT_CALLS_BYTES as i64)
        .fetch_all(&mut *conn)
        .await?;
    let calls = calls.iter().map(PastCallRow::read).collect::<DbResult<_>>()?;
    let led = of_boundary(LED_BY, run, id).bind(row.at).bind(row.parent_at.unwrap_or_default());
    let led_by = led_by(&led.fetch_all(conn).await?)?;
    Ok(Some(EncodedFacts { row, calls, led_by }))
}
