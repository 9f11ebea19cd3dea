//! A boundary by its id, and what is known of it besides its own row.

use dalsegno_protocol::Limits;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Row as _};

use super::Postgres;
use super::query::QueryExecutor;
use super::row::digest;
use crate::db_error::DbResult;
use crate::reads::{BOUNDARY_FACTS, BoundaryFactsRow, LED_BY, PAST_CALLS_SQL, PastCallRow, led_by};
use crate::snapshot_io::{HashedBoundary, StoredHash};
use crate::statements::BOUNDARY_HASH;
use dalsegno_model::{BoundaryFacts, BoundaryId, RunId, boundary_number};

/// A query whose first parameters are a run and a boundary.
fn of_boundary(sql: &'static str, run: RunId, id: BoundaryId) -> Query<'static, sqlx::Postgres, PgArguments> {
    sqlx::query(sql).bind(run).bind(id.turn).bind(i16::from(boundary_number(id.boundary))).bind(id.epoch)
}

/// The hash of a boundary, and whether it is on the live branch.
pub(super) async fn hash(
    executor: &impl QueryExecutor,
    run: RunId,
    id: BoundaryId,
) -> DbResult<Option<StoredHash>> {
    let found = executor.all(of_boundary(BOUNDARY_HASH, run, id)).await?;
    let Some(row) = found.first() else { return Ok(None) };
    let boundary = HashedBoundary { id, content_hash: digest(row, "content_hash")? };
    Ok(Some(StoredHash { boundary, is_live: !row.try_get::<bool, _>("undone")? }))
}

impl Postgres {
    pub(super) async fn do_boundary_facts(
        &self,
        run: RunId,
        id: BoundaryId,
    ) -> DbResult<Option<BoundaryFacts>> {
        let Some(row) = self.pool.optional(of_boundary(BOUNDARY_FACTS, run, id)).await? else {
            return Ok(None);
        };
        let facts = BoundaryFactsRow::read(&row)?;
        let calls = sqlx::query(AssertSqlSafe(PAST_CALLS_SQL.as_str()))
            .bind(run)
            .bind(id.turn)
            .bind(i64::from(Limits::CHECKPOINT_CALLS))
            .bind(Limits::CHECKPOINT_CALLS_BYTES as i64);
        let calls = self.pool.all(calls).await?;
        let calls = calls.iter().map(PastCallRow::read).collect::<DbResult<Vec<_>>>()?;
        let led = of_boundary(LED_BY, run, id).bind(facts.at).bind(facts.parent_at.unwrap_or_default());
        let led = led_by(&self.pool.all(led).await?)?;
        let cipher = self.cipher_to_read(run, calls.iter().any(|it| it.call.looks_sealed())).await?;
        facts.with(&calls, led, &cipher).map(Some)
    }
}
