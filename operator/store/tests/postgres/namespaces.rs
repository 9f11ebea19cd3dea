//! A namespace with many runs is adopted in pages, each within the time of a statement.

use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};

use crate::{fresh, open};

/// Copies the only run this often, with other ids. A computed column cannot be written.
const COPY: &str = "DO $$ DECLARE columns_ text; values_ text; BEGIN \
     SELECT string_agg(attname, ', '), string_agg(CASE attname \
            WHEN 'id' THEN 'gen_random_uuid()' \
            WHEN 'object_uid' THEN '''object-'' || nth' \
            WHEN 'name' THEN '''run-'' || nth' ELSE attname END, ', ') \
     INTO columns_, values_ FROM pg_attribute \
     WHERE attrelid = 'runs'::regclass AND attnum > 0 AND attgenerated = '' AND NOT attisdropped; \
     EXECUTE format('INSERT INTO runs (%s) SELECT %s FROM runs, generate_series(1, {runs}) AS nth', columns_, values_); \
     END $$";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn seventy_thousand_runs_of_a_namespace_are_adopted() {
    let (_, url) = fresh().await;
    let cx = open(&url).await;
    cx.run().await;
    let mut conn = PgConnection::connect(&url).await.unwrap();
    let copy = AssertSqlSafe(COPY.replace("{runs}", "69999"));
    conn.execute(sqlx::raw_sql(copy)).await.unwrap();
    assert_eq!(cx.adopt_namespace("tenant-1", "tenant-2").await.unwrap(), 70_000);
    let sql = "SELECT count(*) FROM runs JOIN audit ON run = id AND seq = audit_seq \
               WHERE tenant = 'tenant-2' AND kind = 'namespace-adopted'";
    let moved: i64 = sqlx::query_scalar(sql).fetch_one(&mut conn).await.unwrap();
    assert_eq!(moved, 70_000);
    assert_eq!(cx.adopt_namespace("tenant-1", "tenant-2").await.unwrap(), 0);
}
