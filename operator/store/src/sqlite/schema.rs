//! Migrations: numbered, forward only.

use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::{SqlSafeStr, SqliteConnection};

use crate::{Error, Result};

fn migrator() -> Migrator {
    let migration = |version, name: &'static str, sql: &'static str| {
        Migration::new(version, name.into(), MigrationType::Simple, sql.into_sql_str(), false)
    };
    Migrator::with_migrations(vec![
        migration(1, "runs", include_str!("../../migrations/sqlite/0001_runs.sql")),
        migration(2, "boundaries", include_str!("../../migrations/sqlite/0002_boundaries.sql")),
        migration(3, "contents", include_str!("../../migrations/sqlite/0003_contents.sql")),
        migration(5, "records", include_str!("../../migrations/sqlite/0005_records.sql")),
        migration(7, "append_only", include_str!("../../migrations/sqlite/0007_append_only.sql")),
        migration(8, "signing_key", include_str!("../../migrations/sqlite/0008_signing_key.sql")),
        migration(9, "anchors", include_str!("../../migrations/sqlite/0009_anchors.sql")),
        migration(10, "retention", include_str!("../../migrations/sqlite/0010_retention.sql")),
        migration(11, "data_keys", include_str!("../../migrations/sqlite/0011_data_keys.sql")),
        migration(14, "keep_last", include_str!("../../migrations/sqlite/0014_keep_last.sql")),
        migration(15, "prune_audit", include_str!("../../migrations/sqlite/0015_prune_audit.sql")),
        migration(35, "lookups_of_calls", include_str!("../../migrations/sqlite/0035_lookups_of_calls.sql")),
        migration(50, "over_at", include_str!("../../migrations/sqlite/0050_over_at.sql")),
        migration(52, "touched_calls", include_str!("../../migrations/sqlite/0052_touched_calls.sql")),
        migration(70, "state_bytes", include_str!("../../migrations/sqlite/0070_state_bytes.sql")),
        migration(71, "open_calls", include_str!("../../migrations/sqlite/0071_open_calls.sql")),
        migration(80, "record_changes", include_str!("../../migrations/sqlite/0080_record_changes.sql")),
    ])
}

/// Brings the schema up to this binary's.
pub(super) async fn migrate(conn: &mut SqliteConnection) -> Result<()> {
    refuse_newer(conn).await?;
    migrator()
        .run_direct(None, conn, false)
        .await
        .map_err(|error| Error::Unfit(format!("cannot migrate the database: {error}")))
}

/// Refuses a schema that is not this binary's.
pub(super) async fn check(conn: &mut SqliteConnection) -> Result<()> {
    refuse_newer(conn).await?;
    let (found, known) = (version(conn).await?, latest());
    if found < known {
        return Err(Error::Unfit(format!(
            "the database's schema is {found}, this binary's is {known}: run `dalsegno migrate`"
        )));
    }
    Ok(())
}

async fn refuse_newer(conn: &mut SqliteConnection) -> Result<()> {
    let (found, known) = (version(conn).await?, latest());
    if found > known {
        return Err(Error::Unfit(format!(
            "the database's schema is {found}, newer than this binary's ({known}): a newer dalsegno has used it"
        )));
    }
    Ok(())
}

/// The last migration that was applied; 0: none.
async fn version(conn: &mut SqliteConnection) -> Result<i64> {
    let unreadable = |error: sqlx::Error| Error::Unfit(format!("cannot read the database: {error}"));
    let migrated: bool =
        sqlx::query_scalar("SELECT count(*) FROM sqlite_schema WHERE name = '_sqlx_migrations'")
            .fetch_one(&mut *conn)
            .await
            .map_err(unreadable)?;
    if !migrated {
        return Ok(0);
    }
    sqlx::query_scalar("SELECT coalesce(max(version), 0) FROM _sqlx_migrations WHERE success")
        .fetch_one(conn)
        .await
        .map_err(unreadable)
}

fn latest() -> i64 {
    migrator().iter().map(|migration| migration.version).max().unwrap_or_default()
}
