//! Rights for a role other than the migrating one: on everything that is migrated, and on nothing else.

use dalsegno_model::Error;
use dalsegno_store::grant;
use dalsegno_store::postgres::Postgres;
use futures::future::join_all;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};

use crate::pg;

/// Runs statements in order.
async fn execute(url: &str, statements: &[&str]) {
    let mut conn = PgConnection::connect(url).await.unwrap();
    for sql in statements {
        conn.execute(AssertSqlSafe((*sql).to_owned())).await.unwrap();
    }
    conn.close().await.unwrap();
}

async fn ask(url: &str, sql: &'static str) -> Option<String> {
    let mut conn = PgConnection::connect(url).await.unwrap();
    sqlx::query_scalar(sql).fetch_one(&mut conn).await.unwrap()
}

/// The URL of the same database for this role.
fn as_role(url: &str, role: &str) -> String {
    url.replacen("postgres@", &format!("{role}@"), 1)
}

async fn refused(url: &str, role: &str, why: &str) {
    match grant(url, role).await {
        Err(Error::Unusable(message)) => assert!(message.contains(why), "{message}"),
        other => panic!("{role}, {why}: {other:?}"),
    }
}

#[tokio::test]
async fn a_granted_role_reads_migrated_tables_and_nothing_else() {
    let url = pg::database().await;
    execute(
        &url,
        &[
            "CREATE ROLE narrow",
            "CREATE ROLE other_owner",
            "CREATE TABLE payroll ()",
            "CREATE TABLE strange ()",
            "ALTER TABLE strange OWNER TO other_owner",
        ],
    )
    .await;
    grant(&url, "narrow").await.unwrap();
    let closed = "SELECT string_agg(relname, ' ' ORDER BY relname) FROM pg_class \
         WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'f') \
           AND NOT has_table_privilege('narrow', oid, 'SELECT')";
    assert_eq!(ask(&url, closed).await.unwrap(), "payroll strange");
    // The sequence of an identity column needs no right of its own.
    let sequences = "SELECT string_agg(relname, ' ') FROM pg_class c \
         WHERE relkind = 'S' AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'i')";
    assert_eq!(ask(&url, sequences).await, None);
    let functions = "SELECT string_agg(proname, ' ') FROM pg_proc \
         WHERE pronamespace = 'public'::regnamespace AND NOT has_function_privilege('narrow', oid, 'EXECUTE')";
    assert_eq!(ask(&url, functions).await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_grants_all_succeed() {
    let url = pg::database().await;
    execute(&url, &["CREATE ROLE crowded"]).await;
    for granted in join_all((0..8).map(|_| grant(&url, "crowded"))).await {
        granted.unwrap();
    }
}

/// Up to PostgreSQL 14 everybody may create objects in the schema `public`, and an upgrade keeps that.
#[tokio::test]
async fn a_granted_role_cannot_create_a_function_that_the_owner_would_run() {
    let url = pg::database().await;
    execute(&url, &["GRANT CREATE ON SCHEMA public TO PUBLIC", "CREATE ROLE planter LOGIN"]).await;
    grant(&url, "planter").await.unwrap();
    let mut conn = PgConnection::connect(&as_role(&url, "planter")).await.unwrap();
    let plant =
        "CREATE FUNCTION jsonb_build_object(text, bigint) RETURNS jsonb LANGUAGE sql AS 'SELECT NULL::jsonb'";
    let message = conn.execute(plant).await.unwrap_err().to_string();
    assert!(message.contains("permission denied for schema public"), "{message}");
}

#[tokio::test]
async fn a_grant_is_refused_to_a_role_that_may_create_in_the_schema() {
    let url = pg::empty_database().await;
    let owner = as_role(&url, "migrates");
    let database = ask(&url, "SELECT current_database()::text").await.unwrap();
    execute(
        &url,
        &[
            "CREATE ROLE migrates LOGIN",
            "CREATE ROLE works NOINHERIT",
            "CREATE ROLE team",
            "GRANT CREATE, USAGE ON SCHEMA public TO PUBLIC",
        ],
    )
    .await;
    Postgres::migrate(&owner).await.unwrap();
    // `migrates` does not own the schema, so it cannot revoke the right.
    refused(&owner, "works", "as works it may create").await;
    execute(
        &url,
        &[
            "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
            "GRANT CREATE ON SCHEMA public TO migrates, team",
            "GRANT team TO works",
        ],
    )
    .await;
    refused(&owner, "works", "as team it may create").await;
    execute(&url, &["REVOKE team FROM works", &format!("GRANT CREATE ON DATABASE {database} TO works")])
        .await;
    refused(&owner, "works", "as works it may create").await;
    execute(&url, &[&format!("REVOKE CREATE ON DATABASE {database} FROM works")]).await;
    grant(&owner, "works").await.unwrap();
}

#[tokio::test]
async fn a_grant_is_refused_to_a_role_that_may_act_as_the_owner() {
    let url = pg::database().await;
    execute(
        &url,
        &[
            "CREATE ROLE almighty SUPERUSER",
            "CREATE ROLE member NOINHERIT IN ROLE postgres",
            "CREATE ROLE maker CREATEROLE",
        ],
    )
    .await;
    for role in ["postgres", "almighty", "member", "maker"] {
        refused(&url, role, "for another role").await;
    }
}
