//! Tests that need the store's internals: the writer's transactions, a full disk, deadlines that are minutes away.

mod query_plans;
mod state_counting;
mod unsynced_commits;
mod volume_reads;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sqlx::{Row as _, SqliteConnection};
use uuid::Uuid;

use super::database::Sqlite;
use super::writer::Durability;
use crate::db_error::DbError;
use dalsegno_model::{Deadline, Deadlines, Error, LookUp, NewRun, OnPrior, Operator as _, Template};

async fn file() -> (tempfile::TempDir, Sqlite) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("runs.db");
    Sqlite::migrate(&path).await.unwrap();
    let store = Sqlite::open(&path).await.unwrap();
    (dir, store)
}

fn template(hash: &str, document: &str) -> Template {
    Template { hash: hash.to_owned(), document: document.to_owned() }
}

fn new_run() -> NewRun {
    let id = Uuid::now_v7();
    NewRun {
        id,
        tenant: "tenant".into(),
        namespace: "agents".into(),
        name: format!("run-{id}"),
        object_uid: format!("object-{id}"),
        reset_generation: 0,
        rewind_generation: 0,
        is_fork: false,
        is_external: false,
        deadlines: Deadlines {
            heartbeat_ms: 60_000,
            start_ms: 60_000,
            progress_ms: 60_000,
            suspend_ms: 60_000,
        },
        on_prior: OnPrior::Hold,
    }
}

async fn execute(store: &Sqlite, sql: &'static str) {
    store
        .write("preparing a test", move |conn, _| {
            Box::pin(async move {
                sqlx::query(sql).execute(conn).await?;
                Ok(())
            })
        })
        .await
        .unwrap();
}

async fn pragma(conn: &mut SqliteConnection, sql: &'static str) -> Result<i64, DbError> {
    Ok(sqlx::query(sql).fetch_one(conn).await?.try_get(0)?)
}

#[tokio::test]
async fn only_unsynced_writes_are_committed_without_a_sync() {
    let (_dir, store) = file().await;
    const NORMAL: i64 = 1;
    const FULL: i64 = 2;
    for (durability, expected) in [
        (Durability::Synced, FULL),
        (Durability::Unsynced, NORMAL),
        (Durability::Unsynced, NORMAL),
        (Durability::Synced, FULL),
    ] {
        let synchronous = store
            .submit(durability, "reading", |conn, _| Box::pin(pragma(conn, "PRAGMA synchronous")))
            .await
            .unwrap();
        assert_eq!(synchronous, expected, "{durability:?}");
    }
    let journal: String = store
        .write("reading", |conn, _| {
            Box::pin(async { Ok(sqlx::query_scalar("PRAGMA journal_mode").fetch_one(conn).await?) })
        })
        .await
        .unwrap();
    assert_eq!(journal, "wal");
    let keys = store.write("reading", |conn, _| Box::pin(pragma(conn, "PRAGMA foreign_keys"))).await.unwrap();
    assert_eq!(keys, 1);
}

#[tokio::test]
async fn an_operation_that_fails_does_not_affect_the_others_of_its_transaction() {
    let (_dir, store) = file().await;
    let broken = || {
        store.write("failing", |conn, now| {
            Box::pin(async move {
                sqlx::query("INSERT INTO revisions (hash, document, created_at) VALUES ('broken', '', ?)")
                    .bind(now)
                    .execute(&mut *conn)
                    .await?;
                sqlx::query("INSERT INTO no_such_table VALUES (1)").execute(conn).await?;
                Ok(())
            })
        })
    };
    let (run, other) = (new_run(), new_run());
    store.create_run(&run).await.unwrap();
    store.create_run(&other).await.unwrap();
    let alone = broken().await;
    assert!(matches!(alone, Err(Error::Unavailable { .. })), "{alone:?}");
    // Submitted together, so that they share a transaction.
    let (first, second) = (template("first", "1"), template("second", "2"));
    let (first, failed, second) = tokio::join!(
        store.put_revision(run.id, 1, &first),
        broken(),
        store.put_revision(other.id, 1, &second)
    );
    assert!(matches!(failed, Err(Error::Unavailable { operation: "failing", .. })), "{failed:?}");
    first.unwrap();
    second.unwrap();
    assert_eq!(store.get_revision("first").await.unwrap().as_deref(), Some("1"));
    assert_eq!(store.get_revision("second").await.unwrap().as_deref(), Some("2"));
    assert_eq!(
        store.get_revision("broken").await.unwrap(),
        None,
        "the writes of the failed operation are undone"
    );
}

