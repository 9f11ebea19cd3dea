//! A server that may lose acknowledged commits is refused.

use dalsegno_model::Error;
use dalsegno_store::postgres::Postgres;
use sqlx::{Connection as _, Executor as _, PgConnection};

use crate::pg::{self, Server};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_fsync_is_refused() {
    let server = Server::start(&["-c", "fsync=off"]);
    let url = server.url("postgres");
    refused(&url, "fsync = off").await;
    let error = Postgres::migrate(&url).await.unwrap_err();
    assert!(error.to_string().contains("fsync = off"), "{error}");
}

#[tokio::test]
async fn a_database_that_commits_asynchronously_is_refused() {
    refused(&with("synchronous_commit = off").await, "synchronous_commit = off").await;
}

#[tokio::test]
async fn every_isolation_level_but_read_committed_is_refused() {
    refused(
        &with("default_transaction_isolation = 'repeatable read'").await,
        "default_transaction_isolation = repeatable read",
    )
    .await;
    refused(
        &with("default_transaction_isolation = 'serializable'").await,
        "default_transaction_isolation = serializable",
    )
    .await;
}

#[tokio::test]
async fn migrate_and_grant_through_pgbouncer_are_refused() {
    let url = format!("{}&pgbouncer=true", pg::empty_database().await);
    for refused in [Postgres::migrate(&url).await, Postgres::grant(&url, "narrow").await] {
        let Err(Error::Unusable(message)) = refused else { panic!("{refused:?}") };
        assert!(message.contains("postgres.migrationSecret"), "{message}");
    }
}

#[tokio::test]
async fn an_error_never_shows_a_password() {
    let wrong = "postgres://user:secret@/database";
    let error = Postgres::connect(wrong).await.unwrap_err();
    assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
}

/// A database with this setting.
async fn with(setting: &str) -> String {
    let url = pg::database().await;
    let mut conn = PgConnection::connect(&url).await.unwrap();
    let database: String =
        sqlx::query_scalar("SELECT current_database()::text").fetch_one(&mut conn).await.unwrap();
    conn.execute(sqlx::AssertSqlSafe(format!("ALTER DATABASE {database} SET {setting}"))).await.unwrap();
    conn.close().await.unwrap();
    url
}

async fn refused(url: &str, why: &str) {
    match Postgres::connect(url).await {
        Err(Error::Unusable(reason)) => assert!(reason.contains(why), "{reason}"),
        other => panic!("{other:?}"),
    }
}
