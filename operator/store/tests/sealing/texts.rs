//! Texts in columns of texts: keys of calls, the end of a run, and how its attempts ended.

use dalsegno_model::{
    CallFilter, Claim, Claimed, Class, Commit, Ending, FinishRow, NewFinish, NextStep, RunOutcome, RunRecord,
};
use dalsegno_proof::bundle;
use dalsegno_protocol::{PlannedCall, Policy};

use crate::context::{ending, ok};
use crate::{CANARY, Engine, TestContext, Worker, check, on_both_databases, shred, turn, worked};

on_both_databases! {
    a_text_is_read_with_the_key_and_by_nobody_without_it,
    a_call_whose_key_was_stored_before_encryption_is_claimed_with_it,
    a_call_keeps_its_sealed_key_and_another_key_is_refused,
    a_run_with_a_data_key_of_the_first_format_keeps_its_texts_in_clear,
    the_operator_ends_an_attempt_though_the_keys_are_missing,
    a_finish_of_the_operator_is_sealed_too,
}

/// The end of the first attempt of this run, with the canary, and the next worker.
async fn ended(cx: &TestContext, worker: &Worker) -> Worker {
    let ending = Ending { message: CANARY.into(), ..ending(worker.attempt, Class::Crash) };
    let run = cx.end_attempt(worker.run, &ending, &NextStep::Reserve).await.unwrap();
    assert_eq!(last_words(&run), [CANARY], "the answer is opened");
    cx.start_worker(&run).await
}

fn last_words(run: &RunRecord) -> Vec<&str> {
    run.past.iter().filter_map(|attempt| Some(attempt.end.as_ref()?.message.as_str())).collect()
}

/// A run that has ended with the canary in all its texts.
async fn finished(cx: &TestContext) -> Worker {
    let worker = worked(cx, 2).await;
    let worker = ended(cx, &worker).await;
    let mut finish = worker.finish();
    finish.finish.message = CANARY.into();
    finish.finish.output = Some(format!("{CANARY:?}"));
    ok(cx.finish(&finish).await.unwrap());
    worker
}

async fn record(cx: &TestContext, worker: &Worker) -> (RunRecord, FinishRow) {
    let run = cx.store.get_run(worker.run).await.unwrap().unwrap();
    let finish = run.finish.clone().unwrap();
    (run, finish)
}

async fn a_text_is_read_with_the_key_and_by_nobody_without_it(engine: &Engine) {
    let cx = engine.sealed().await;
    let worker = finished(&cx).await;
    for cx in [&cx, &engine.sealed().await] {
        let (run, finish) = record(cx, &worker).await;
        assert_eq!((last_words(&run), finish.message.as_str()), (vec![CANARY], CANARY));
        assert_eq!(finish.output.unwrap(), format!("{CANARY:?}"));
        let attempt = cx.store.attempt(worker.run, 1).await.unwrap().unwrap();
        assert_eq!(attempt.end.unwrap().message, CANARY);
        let calls = cx.calls(worker.run, CallFilter::All).await.unwrap();
        assert!(calls.iter().all(|call| call.key.starts_with("key-")), "{calls:?}");
    }
    cx.assert_audit_is_valid(worker.run).await;
    let rows = cx.audit(worker.run).await.unwrap();
    assert!(rows.iter().all(|row| !row.detail.contains(CANARY)));
    assert!(rows.iter().any(|row| row.detail.contains("messageDigest")));
    assert_eq!(check(&cx).await.1, []);

    let plain = engine.plain().await;
    let (run, finish) = record(&plain, &worker).await;
    for text in [last_words(&run)[0], &finish.message] {
        assert_eq!(text, "(encrypted, and its key is not there)");
    }
    assert_eq!(
        (finish.output, finish.reason.is_empty()),
        (None, false),
        "an output is JSON, so there is none"
    );

    cx.shred(&shred(worker.run, "why", "who")).await.unwrap();
    let cx = engine.sealed().await;
    let (run, finish) = record(&cx, &worker).await;
    assert!(!last_words(&run)[0].contains(CANARY) && !finish.message.contains(CANARY));
    let calls = cx.calls(worker.run, CallFilter::All).await.unwrap();
    assert!(calls.iter().all(|call| call.key.is_empty()));
    let bytes = crate::bundle(&cx, worker.run).await;
    assert_eq!(bundle::verify(&*bytes, None).unwrap().problems, []);
    assert_eq!(check(&cx).await.1, []);
}

async fn a_call_whose_key_was_stored_before_encryption_is_claimed_with_it(engine: &Engine) {
    let plain = engine.plain().await;
    let worker = plain.worker().await;
    let planned = turn(&worker, 1);
    let planned = planned.calls.into_iter().map(|call| PlannedCall { arguments: None, ..call }).collect();
    ok(plain.commit(&Commit { calls: planned, ..worker.plan(1) }).await.unwrap());
    let cx = engine.sealed().await;
    let claim = Claim { key: Some("key-1".into()), ..worker.claim("call-1", Policy::RetrySameKey) };
    let Claimed::Go(call) = cx.claim(&claim).await.unwrap() else { panic!("the key is the same") };
    assert_eq!(call.key, "key-1");
    let other = Claim { key: Some("key-2".into()), ..claim };
    assert!(matches!(cx.claim(&other).await.unwrap(), Claimed::Invalid(why) if why.contains("another key")));
    assert_eq!(
        engine.ask("SELECT key FROM calls WHERE id = 'call-1'").await,
        "key-1",
        "it is not written again"
    );
}

