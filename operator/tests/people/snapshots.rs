//! `dalsegno verify` of a run whose snapshots are not as they were written, and its boundaries are.

use dalsegno_store::Committed;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, SqliteConnection};

use crate::place::{Place, RUN, run, turn};

/// A run of 25 turns, with snapshots after turns 11 and 21.
async fn snapshotted() -> Place {
    let place = Place::new();
    let store = place.store().await;
    let id = run(&*store, false).await;
    for number in 2..=25 {
        let next = turn(id, number, &format!(r#"{{"append":{{"log":[{{"json":{number}}}]}}}}"#));
        assert!(matches!(store.commit(&next).await.unwrap(), Committed::Ok(_)));
        store.snapshot(id).await.unwrap();
    }
    place
}

/// Writes to the database behind the store's back. How many rows that met.
async fn tamper(place: &Place, sql: &str) -> u64 {
    let mut conn = SqliteConnection::connect(&place.url).await.unwrap();
    conn.execute(AssertSqlSafe(sql.to_owned())).await.unwrap().rows_affected()
}

/// What `verify` and `audit verify` say of a run that is not as it was written.
fn told(place: &Place) -> [String; 2] {
    [&["verify", RUN][..], &["audit", "verify"]].map(|verb| {
        let (done, told) = place.dalsegno(verb, true);
        assert!(!done && told.contains("is not as it was written"), "{verb:?}: {told}");
        told
    })
}

#[tokio::test]
async fn snapshots_that_are_as_they_were_written_are_counted() {
    let place = snapshotted().await;
    let (done, told) = place.dalsegno(&["verify", RUN], true);
    assert!(done && told.contains("25 boundaries, 0 calls, 2 snapshots, "), "{told}");
    assert!(told.contains(": 0 problems"), "{told}");
}

#[tokio::test]
async fn an_edited_document_of_a_snapshot_is_a_problem_of_its_run() {
    let place = snapshotted().await;
    assert_eq!(tamper(&place, "UPDATE snapshots SET document = digest WHERE turn = 11").await, 1);
    for told in told(&place) {
        assert!(
            told.contains("snapshot after turn 11 (result): its document does not have its digest"),
            "{told}"
        );
        assert!(told.contains(": 1 problems"), "{told}");
    }
}

#[tokio::test]
async fn an_exchanged_snapshot_is_a_problem_of_its_run() {
    let place = snapshotted().await;
    let older = "(SELECT document, digest FROM snapshots WHERE turn = 11)";
    let exchange = format!("UPDATE snapshots SET (document, digest) = {older} WHERE turn = 21");
    assert_eq!(tamper(&place, &exchange).await, 1);
    for told in told(&place) {
        assert!(told.contains("snapshot after turn 21 (result): "), "{told}");
        assert!(told.contains(": 1 problems"), "{told}");
    }
}

#[tokio::test]
async fn an_edited_chunk_of_a_snapshot_is_a_problem_of_its_run() {
    let place = snapshotted().await;
    assert!(tamper(&place, "UPDATE chunks SET payload = hash").await > 0);
    for told in told(&place) {
        assert!(told.contains("snapshot after turn 11 (result): "), "{told}");
        assert!(told.contains("snapshot after turn 21 (result): "), "{told}");
        assert!(told.contains(": 2 problems"), "{told}");
    }
}

#[tokio::test]
async fn a_payload_that_is_gone_without_a_word_in_the_audit_is_a_problem_of_its_run() {
    let place = snapshotted().await;
    assert_eq!(tamper(&place, "UPDATE boundaries SET ops = NULL, dropped = 1 WHERE turn <= 3").await, 3);
    let mark = "UPDATE runs SET (dropped_turn, dropped_boundary, dropped_epoch) = (3, 2, 1)";
    assert_eq!(tamper(&place, mark).await, 1);
    for told in told(&place) {
        let what =
            "turn 3 (result): its payloads are missing, and the audit does not say that they were dropped";
        assert!(told.contains(what), "{told}");
    }
}
