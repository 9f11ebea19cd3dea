//! Whether a database may be trusted with what it acknowledges.

use sqlx::{PgConnection, Row as _};

use crate::db_error::{DbError, DbResult};

/// The oldest server that has all that the migrations use.
const OLDEST: i32 = 140_000;

/// Refuses a server that may lose what it has acknowledged, or whose transactions would be judged otherwise than they
/// are written. Asked on every new connection: a failover may lead to a server with other settings.
pub(super) async fn check_settings(conn: &mut PgConnection) -> DbResult<()> {
    // As a simple query: one round trip, and nothing that a pooler would have to keep.
    let row = sqlx::raw_sql(
        "SELECT current_setting('fsync') AS fsync, \
                current_setting('synchronous_commit') AS synchronous_commit, \
                current_setting('default_transaction_isolation') AS isolation, \
                current_setting('server_encoding') AS encoding, \
                current_setting('server_version_num')::integer AS version, \
                pg_is_in_recovery() AS standby",
    )
    .fetch_one(conn)
    .await?;
    if row.try_get::<bool, _>("standby")? {
        // What a failover leaves behind for a while.
        return Err(DbError::unavailable("the server is a standby and takes no writes"));
    }
    let version: i32 = row.try_get("version")?;
    if version < OLDEST {
        return Err(DbError::Unusable(format!(
            "the server's version is {version}, and {OLDEST} is the oldest that will do"
        )));
    }
    if row.try_get::<&str, _>("fsync")? == "off" {
        return wrong("fsync", "off", "a power cut would lose turns that were acknowledged");
    }
    if row.try_get::<&str, _>("synchronous_commit")? == "off" {
        return wrong(
            "synchronous_commit",
            "off",
            "a crash would lose turns that were acknowledged; set it to on for this role or database",
        );
    }
    match row.try_get("isolation")? {
        "read committed" => {}
        other => {
            return wrong(
                "default_transaction_isolation",
                other,
                "a write is judged by the row as it stands under its lock, and that needs read committed",
            );
        }
    }
    match row.try_get("encoding")? {
        "UTF8" => Ok(()),
        other => wrong("server_encoding", other, "texts are hashed and kept as UTF8"),
    }
}

fn wrong(setting: &str, value: &str, why: &str) -> DbResult<()> {
    Err(DbError::Unusable(format!("the server has {setting} = {value}: {why}")))
}
