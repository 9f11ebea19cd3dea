//! Migrations: numbered, forward only.

use std::time::{Duration, Instant};

use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::postgres::PgRow;
use sqlx::{Connection as _, PgConnection, Row as _, SqlSafeStr as _};
use tokio::time::sleep;

use super::url::Target;
use crate::db_error::{DbError, DbResult};
use crate::schema::{AppliedMigrations, BASELINE};

/// One row, if migrations were ever applied.
pub(super) const IS_MIGRATED: &str =
    "SELECT 1 WHERE to_regclass('_sqlx_migrations') IS NOT NULL AND to_regclass('store') IS NOT NULL";

/// The migrations that were applied.
pub(super) const APPLIED: &str = "SELECT coalesce(max(version), 0) AS latest, \
            max(description) FILTER (WHERE version = 1) AS first, \
            (SELECT readable_since FROM store) AS readable_since \
     FROM _sqlx_migrations WHERE success";

/// Longest time that a migration waits for a lock at once. A statement of a worker that needs the same table waits
/// behind it for as long.
const LOCK_TIMEOUT: &str = "SET lock_timeout = '2s'";

/// Pause before the next try, in which the statements of workers run.
const PAUSE: Duration = Duration::from_secs(5);

/// After this time a migration that finds a table locked is given up.
const GIVE_UP_AFTER: Duration = Duration::from_secs(600);

/// SQLSTATE of a statement that waited for a lock for too long.
const LOCK_NOT_AVAILABLE: &str = "55P03";

/// The schema of the first release.
const BASELINE_SQL: &str = concat!(
    include_str!("../../migrations/postgres/0001_baseline/1_tables.sql"),
    include_str!("../../migrations/postgres/0001_baseline/2_hashes.sql"),
    include_str!("../../migrations/postgres/0001_baseline/3_calls.sql"),
    include_str!("../../migrations/postgres/0001_baseline/4_records.sql"),
    include_str!("../../migrations/postgres/0001_baseline/5_retention.sql"),
    include_str!("../../migrations/postgres/0001_baseline/6_guards.sql"),
);

/// The migrations after the baseline: number, description and statements.
const LATER: [(i64, &str, &str); 19] = [
    (2, "purge", include_str!("../../migrations/postgres/0002_purge.sql")),
    (3, "pod nonce", include_str!("../../migrations/postgres/0003_pod_nonce.sql")),
    (4, "image in registry", include_str!("../../migrations/postgres/0004_image_in_registry.sql")),
    (5, "scans", include_str!("../../migrations/postgres/0005_scans.sql")),
    (6, "suspend", include_str!("../../migrations/postgres/0006_suspend.sql")),
    (7, "waits", include_str!("../../migrations/postgres/0007_waits.sql")),
    (8, "messages", include_str!("../../migrations/postgres/0008_messages.sql")),
    (9, "limits", include_str!("../../migrations/postgres/0009_limits.sql")),
    (10, "approval use", include_str!("../../migrations/postgres/0010_approval_use.sql")),
    (11, "outbox", include_str!("../../migrations/postgres/0011_outbox.sql")),
    (12, "rewind and fork", include_str!("../../migrations/postgres/0012_rewind_and_fork.sql")),
    (13, "wait indexes", include_str!("../../migrations/postgres/0013_wait_indexes.sql")),
    (14, "gateway contract", include_str!("../../migrations/postgres/0014_gateway_contract.sql")),
    (16, "snapshot every", include_str!("../../migrations/postgres/0016_snapshot_every.sql")),
    (17, "external", include_str!("../../migrations/postgres/0017_external.sql")),
    (18, "delete prefix", include_str!("../../migrations/postgres/0018_delete_prefix.sql")),
    (19, "tool", include_str!("../../migrations/postgres/0019_tool.sql")),
    (20, "call usage", include_str!("../../migrations/postgres/0020_call_usage.sql")),
    (21, "calls spent", include_str!("../../migrations/postgres/0021_calls_spent.sql")),
];

fn migrator() -> Migrator {
    let all = std::iter::once((1, BASELINE, BASELINE_SQL)).chain(LATER);
    let migration = |(number, description, sql): (i64, &'static str, &'static str)| {
        Migration::new(number, description.into(), MigrationType::Simple, sql.into_sql_str(), false)
    };
    Migrator::with_migrations(all.map(migration).collect())
}

/// Migrates the schema to this binary's. A try that waits too long for a lock is rolled back and repeated.
pub(super) async fn migrate(target: &Target) -> DbResult<()> {
    let started = Instant::now();
    loop {
        let (mut conn, _) = target.connect().await?;
        let migrated = try_once(&mut conn).await;
        // Closing the connection releases the migrator's advisory lock, also after an error.
        let closed = conn.close().await;
        match migrated {
            Ok(()) => return Ok(closed?),
            Err(fault) if fault.code().is_some_and(|code| code == LOCK_NOT_AVAILABLE) => {
                if started.elapsed() > GIVE_UP_AFTER {
                    return Err(DbError::Unusable(format!(
                        "cannot migrate the database: for {} minutes another session has locked a table, such as by \
                         pg_dump, `audit verify` or another migration: wait for its end, and run `dalsegno migrate` again",
                        GIVE_UP_AFTER.as_secs() / 60
                    )));
                }
                tracing::warn!("another session locks what the migration needs: it is tried again");
                sleep(PAUSE).await;
            }
            Err(fault) => return Err(fault),
        }
    }
}

async fn try_once(conn: &mut PgConnection) -> DbResult<()> {
    sqlx::raw_sql(LOCK_TIMEOUT).execute(&mut *conn).await?;
    let applied = match sqlx::query(IS_MIGRATED).fetch_optional(&mut *conn).await? {
        Some(_) => applied(&sqlx::query(APPLIED).fetch_one(&mut *conn).await?)?,
        None => AppliedMigrations::default(),
    };
    if !applied.must_run(latest()).map_err(DbError::Unusable)? {
        return Ok(());
    }
    migrator().run_direct(None, conn, false).await.map_err(|error| match error {
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _)
            if error
                .as_database_error()
                .and_then(|it| it.code())
                .is_some_and(|it| it == LOCK_NOT_AVAILABLE) =>
        {
            error.into()
        }
        other => DbError::Unusable(format!("cannot migrate the database: {other}")),
    })
}

/// Refuses a schema that this binary cannot use. `row`: the answer to [`APPLIED`], if the database was ever migrated.
pub(super) fn check(row: Option<&PgRow>) -> DbResult<()> {
    let applied = row.map(applied).transpose()?.unwrap_or_default();
    applied.is_usable(latest()).map_err(DbError::Unusable)
}

fn applied(row: &PgRow) -> DbResult<AppliedMigrations> {
    Ok(AppliedMigrations {
        latest: row.try_get("latest")?,
        first: row.try_get("first")?,
        readable_since: row.try_get("readable_since")?,
    })
}

fn latest() -> i64 {
    migrator().iter().map(|migration| migration.version).max().unwrap_or_default()
}
