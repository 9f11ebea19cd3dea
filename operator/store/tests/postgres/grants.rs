//! Rights are given to another role than the one that migrates: to all that is migrated, and to nothing else.

use dalsegno_store::postgres::Postgres;
use dalsegno_store::{Error, grant};
use futures::future::join_all;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};

use crate::pg;

/// Runs statements, one after the other.
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

/// The same database, as this role reaches it.
fn as_role(url: &str, role: &str) -> String {
    url.replacen("postgres@", &format!("{role}@"), 1)
}

async fn refused(url: &str, role: &str, why: &str) {
    match grant(url, role).await {
        Err(Error::Unfit(told)) => assert!(told.contains(why), "{told}"),
        other => panic!("{role}, {why}: {other:?}"),
    }
}

#[tokio::test]
async fn all_that_is_migrated_can_be_read_and_nothing_else() {
    let url = pg::database().await;
    execute(
        &url,
        &[
            "CREATE ROLE narrow",
            "CREATE ROLE stranger",
            "CREATE TABLE payroll ()",
            "CREATE TABLE strange ()",
            "ALTER TABLE strange OWNER TO stranger",
        ],
    )
    .await;
    grant(&url, "narrow").await.unwrap();
    let closed = "SELECT string_agg(relname, ' ' ORDER BY relname) FROM pg_class \
         WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'f') \
           AND NOT has_table_privilege('narrow', oid, 'SELECT')";
    assert_eq!(ask(&url, closed).await.unwrap(), "payroll strange");
    // Of a sequence that a column was declared with nobody needs a right.
    let sequences = "SELECT string_agg(relname, ' ') FROM pg_class c \
         WHERE relkind = 'S' AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'i')";
    assert_eq!(ask(&url, sequences).await, None);
    let functions = "SELECT string_agg(proname, ' ') FROM pg_proc \
         WHERE pronamespace = 'public'::regnamespace AND NOT has_function_privilege('narrow', oid, 'EXECUTE')";
    assert_eq!(ask(&url, functions).await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_may_grant_at_once() {
    let url = pg::database().await;
    execute(&url, &["CREATE ROLE crowded"]).await;
    for granted in join_all((0..8).map(|_| grant(&url, "crowded"))).await {
        granted.unwrap();
    }
}

/// Up to PostgreSQL 14 everybody may create in the schema `public`, and an upgrade keeps that.
#[tokio::test]
async fn who_works_plants_no_function_that_the_owner_would_run() {
    let url = pg::database().await;
    execute(&url, &["GRANT CREATE ON SCHEMA public TO PUBLIC", "CREATE ROLE planter LOGIN"]).await;
    grant(&url, "planter").await.unwrap();
    let mut conn = PgConnection::connect(&as_role(&url, "planter")).await.unwrap();
    let plant =
        "CREATE FUNCTION jsonb_build_object(text, bigint) RETURNS jsonb LANGUAGE sql AS 'SELECT NULL::jsonb'";
    let told = conn.execute(plant).await.unwrap_err().to_string();
    assert!(told.contains("permission denied for schema public"), "{told}");
}

#[tokio::test]
async fn rights_are_refused_to_who_may_create_what_the_owner_would_run() {
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
    // The schema is not its own: it can take nothing away.
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
async fn rights_are_refused_to_who_may_act_as_the_owner() {
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
