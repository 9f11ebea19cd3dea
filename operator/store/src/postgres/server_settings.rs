//! The settings of a server that the store relies on.

use std::sync::Once;

use sqlx::{PgConnection, Row as _};

use crate::db_error::{DbError, DbResult};

/// The oldest version with everything that the migrations use, as `server_version_num`.
const OLDEST_VERSION: i32 = 140_000;

/// What serves a connection on the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Backend {
    pub pid: i32,
    /// When it was started: a later backend may get the same `pid`.
    pub started: String,
}

/// What a process does with the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// It writes: only a primary will do.
    ReadWrite,
    /// It only reads: a standby will do.
    ReadOnly,
}

/// Refuses a server that may lose writes it has acknowledged, or whose isolation level is not the one that the
/// statements assume. Checked on every new connection: after a failover the server may have other settings.
///
/// Of a server that is only read from, neither matters, and it may be a standby.
pub(super) async fn check_settings(conn: &mut PgConnection, access: Access) -> DbResult<Backend> {
    // A simple query: one round trip, and no prepared statement that a pooler would have to keep.
    let row = sqlx::raw_sql(
        "SELECT current_setting('fsync') AS fsync, \
                current_setting('synchronous_commit') AS synchronous_commit, \
                current_setting('full_page_writes') AS full_page_writes, \
                current_setting('default_transaction_isolation') AS isolation, \
                current_setting('server_encoding') AS encoding, \
                current_setting('server_version_num')::integer AS version, \
                pg_is_in_recovery() AS standby, \
                pg_backend_pid() AS pid, \
                (SELECT backend_start FROM pg_stat_get_activity(pg_backend_pid()))::text AS started",
    )
    .fetch_one(conn)
    .await?;
    if access == Access::ReadWrite && row.try_get::<bool, _>("standby")? {
        // Temporary: after a failover the address may still lead to the old server.
        return Err(DbError::unavailable("the server is a standby and accepts no writes"));
    }
    let version: i32 = row.try_get("version")?;
    if version < OLDEST_VERSION {
        return Err(DbError::Unusable(format!(
            "the server has version {version}; {OLDEST_VERSION} or newer is required"
        )));
    }
    let backend = Backend { pid: row.try_get("pid")?, started: row.try_get("started")? };
    if access == Access::ReadOnly {
        return Ok(backend);
    }
    if row.try_get::<&str, _>("fsync")? == "off" {
        return refused("fsync", "off", "a power failure would lose turns that were acknowledged");
    }
    if row.try_get::<&str, _>("synchronous_commit")? == "off" {
        return refused(
            "synchronous_commit",
            "off",
            "a crash would lose turns that were acknowledged; set it to on for this role or database",
        );
    }
    if row.try_get::<&str, _>("full_page_writes")? == "off" {
        warn_of_torn_pages();
    }
    match row.try_get("isolation")? {
        "read committed" => {}
        other => {
            return refused(
                "default_transaction_isolation",
                other,
                "writes check a row after they have locked it, which requires read committed",
            );
        }
    }
    match row.try_get("encoding")? {
        "UTF8" => Ok(backend),
        other => refused("server_encoding", other, "texts are hashed and stored as UTF8"),
    }
}

/// Not refused: on storage that never writes a part of a page, such as ZFS and some managed services, the setting is
/// right. Nobody can ask the server whether it is on such storage.
fn warn_of_torn_pages() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tracing::warn!(
            "the server has full_page_writes = off: unless its storage writes each page as a whole, a power failure may \
             damage pages that hold turns, and no replay of its log repairs them"
        );
    });
}

fn refused(setting: &str, value: &str, why: &str) -> DbResult<Backend> {
    Err(DbError::Unusable(format!("the server has {setting} = {value}: {why}")))
}
