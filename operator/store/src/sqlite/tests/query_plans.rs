//! Query plans: they show the cost without many rows.

use sqlx::Row as _;
use uuid::Uuid;

use super::file;
use crate::sqlite::calls::{NEXT_ORDINAL, list_sql};
use crate::sqlite::deadline_poll::{ACTIVE, CHANGED, EXPIRED};
use crate::sqlite::open_calls::BYTES;
use crate::sqlite::{compaction, read, retention};
use dalsegno_model::CallFilter;

#[tokio::test]
async fn calls_are_found_by_an_index() {
    let (_dir, store) = file().await;
    for (sql, indexes) in [
        (list_sql(CallFilter::Pending), &["calls_by_turn (run=? AND turn=?)", "calls_started (run=?)"][..]),
        (BYTES.to_owned(), &["calls_started (run=?)", "calls_by_turn (run=? AND turn=?)"]),
        (list_sql(CallFilter::Unsettled), &["calls_started (run=?)"]),
        (list_sql(CallFilter::OpenTurn), &["calls_by_turn (run=? AND turn=?)"]),
        (NEXT_ORDINAL.to_owned(), &["COVERING INDEX sqlite_autoindex_calls_2 (run=?)"]),
    ] {
        let explain = sqlx::AssertSqlSafe(format!("EXPLAIN QUERY PLAN {sql}"));
        let steps = store
            .write("reading", |conn, _| {
                Box::pin(async move { Ok(sqlx::query(explain).bind(Uuid::nil()).fetch_all(conn).await?) })
            })
            .await
            .unwrap();
        let steps: Vec<String> = steps.iter().map(|step| step.get("detail")).collect();
        let calls: Vec<_> = steps.iter().filter(|step| step.starts_with("SEARCH calls")).collect();
        let found = calls.iter().zip(indexes).all(|(step, index)| step.ends_with(index));
        let sorts = steps.iter().any(|step| step.contains("TEMP B-TREE"));
        assert!(found && calls.len() == indexes.len() && !sorts, "{sql}: {steps:#?}");
    }
}

/// What runs every second or every minute must not look at all runs that ever were.
#[tokio::test]
async fn polls_read_no_run_whose_data_is_gone() {
    let (_dir, store) = file().await;
    for (sql, indexes) in [
        (EXPIRED.to_owned(), &["runs_live"][..]),
        (CHANGED.to_owned(), &["runs_live", "runs_finished (changed_at>?)"]),
        (ACTIVE.to_owned(), &["runs_live"]),
        (read::NAMESPACE_USAGE.to_owned(), &["runs_with_payloads"]),
        (retention::runs_to_expire_sql(), &["runs_to_expire (<expr><?)"]),
        (compaction::RUNS_TO_COMPACT.to_owned(), &["runs_to_compact (id>?)"]),
    ] {
        let explain = sqlx::AssertSqlSafe(format!("EXPLAIN QUERY PLAN {sql}"));
        let steps = store
            .write("reading", |conn, _| {
                Box::pin(
                    async move { Ok(sqlx::query(explain).bind(0).bind(0).bind(0).fetch_all(conn).await?) },
                )
            })
            .await
            .unwrap();
        let steps: Vec<String> = steps.iter().map(|step| step.get("detail")).collect();
        let runs: Vec<_> = steps.iter().filter(|step| step.contains(" runs ")).collect();
        let found = runs.iter().zip(indexes).all(|(step, index)| step.ends_with(index));
        assert!(found && runs.len() == indexes.len(), "{sql}: {steps:#?}");
    }
}
