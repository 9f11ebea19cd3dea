//! Migrations: numbered, forward only.

use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::{PgConnection, SqlSafeStr as _};

use crate::db_error::{DbError, DbResult};

/// One row, if migrations were ever applied.
pub(super) const IS_MIGRATED: &str = "SELECT 1 WHERE to_regclass('_sqlx_migrations') IS NOT NULL";

/// The last migration that was applied; 0: none.
pub(super) const VERSION: &str =
    "SELECT coalesce(max(version), 0) AS version FROM _sqlx_migrations WHERE success";

macro_rules! migrations {
    ($($version:literal $name:literal,)+) => {
        vec![$(Migration::new(
            $version,
            $name.into(),
            MigrationType::Simple,
            include_str!(concat!("../../migrations/postgres/", $name, ".sql")).into_sql_str(),
            false,
        )),+]
    };
}

fn migrator() -> Migrator {
    Migrator::with_migrations(migrations! {
        1 "0001_runs",
        2 "0002_boundaries",
        3 "0003_contents",
        4 "0004_hashes",
        7 "0007_take_up",
        10 "0010_calls",
        12 "0012_records",
        13 "0013_rewind",
        14 "0014_append_only",
        15 "0015_signing_key",
        16 "0016_anchors",
        17 "0017_retention",
        18 "0018_data_keys",
        20 "0020_keep_last",
        21 "0021_prune_audit",
        50 "0050_over_at",
        51 "0051_late_snapshots",
        52 "0052_touched_calls",
        70 "0070_state_bytes",
        71 "0071_open_calls",
    })
}

/// Brings the schema up to this binary's. The migrator holds an advisory lock of the session, also after it failed:
/// the caller closes the connection.
pub(super) async fn migrate(conn: &mut PgConnection) -> DbResult<()> {
    refuse_newer(version(conn).await?)?;
    migrator()
        .run_direct(None, conn, false)
        .await
        .map_err(|error| DbError::Unusable(format!("cannot migrate the database: {error}")))
}

/// Refuses a schema that is not this binary's.
pub(super) fn check(found: i64) -> DbResult<()> {
    refuse_newer(found)?;
    let known = latest();
    if found < known {
        return Err(DbError::Unusable(format!(
            "the database's schema is {found}, this binary's is {known}: run `dalsegno migrate`"
        )));
    }
    Ok(())
}

fn refuse_newer(found: i64) -> DbResult<()> {
    let known = latest();
    if found > known {
        return Err(DbError::Unusable(format!(
            "the database's schema is {found}, newer than this binary's ({known}): a newer dalsegno has used it"
        )));
    }
    Ok(())
}

async fn version(conn: &mut PgConnection) -> DbResult<i64> {
    if sqlx::query(IS_MIGRATED).fetch_optional(&mut *conn).await?.is_none() {
        return Ok(0);
    }
    Ok(sqlx::query_scalar(VERSION).fetch_one(conn).await?)
}

fn latest() -> i64 {
    migrator().iter().map(|migration| migration.version).max().unwrap_or_default()
}