#[tokio::test]
async fn a_write_whose_caller_is_cancelled_while_the_disk_hangs_is_not_performed() {
    let (_dir, store) = file().await;
    let (begin, begun) = tokio::sync::oneshot::channel();
    let (resume, resumed) = tokio::sync::oneshot::channel();
    let hanging = store.write("hanging", |_, _| {
        Box::pin(async {
            begin.send(()).unwrap();
            let _: () = resumed.await.unwrap();
            Ok(())
        })
    });
    let payload = Arc::new(());
    let in_operation = Arc::clone(&payload);
    let cancelled = store.write("waiting", move |conn, _| {
        Box::pin(async move {
            let _in_operation = in_operation;
            sqlx::query("INSERT INTO revisions (hash, document, created_at) VALUES ('late', '', 0)")
                .execute(conn)
                .await?;
            Ok(())
        })
    });
    let meanwhile = async {
        begun.await.unwrap();
        tokio::time::timeout(Duration::from_millis(50), cancelled).await.unwrap_err();
        assert_eq!(Arc::strong_count(&payload), 1, "the operation's memory is freed");
        resume.send(()).unwrap();
    };
    let (hung, ()) = tokio::join!(hanging, meanwhile);
    hung.unwrap();
    execute(&store, "DELETE FROM revisions WHERE hash = 'none'").await;
    assert_eq!(store.get_revision("late").await.unwrap(), None);
}

#[tokio::test]
async fn a_full_disk_refuses_writes_and_leaves_the_database_intact() {
    let (_dir, store) = file().await;
    let run = new_run();
    store.create_run(&run).await.unwrap();
    let pages = store.write("reading", |conn, _| Box::pin(pragma(conn, "PRAGMA page_count"))).await.unwrap();
    // Room for a few pages more.
    let limit = sqlx::AssertSqlSafe(format!("PRAGMA max_page_count = {}", pages + 4));
    store
        .write("filling the disk", move |conn, _| {
            Box::pin(async move {
                sqlx::query(limit).execute(conn).await?;
                Ok(())
            })
        })
        .await
        .unwrap();
    let document = "x".repeat(64 << 10);
    let (large, larger) = (template("large", &document), template("larger", &document));
    let (failed, also_failed) =
        tokio::join!(store.put_revision(run.id, 1, &large), store.put_revision(run.id, 1, &larger));
    for outcome in [failed, also_failed] {
        assert!(matches!(outcome, Err(Error::StorageFull { .. })), "{outcome:?}");
    }
    assert_eq!(store.get_revision("large").await.unwrap(), None);
    assert!(matches!(store.find_by_object(&run.object_uid).await.unwrap(), LookUp::Found(_)));
    store.put_revision(run.id, 1, &template("small", "1")).await.unwrap();
    execute(&store, "PRAGMA max_page_count = 1000000").await;
    store.put_revision(run.id, 1, &large).await.unwrap();
    assert_eq!(store.get_revision("large").await.unwrap().as_deref(), Some(document.as_str()));
    let integrity: String = store
        .write("checking", |conn, _| {
            Box::pin(async { Ok(sqlx::query_scalar("PRAGMA integrity_check").fetch_one(conn).await?) })
        })
        .await
        .unwrap();
    assert_eq!(integrity, "ok");
}

#[tokio::test]
async fn a_cancel_expires_after_it_was_reported_or_after_it_was_requested() {
    // Seconds since the request, since its report to the worker, since a gateway is serving; whether it has expired.
    let cases = [
        (89, None, 100, false),
        (91, None, 100, true),
        (91, None, 29, false),
        (40, Some(29), 100, false),
        (40, Some(31), 100, true),
        (40, Some(31), 29, false),
        (91, Some(5), 100, true),
    ];
    for (requested, reported, serving, expected) in cases {
        let store = Sqlite::memory().await.unwrap();
        let run = new_run();
        store.create_run(&run).await.unwrap();
        store
            .write("preparing a test", move |conn, now| {
                Box::pin(async move {
                    sqlx::query("UPDATE runs SET cancel_requested_at = ?, cancel_told_at = ?")
                        .bind(now - 1_000 * requested)
                        .bind(reported.map(|seconds: i64| now - 1_000 * seconds))
                        .execute(&mut *conn)
                        .await?;
                    sqlx::query("UPDATE store SET beat_since = ?, beat_last = ?")
                        .bind(now - 1_000 * serving)
                        .bind(now)
                        .execute(conn)
                        .await?;
                    Ok(())
                })
            })
            .await
            .unwrap();
        let expired = store.poll_deadlines(jiff::Timestamp::now().into()).await.unwrap().expired;
        let found = expired.iter().any(|expired| expired.deadline == Deadline::Cancel);
        assert_eq!(
            found, expected,
            "requested {requested} s ago, reported {reported:?} s ago, serving for {serving} s"
        );
    }
}

#[tokio::test]
async fn the_clock_is_not_behind_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("runs.db");
    Sqlite::migrate(&path).await.unwrap();
    let store = Sqlite::open(&path).await.unwrap();
    execute(&store, "UPDATE store SET beat_last = beat_last + 4000000000000").await;
    store.close().await;
    let store = Sqlite::open(&path).await.unwrap();
    assert!(
        store.poll_deadlines(jiff::Timestamp::now().into()).await.unwrap().now.as_millisecond()
            >= 4_000_000_000_000
    );
}

#[tokio::test]
async fn a_path_may_have_any_characters() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a b?c=d#é%20.db");
    Sqlite::migrate(Path::new(&path)).await.unwrap();
    assert!(path.exists());
    Sqlite::open(&path).await.unwrap();
}
