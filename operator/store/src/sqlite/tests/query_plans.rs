//! Query plans: they show the cost without many rows.

use sqlx::Row as _;
use uuid::Uuid;

use super::file;
use crate::reads::{BOUNDARY_FACTS, LED_BY, PAST_CALLS_SQL};
use crate::sqlite::calls::{NEXT_ORDINAL, list_sql};
use crate::sqlite::deadline_poll::{ACTIVE, CHANGED, EXPIRED};
use crate::sqlite::open_calls::BYTES;
use crate::sqlite::waits::MOVE_RATE_LIMIT;
use crate::sqlite::{compaction, read, record_reads, retention};
use crate::statements::{RATE_LIMIT_QUEUE, UNREAD_MESSAGE, WAITS_OF_RUN};
use dalsegno_model::CallFilter;
use dalsegno_protocol::RecordOrder;

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

/// A run may have had thousands of waits, which must cost nothing while a worker attaches, waits again or gets a message.
#[tokio::test]
async fn waits_of_a_long_life_are_not_read() {
    let (_dir, store) = file().await;
    let answered = "waits_answered (run=? AND answered_at>?)";
    for (sql, indexes) in [
        (WAITS_OF_RUN.clone(), &["waits_open (run=?)", answered][..]),
        (RATE_LIMIT_QUEUE.to_owned(), &["waits_by_provider (provider=?)", answered]),
        (UNREAD_MESSAGE.to_owned(), &["waits_by_message (run=? AND position=?)"]),
        (MOVE_RATE_LIMIT.to_owned(), &["waits_by_provider (provider=?)"]),
    ] {
        let explain = sqlx::AssertSqlSafe(format!("EXPLAIN QUERY PLAN {sql}"));
        let steps = store
            .write("reading", |conn, _| {
                Box::pin(async move {
                    let query = sqlx::query(explain).bind(Uuid::nil()).bind("t").bind("p").bind(0).bind(0);
                    Ok(query.fetch_all(conn).await?)
                })
            })
            .await
            .unwrap();
        let steps: Vec<String> = steps.iter().map(|step| step.get("detail")).collect();
        let is_of_waits = |step: &&String| step.contains(" waits ") || step.contains(" other ");
        let waits: Vec<_> = steps.iter().filter(is_of_waits).collect();
        let found = waits.iter().zip(indexes).all(|(step, index)| step.ends_with(index));
        let runs_by_id =
            steps.iter().filter(|step| step.contains(" runs ")).all(|step| step.ends_with("(id=?)"));
        assert!(found && runs_by_id && waits.len() == indexes.len(), "{sql}: {steps:#?}");
    }
}

/// A run may have a million boundaries. The sum at its head costs the head, and the calls, which are counted anyway.
#[tokio::test]
async fn the_facts_of_a_boundary_are_found_by_indexes() {
    let (_dir, store) = file().await;
    for sql in [BOUNDARY_FACTS, PAST_CALLS_SQL.as_str(), LED_BY] {
        let explain = sqlx::AssertSqlSafe(format!("EXPLAIN QUERY PLAN {sql}"));
        let parameters = (1..=6).filter(|number| sql.contains(&format!("${number}")));
        let last = parameters.max().unwrap_or_default();
        let steps = store
            .write("reading", move |conn, _| {
                Box::pin(async move {
                    let query = (1..last).fold(sqlx::query(explain).bind(Uuid::nil()), |it, _| it.bind(0));
                    Ok(query.fetch_all(conn).await?)
                })
            })
            .await
            .unwrap();
        let steps: Vec<String> = steps.iter().map(|step| step.get("detail")).collect();
        let scans = ["SCAN later", "SCAN spent", "SCAN latest", "SCAN page"];
        let is_scan = |step: &&String| {
            step.starts_with("SCAN ")
                && !scans.iter().any(|scan| step.starts_with(scan))
                && !step.contains("CONSTANT")
                && !step.contains("(subquery-")
        };
        assert_eq!(steps.iter().find(is_scan), None, "{sql}: {steps:#?}");
        if sql == BOUNDARY_FACTS {
            let range = "SEARCH boundaries USING INDEX sqlite_autoindex_boundaries_1 (run=? AND turn>?)";
            assert!(steps.iter().any(|step| step == range), "{steps:#?}");
            let is_spent = |step: &String| step.ends_with("calls_spent (run=? AND spent_at>?)");
            assert!(steps.iter().any(is_spent), "{steps:#?}");
        }
    }
}

/// A space may have many keys: each step has a bound that ends at the prefix.
#[tokio::test]
async fn pages_of_records_read_the_keys_within_their_bounds() {
    let (_dir, store) = file().await;
    for order in [RecordOrder::Asc, RecordOrder::Desc] {
        for sql in [record_reads::page_sql(order), record_reads::keys_sql(order)] {
            let explain = sqlx::AssertSqlSafe(format!("EXPLAIN QUERY PLAN {sql}"));
            let steps = store
                .write("reading", |conn, _| {
                    Box::pin(async move {
                        let query =
                            sqlx::query(explain).bind(Uuid::nil()).bind("s").bind("a").bind(0).bind("b");
                        Ok(query.bind(1).bind(1).fetch_all(conn).await?)
                    })
                })
                .await
                .unwrap();
            let steps: Vec<String> = steps.iter().map(|step| step.get("detail")).collect();
            let within = [
                "(run=? AND space=? AND key>? AND key<?)",
                "(run=? AND space=? AND (key,seq)>(?,?) AND key<?)",
            ];
            let bounded = steps.iter().filter(|step| within.iter().any(|it| step.ends_with(it))).count();
            assert_eq!(bounded, 2, "the first key and the next one: {steps:#?}");
            let is_scan = |step: &&String| step.starts_with("SCAN records") || step.starts_with("SCAN r ");
            assert_eq!(steps.iter().find(is_scan), None, "{steps:#?}");
        }
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
