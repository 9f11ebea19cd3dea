//! Migrations, and schemas of another version.

use std::time::{Duration, Instant};

use dalsegno_model::{Error, Read as _};
use dalsegno_store::postgres::Postgres;
use futures::future::join_all;
use sqlx::{Connection as _, Executor as _, PgConnection};
use tokio::time::sleep;

use crate::pg;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_migrations_all_succeed() {
    let url = pg::empty_database().await;
    for migrated in join_all((0..5).map(|_| Postgres::migrate(&url))).await {
        migrated.unwrap();
    }
    let store = Postgres::connect(&url).await.unwrap();
    let id = store.id().await.unwrap();
    Postgres::migrate(&url).await.unwrap();
    assert_eq!(Postgres::connect(&url).await.unwrap().id().await.unwrap(), id, "the id is created once");
}

#[tokio::test]
async fn another_database_at_the_same_address_has_another_id() {
    let url = pg::database().await;
    let store = Postgres::connect(&url).await.unwrap();
    let before = store.id().await.unwrap();
    execute(&url, "UPDATE store SET id = gen_random_uuid()").await;
    assert_ne!(store.id().await.unwrap(), before, "an anchor must not be signed for another store");
}

#[tokio::test]
async fn an_unmigrated_database_is_refused() {
    let url = pg::empty_database().await;
    refused(&url, "run `dalsegno migrate`").await;
}

#[tokio::test]
async fn an_older_schema_is_refused_until_it_is_migrated() {
    let url = pg::database().await;
    execute(&url, "DELETE FROM _sqlx_migrations WHERE version = (SELECT max(version) FROM _sqlx_migrations)")
        .await;
    refused(&url, "run `dalsegno migrate`").await;
}

/// A migration of a newer program.
const FUTURE: &str = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
     VALUES (9999, 'the future', true, '', 0)";

/// After a roll-back, and while an upgrade rolls from one pod to the next.
#[tokio::test]
async fn a_newer_schema_is_used_if_it_is_readable_since_this_version() {
    let url = pg::database().await;
    execute(&url, FUTURE).await;
    Postgres::connect(&url).await.unwrap().id().await.unwrap();
    Postgres::migrate(&url).await.unwrap();
}

#[tokio::test]
async fn a_newer_schema_that_needs_a_newer_program_is_refused() {
    let url = pg::database().await;
    execute(&url, FUTURE).await;
    execute(&url, "UPDATE store SET readable_since = 9998").await;
    refused(&url, "needs a dalsegno whose schema is 9998 or newer").await;
    let error = Postgres::migrate(&url).await.unwrap_err();
    assert!(error.to_string().contains("newer than this binary's"), "{error}");
}

/// Such as a dump. A statement that waits for a table's lock lets no later one pass.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migration_waits_for_a_lock_only_for_moments_and_is_repeated() {
    let url = pg::empty_database().await;
    let mut holder = PgConnection::connect(&url).await.unwrap();
    let mut transaction = holder.begin().await.unwrap();
    // The migration creates this table too, and waits for the end of this transaction.
    transaction.execute("CREATE TABLE runs (id integer)").await.unwrap();
    let migration = {
        let url = url.clone();
        tokio::spawn(async move { Postgres::migrate(&url).await })
    };
    let mut observer = PgConnection::connect(&url).await.unwrap();
    let mut longest = 0.0_f64;
    let mut waited = false;
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(9) {
        let waits: Option<f64> = sqlx::query_scalar(
            "SELECT max(extract(epoch FROM clock_timestamp() - query_start))::float8 FROM pg_stat_activity \
             WHERE datname = current_database() AND wait_event_type = 'Lock'",
        )
        .fetch_one(&mut observer)
        .await
        .unwrap();
        waited |= waits.is_some();
        longest = longest.max(waits.unwrap_or_default());
        sleep(Duration::from_millis(50)).await;
    }
    assert!(waited, "the migration needs the lock");
    assert!(longest < 5.0, "it waited for {longest} s at once");
    transaction.rollback().await.unwrap();
    migration.await.unwrap().unwrap();
    Postgres::connect(&url).await.unwrap();
}

#[tokio::test]
async fn a_store_of_an_earlier_development_build_is_refused() {
    let url = pg::database().await;
    execute(&url, "UPDATE _sqlx_migrations SET description = 'runs'").await;
    execute(
        &url,
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
         VALUES (71, 'open_calls', true, '', 0)",
    )
    .await;
    refused(&url, "an earlier development build").await;
    let error = Postgres::migrate(&url).await.unwrap_err();
    assert!(error.to_string().contains("start with an empty database"), "{error}");
}

#[tokio::test]
async fn an_edited_migration_is_refused() {
    let url = pg::database().await;
    execute(&url, "UPDATE _sqlx_migrations SET checksum = '' WHERE version = 1").await;
    let error = Postgres::migrate(&url).await.unwrap_err();
    assert!(matches!(error, Error::Unusable(_)), "{error:?}");
}

async fn execute(url: &str, sql: &'static str) {
    let mut conn = PgConnection::connect(url).await.unwrap();
    conn.execute(sql).await.unwrap();
    conn.close().await.unwrap();
}

async fn refused(url: &str, why: &str) {
    match Postgres::connect(url).await {
        Err(Error::Unusable(reason)) => assert!(reason.contains(why), "{reason}"),
        other => panic!("{other:?}"),
    }
}
