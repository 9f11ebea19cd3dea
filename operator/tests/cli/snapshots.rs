//! `dalsegno verify` of a run whose snapshots were changed.

use dalsegno_model::Committed;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, SqliteConnection};

use crate::test_context::{RUN, TestContext, create_run, turn};

/// Creates a run of 25 turns with snapshots after turns 11 and 21.
async fn with_snapshots() -> TestContext {
    let context = TestContext::new();
    let store = context.store().await;
    let id = create_run(&*store, false).await;
    for number in 2..=25 {
        let next = turn(id, number, &format!(r#"{{"append":{{"log":[{{"json":{number}}}]}}}}"#));
        assert!(matches!(store.commit(&next).await.unwrap(), Committed::Ok(_)));
        store.snapshot(id).await.unwrap();
    }
    context
}

/// Changes the database directly. Returns the number of changed rows.
async fn tamper(context: &TestContext, sql: &str) -> u64 {
    let mut conn = SqliteConnection::connect(&context.url).await.unwrap();
    conn.execute(AssertSqlSafe(sql.to_owned())).await.unwrap().rows_affected()
}

/// The output of `verify` and `audit verify`, which must both fail.
fn verify_both(context: &TestContext) -> [String; 2] {
    [&["verify", RUN][..], &["audit", "verify"]].map(|command| {
        let (success, text) = context.run(command, true);
        assert!(!success && text.contains("differs from what was written"), "{command:?}: {text}");
        text
    })
}

#[tokio::test]
async fn unchanged_snapshots_are_counted() {
    let context = with_snapshots().await;
    let (success, text) = context.run(&["verify", RUN], true);
    assert!(success && text.contains("25 boundaries, 0 calls, 2 snapshots, "), "{text}");
    assert!(text.contains(": 0 problems"), "{text}");
}

#[tokio::test]
async fn a_changed_document_of_a_snapshot_is_reported() {
    let context = with_snapshots().await;
    assert_eq!(tamper(&context, "UPDATE snapshots SET document = digest WHERE turn = 11").await, 1);
    for text in verify_both(&context) {
        assert!(
            text.contains("snapshot after turn 11 (result): its document does not have its digest"),
            "{text}"
        );
        assert!(text.contains(": 1 problem"), "{text}");
    }
}

#[tokio::test]
async fn a_replaced_snapshot_is_reported() {
    let context = with_snapshots().await;
    let older = "(SELECT document, digest FROM snapshots WHERE turn = 11)";
    let exchange = format!("UPDATE snapshots SET (document, digest) = {older} WHERE turn = 21");
    assert_eq!(tamper(&context, &exchange).await, 1);
    for text in verify_both(&context) {
        assert!(text.contains("snapshot after turn 21 (result): "), "{text}");
        assert!(text.contains(": 1 problem"), "{text}");
    }
}

#[tokio::test]
async fn a_changed_chunk_of_a_snapshot_is_reported() {
    let context = with_snapshots().await;
    assert!(tamper(&context, "UPDATE chunks SET payload = hash").await > 0);
    for text in verify_both(&context) {
        assert!(text.contains("snapshot after turn 11 (result): "), "{text}");
        assert!(text.contains("snapshot after turn 21 (result): "), "{text}");
        assert!(text.contains(": 2 problems"), "{text}");
    }
}

#[tokio::test]
async fn a_dropped_payload_without_an_audit_row_is_reported() {
    let context = with_snapshots().await;
    assert_eq!(tamper(&context, "UPDATE boundaries SET ops = NULL, dropped = 1 WHERE turn <= 3").await, 3);
    let mark = "UPDATE runs SET (dropped_turn, dropped_boundary, dropped_epoch) = (3, 2, 1)";
    assert_eq!(tamper(&context, mark).await, 1);
    for text in verify_both(&context) {
        let what =
            "turn 3 (result): its payloads are missing, and the audit does not say that they were dropped";
        assert!(text.contains(what), "{text}");
    }
}
