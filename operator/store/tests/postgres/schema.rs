//! Migrations, and schemas of another version.

use dalsegno_model::{Error, Read as _};
use dalsegno_store::postgres::Postgres;
use futures::future::join_all;
use sqlx::{Connection as _, Executor as _, PgConnection};

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

#[tokio::test]
async fn a_newer_schema_is_refused() {
    let url = pg::database().await;
    execute(
        &url,
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
         VALUES (9999, 'the future', true, '', 0)",
    )
    .await;
    refused(&url, "newer than this binary's").await;
    let error = Postgres::migrate(&url).await.unwrap_err();
    assert!(error.to_string().contains("newer than this binary's"), "{error}");
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
