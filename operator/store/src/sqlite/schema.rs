//! Migrations: numbered, forward only.

use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::{SqlSafeStr as _, SqliteConnection};

use crate::schema::{AppliedMigrations, BASELINE};
use dalsegno_model::{Error, Result};

/// The schema of the first release.
const BASELINE_SQL: &str = concat!(
    include_str!("../../migrations/sqlite/0001_baseline/1_tables.sql"),
    include_str!("../../migrations/sqlite/0001_baseline/2_guards.sql"),
);

fn migrator() -> Migrator {
    let sql = BASELINE_SQL.into_sql_str();
    Migrator::with_migrations(vec![Migration::new(1, BASELINE.into(), MigrationType::Simple, sql, false)])
}

/// Migrates the schema to this binary's.
pub(super) async fn migrate(conn: &mut SqliteConnection) -> Result<()> {
    applied(conn).await?.can_be_migrated(latest()).map_err(Error::Unusable)?;
    migrator()
        .run_direct(None, conn, false)
        .await
        .map_err(|error| Error::Unusable(format!("cannot migrate the database: {error}")))
}

/// Refuses a schema that is not this binary's.
pub(super) async fn check(conn: &mut SqliteConnection) -> Result<()> {
    applied(conn).await?.is_current(latest()).map_err(Error::Unusable)
}

/// The migrations that were applied.
async fn applied(conn: &mut SqliteConnection) -> Result<AppliedMigrations> {
    let unreadable = |error: sqlx::Error| Error::Unusable(format!("cannot read the database: {error}"));
    let is_migrated: bool =
        sqlx::query_scalar("SELECT count(*) FROM sqlite_schema WHERE name = '_sqlx_migrations'")
            .fetch_one(&mut *conn)
            .await
            .map_err(unreadable)?;
    if !is_migrated {
        return Ok(AppliedMigrations::default());
    }
    let (latest, first) = sqlx::query_as(
        "SELECT coalesce(max(version), 0), max(description) FILTER (WHERE version = 1) \
         FROM _sqlx_migrations WHERE success",
    )
    .fetch_one(conn)
    .await
    .map_err(unreadable)?;
    Ok(AppliedMigrations { latest, first })
}

fn latest() -> i64 {
    migrator().iter().map(|migration| migration.version).max().unwrap_or_default()
}
