//! Migrations: numbered, forward only.

use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row as _, SqlSafeStr as _};

use crate::db_error::{DbError, DbResult};
use crate::schema::{AppliedMigrations, BASELINE};

/// One row, if migrations were ever applied.
pub(super) const IS_MIGRATED: &str = "SELECT 1 WHERE to_regclass('_sqlx_migrations') IS NOT NULL";

/// The migrations that were applied.
pub(super) const APPLIED: &str = "SELECT coalesce(max(version), 0) AS latest, \
            max(description) FILTER (WHERE version = 1) AS first \
     FROM _sqlx_migrations WHERE success";

/// The schema of the first release.
const BASELINE_SQL: &str = concat!(
    include_str!("../../migrations/postgres/0001_baseline/1_tables.sql"),
    include_str!("../../migrations/postgres/0001_baseline/2_hashes.sql"),
    include_str!("../../migrations/postgres/0001_baseline/3_calls.sql"),
    include_str!("../../migrations/postgres/0001_baseline/4_records.sql"),
    include_str!("../../migrations/postgres/0001_baseline/5_retention.sql"),
    include_str!("../../migrations/postgres/0001_baseline/6_guards.sql"),
);

fn migrator() -> Migrator {
    let sql = BASELINE_SQL.into_sql_str();
    Migrator::with_migrations(vec![Migration::new(1, BASELINE.into(), MigrationType::Simple, sql, false)])
}

/// Migrates the schema to this binary's. The migrator holds an advisory lock of the session, also after a failure: the
/// caller closes the connection.
pub(super) async fn migrate(conn: &mut PgConnection) -> DbResult<()> {
    let applied = match sqlx::query(IS_MIGRATED).fetch_optional(&mut *conn).await? {
        Some(_) => applied(&sqlx::query(APPLIED).fetch_one(&mut *conn).await?)?,
        None => AppliedMigrations::default(),
    };
    applied.can_be_migrated(latest()).map_err(DbError::Unusable)?;
    migrator()
        .run_direct(None, conn, false)
        .await
        .map_err(|error| DbError::Unusable(format!("cannot migrate the database: {error}")))
}

/// Refuses a schema that is not this binary's. `row`: the answer to [`APPLIED`], if the database was ever migrated.
pub(super) fn check(row: Option<&PgRow>) -> DbResult<()> {
    let applied = row.map(applied).transpose()?.unwrap_or_default();
    applied.is_current(latest()).map_err(DbError::Unusable)
}

fn applied(row: &PgRow) -> DbResult<AppliedMigrations> {
    Ok(AppliedMigrations { latest: row.try_get("latest")?, first: row.try_get("first")? })
}

fn latest() -> i64 {
    migrator().iter().map(|migration| migration.version).max().unwrap_or_default()
}
