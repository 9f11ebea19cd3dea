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

/// The migrations after the baseline: number, description and statements.
const LATER: [(i64, &str, &str); 16] = [
    (2, "purge", include_str!("../../migrations/sqlite/0002_purge.sql")),
    (3, "pod nonce", include_str!("../../migrations/sqlite/0003_pod_nonce.sql")),
    (4, "image in registry", include_str!("../../migrations/sqlite/0004_image_in_registry.sql")),
    (5, "scans", include_str!("../../migrations/sqlite/0005_scans.sql")),
    (6, "suspend", include_str!("../../migrations/sqlite/0006_suspend.sql")),
    (7, "waits", include_str!("../../migrations/sqlite/0007_waits.sql")),
    (8, "messages", include_str!("../../migrations/sqlite/0008_messages.sql")),
    (9, "limits", include_str!("../../migrations/sqlite/0009_limits.sql")),
    (10, "approval use", include_str!("../../migrations/sqlite/0010_approval_use.sql")),
    (11, "outbox", include_str!("../../migrations/sqlite/0011_outbox.sql")),
    (12, "rewind and fork", include_str!("../../migrations/sqlite/0012_rewind_and_fork.sql")),
    (13, "wait indexes", include_str!("../../migrations/sqlite/0013_wait_indexes.sql")),
    (16, "snapshot every", include_str!("../../migrations/sqlite/0016_snapshot_every.sql")),
    (17, "external", include_str!("../../migrations/sqlite/0017_external.sql")),
    (19, "tool", include_str!("../../migrations/sqlite/0019_tool.sql")),
    (20, "call usage", include_str!("../../migrations/sqlite/0020_call_usage.sql")),
];

fn migrator() -> Migrator {
    let all = std::iter::once((1, BASELINE, BASELINE_SQL)).chain(LATER);
    let migration = |(number, description, sql): (i64, &'static str, &'static str)| {
        Migration::new(number, description.into(), MigrationType::Simple, sql.into_sql_str(), false)
    };
    Migrator::with_migrations(all.map(migration).collect())
}

/// Migrates the schema to this binary's, unless it is newer and this binary can use it.
pub(super) async fn migrate(conn: &mut SqliteConnection) -> Result<()> {
    if !applied(conn).await?.must_run(latest()).map_err(Error::Unusable)? {
        return Ok(());
    }
    migrator()
        .run_direct(None, conn, false)
        .await
        .map_err(|error| Error::Unusable(format!("cannot migrate the database: {error}")))
}

/// The schema of a database that [`migrate`] would change. `None`: it has none yet, or nothing is to be done.
pub(super) async fn outdated(conn: &mut SqliteConnection) -> Result<Option<i64>> {
    let applied = applied(conn).await?;
    let must_run = applied.must_run(latest()).map_err(Error::Unusable)?;
    Ok((must_run && applied.latest > 0 && applied.latest < latest()).then_some(applied.latest))
}

/// Refuses a schema that this binary cannot use.
pub(super) async fn check(conn: &mut SqliteConnection) -> Result<()> {
    applied(conn).await?.is_usable(latest()).map_err(Error::Unusable)
}

/// The migrations that were applied.
async fn applied(conn: &mut SqliteConnection) -> Result<AppliedMigrations> {
    let unreadable = |error: sqlx::Error| Error::Unusable(format!("cannot read the database: {error}"));
    let is_migrated: bool = sqlx::query_scalar(
        "SELECT count(*) = 2 FROM sqlite_schema WHERE name IN ('_sqlx_migrations', 'store')",
    )
    .fetch_one(&mut *conn)
    .await
    .map_err(unreadable)?;
    if !is_migrated {
        return Ok(AppliedMigrations::default());
    }
    let (latest, first, readable_since) = sqlx::query_as(
        "SELECT coalesce(max(version), 0), max(description) FILTER (WHERE version = 1), \
                (SELECT readable_since FROM store) \
         FROM _sqlx_migrations WHERE success",
    )
    .fetch_one(conn)
    .await
    .map_err(unreadable)?;
    Ok(AppliedMigrations { latest, first, readable_since })
}

fn latest() -> i64 {
    migrator().iter().map(|migration| migration.version).max().unwrap_or_default()
}
