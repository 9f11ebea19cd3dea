//! Rights are given to another role than the one that migrates: to all that is migrated, and to nothing else.

use dalsegno_store::grant;
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