async fn a_call_keeps_its_sealed_key_and_another_key_is_refused(engine: &Engine) {
    let cx = engine.sealed().await;
    let worker = cx.worker().await;
    let claim = |key: &str| Claim { key: Some(key.into()), ..worker.claim("pay", Policy::RetrySameKey) };
    let first = claim("one");
    for _ in 0..2 {
        let Claimed::Go(call) = cx.claim(&first).await.unwrap() else { panic!("it is the same claim") };
        assert_eq!(call.key, "one");
    }
    assert!(
        matches!(cx.claim(&claim("two")).await.unwrap(), Claimed::Invalid(why) if why.contains("another key"))
    );
    let next = ended(&cx, &worker).await;
    let claim = Claim { key: None, ..next.claim("pay", Policy::RetrySameKey) };
    let Claimed::Go(call) = engine.sealed().await.claim(&claim).await.unwrap() else {
        panic!("the key is stored")
    };
    assert_eq!(call.key, "one");
    let stored = engine.ask("SELECT key FROM calls WHERE id = 'pay'").await;
    assert!(stored.starts_with("\u{1}1") && !stored.contains("one"), "{stored:?}");
}

/// A version before this one made the data key. It may read and write the run after a roll-back.
async fn a_run_with_a_data_key_of_the_first_format_keeps_its_texts_in_clear(engine: &Engine) {
    let cx = engine.sealed_by_version_before().await;
    let worker = finished(&cx).await;
    let (run, finish) = record(&engine.sealed().await, &worker).await;
    assert_eq!((last_words(&run), finish.message.as_str()), (vec![CANARY], CANARY));
    let stored = engine.ask("SELECT finish_message FROM runs").await;
    assert_eq!(stored, CANARY);
    assert_eq!(engine.ask("SELECT message FROM attempts WHERE number = 1").await, CANARY);
    assert_eq!(engine.ask("SELECT key FROM calls WHERE id = 'call-1'").await, "key-1");
    // A rewrapped data key is still of the first format.
    crate::keys::put(&engine.keys, "k2", 9);
    std::fs::write(engine.keys.path().join("current"), "k2").unwrap();
    assert_eq!(engine.sealed().await.rewrap_keys().await.unwrap().count, 1);
    let calls = engine.sealed().await.calls(worker.run, CallFilter::All).await.unwrap();
    assert!(calls.iter().any(|call| call.key == "key-1"));
    assert_eq!(check(&engine.sealed().await).await.1, []);
}

async fn the_operator_ends_an_attempt_though_the_keys_are_missing(engine: &Engine) {
    let cx = engine.sealed().await;
    let worker = worked(&cx, 1).await;
    let key = engine.keys.path().join("k1");
    let bytes = std::fs::read(&key).unwrap();
    crate::keys::put(&engine.keys, "other", 3);
    std::fs::remove_file(&key).unwrap();
    let ending = Ending { message: CANARY.into(), ..ending(1, Class::Crash) };
    let without = engine.sealed().await;
    let run = without.end_attempt(worker.run, &ending, &NextStep::Reserve).await.unwrap();
    assert_eq!(last_words(&run), ["(not stored: it could not be encrypted)"]);
    std::fs::write(&key, bytes).unwrap();
    std::fs::remove_file(engine.keys.path().join("other")).unwrap();
    let next = engine.sealed().await.start_worker(&run).await;
    ok(engine.sealed().await.commit(&turn(&next, 2)).await.unwrap());
}

async fn a_finish_of_the_operator_is_sealed_too(engine: &Engine) {
    let cx = engine.sealed().await;
    // The run has no data key yet: nothing was written.
    let worker = cx.worker().await;
    let finish = NewFinish {
        outcome: RunOutcome::Failed,
        reason: "RecoveryAttemptsExhausted".into(),
        message: CANARY.into(),
        output: None,
    };
    let ending = Ending { message: CANARY.into(), ..ending(1, Class::Crash) };
    let run = cx.end_attempt(worker.run, &ending, &NextStep::Finish(finish)).await.unwrap();
    assert_eq!(run.finish.unwrap().message, CANARY);
    assert_eq!(engine.ask("SELECT finish_reason FROM runs").await, "RecoveryAttemptsExhausted");
    for sql in ["SELECT finish_message FROM runs", "SELECT message FROM attempts"] {
        let stored = engine.ask(sql).await;
        assert!(stored.starts_with('\u{1}') && !stored.contains(CANARY), "{stored:?}");
    }
}
