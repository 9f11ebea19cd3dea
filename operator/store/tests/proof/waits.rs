//! Waits are checked against the audit.

use dalsegno_model::{
    Answered, OpenWaitRequest, Retention, Rewound, WaitAnswer, WaitAsks, WaitDecision, WaitOpened,
};
use dalsegno_protocol::{OnTimeout, ParkMode, WaitOutcome};
use jiff::Timestamp;

use crate::context::{Worker, json, random_digest, result_place, rewind_to};
use crate::stores::id;
use crate::{Engine, bundles, on_both_databases};

on_both_databases! {
    waits_in_every_state_have_no_problem_and_are_in_the_bundle,
    every_edited_column_of_a_wait_is_found,
    payloads_of_waits_may_be_missing_after_an_audited_expiry,
}

pub async fn open(engine: &Engine, worker: &Worker, id: &str, asks: WaitAsks) -> i64 {
    let request = OpenWaitRequest {
        run: worker.run,
        capability: worker.capability,
        id: id.into(),
        digest: random_digest(),
        body: json(r#"{"title":  "pay the bill"}"#),
        asks,
        deadline_ms: None,
        on_timeout: OnTimeout::Answer,
    };
    match engine.cx.open_wait(&request).await.unwrap() {
        WaitOpened::Wait(wait) => wait.facts.epoch,
        other => panic!("{id}: {other:?}"),
    }
}

fn approval() -> WaitAsks {
    WaitAsks::Approval { salt: [1; 16], proposal_hash: [2; 32] }
}

/// Waits in every state: answered by a person, elapsed, undone and opened again, open, and withdrawn with the run's end.
async fn waiting(engine: &Engine) -> Worker {
    let cx = &engine.cx;
    let worker = cx.worker().await;
    cx.commit_turn(&worker, 1).await;
    cx.commit_turn(&worker, 2).await;
    open(engine, &worker, "pay", approval()).await;
    let run = cx.run_of(&worker).await;
    let Rewound::Done(run) = cx.rewind(worker.run, &rewind_to(run.epoch, result_place(1))).await.unwrap()
    else {
        panic!("it may be rewound")
    };
    let worker = cx.start_worker(&run).await;
    let epoch = open(engine, &worker, "pay", approval()).await;
    let decision = WaitDecision { by: "ada".into(), reason: Some("right".into()), changes: None };
    let answer = WaitAnswer { id: "pay".into(), epoch, outcome: WaitOutcome::Approved, decision };
    assert!(matches!(cx.answer_wait(worker.run, &answer).await.unwrap(), Answered::Ok(_)));
    open(engine, &worker, "past", WaitAsks::Until(Timestamp::UNIX_EPOCH)).await;
    open(engine, &worker, "news", WaitAsks::Message(Some("news".into()))).await;
    let park = dalsegno_model::Park { on: vec!["news".into()], mode: ParkMode::All, ..worker.park() };
    cx.park(&park).await.unwrap();
    worker
}

async fn waits_in_every_state_have_no_problem_and_are_in_the_bundle(engine: &Engine) {
    let worker = waiting(engine).await;
    assert_eq!(engine.check().await.1, []);
    let reading = engine.cx.begin_read().await.unwrap();
    let bytes = bundles::bundle(reading, worker.run, bundles::signer().await).await;
    let verified = dalsegno_proof::bundle::verify(&*bytes, None).unwrap();
    assert_eq!((verified.problems, verified.waits), (Vec::new(), 4));
    let text = String::from_utf8(bytes).unwrap();
    assert!(text.contains(r#"{\"title\":  \"pay the bill\"}"#), "requests are exported byte for byte");
    let edited = text.replace(r#""outcome":"approved""#, r#""outcome":"denied""#);
    let found = dalsegno_proof::bundle::verify(edited.as_bytes(), None).unwrap();
    let found: Vec<_> = found.problems.iter().map(|problem| problem.what.as_str()).collect();
    assert!(found.contains(&"its outcome is not what the audit says"), "{found:?}");
}

async fn every_edited_column_of_a_wait_is_found(engine: &Engine) {
    let worker = waiting(engine).await;
    let run = id(engine, worker.run);
    engine.execute("CREATE TABLE kept AS SELECT * FROM waits").await.unwrap();
    let columns = "run, id, epoch, ordinal, turn, boundary, undone, attempt, kind, state, digest, request, bytes, \
                   deadline_at, on_timeout, timed_out_at, wake_at, reset_at, provider, topic, proposal_hash, opened_at, \
                   answered_at, outcome, position, answer, used_by";
    for (set, which) in [
        ("outcome = 'denied'", "answer IS NOT NULL"),
        ("state = 'open'", "answer IS NOT NULL"),
        ("state = 'answered', outcome = 'message'", "id = 'news'"),
        ("state = 'withdrawn'", "id = 'news'"),
        ("answer = NULL", "answer IS NOT NULL"),
        ("request = NULL", "id = 'news'"),
        ("kind = 'message'", "answer IS NOT NULL"),
        ("turn = 1", "id = 'news'"),
        ("boundary = 2", "id = 'news'"),
        ("undone = NOT undone", "id = 'news'"),
        ("proposal_hash = digest", "answer IS NOT NULL"),
        ("id = 'other'", "id = 'news'"),
        ("epoch = 99", "id = 'news'"),
    ] {
        engine.execute(&format!("UPDATE waits SET {set} WHERE run = {run} AND {which}")).await.unwrap();
        assert!(!engine.check().await.1.is_empty(), "not found: {set}");
        engine.execute("DELETE FROM waits").await.unwrap();
        let restore = format!("INSERT INTO waits ({columns}) SELECT {columns} FROM kept");
        engine.execute(&restore).await.unwrap();
        assert_eq!(engine.check().await.1, [], "{set}");
    }
    engine.execute(&format!("DELETE FROM waits WHERE run = {run} AND id = 'news'")).await.unwrap();
    assert!(!engine.check().await.1.is_empty(), "a deleted row");
}

async fn payloads_of_waits_may_be_missing_after_an_audited_expiry(engine: &Engine) {
    let worker = ended(engine).await;
    assert_eq!(engine.check().await.1, []);
    let left = "SELECT count(*) FROM waits WHERE request IS NOT NULL OR answer IS NOT NULL";
    assert_eq!(engine.count(left).await, 0);
    let waits = engine.cx.waits(worker.run).await.unwrap();
    assert!(
        waits.iter().all(|wait| wait.answer.as_ref().is_some_and(|it| it.decision.is_none())),
        "{waits:?}"
    );
}

/// A run with waits that has ended and is past its retention.
async fn ended(engine: &Engine) -> Worker {
    let cx = &engine.cx;
    let worker = waiting(engine).await;
    cx.mark_deleted(&worker.object_uid).await.unwrap();
    cx.set_retention(worker.run, &Retention { days: 0, ..Retention::default() }).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    while !cx.expire(worker.run, 2).await.unwrap().done {}
    worker
}
