//! Tool calls are checked against the audit.

use dalsegno_format::header;
use dalsegno_format::seal::{CallDigests, CallDigestsExt as _};
use dalsegno_model::{CallFilter, Claim, Claimed, Commit, Complete, Retention, Settle};
use dalsegno_protocol::{CallOutcome, CompleteOutcome, Policy, Usage};

use crate::context::{Worker, json, noise, ok, person_settles, planned};
use crate::stores::id;
use crate::{Engine, on_both_databases};

on_both_databases! {
    calls_in_every_state_have_no_problem,
    every_edited_column_of_a_call_is_found,
    deleted_and_forged_calls_are_found,
    a_forged_call_is_found_at_every_position,
    payloads_of_calls_may_be_missing_after_an_audited_expiry,
}

/// Calls in every state, reached in every way: planned in one turn and again in the next, given their arguments by the
/// claim, claimed by two attempts, refused, settled by the worker and by a person.
pub async fn busy(engine: &Engine) -> Worker {
    let cx = &engine.cx;
    let worker = cx.worker().await;
    let bare = || dalsegno_protocol::PlannedCall { arguments: None, ..planned("bare", Policy::Probe) };
    let calls = vec![planned("never", Policy::Probe), bare(), planned("paid", Policy::RetrySameKey)];
    ok(cx.commit(&Commit { calls, ..worker.plan(1) }).await.unwrap());
    let claim = cx.start_call(&worker, "paid", Policy::RetrySameKey).await;
    cx.complete(&worker.complete(&claim)).await.unwrap();
    cx.commit_turn(&worker, 1).await;
    let calls = vec![planned("never", Policy::Probe), bare(), planned("paid", Policy::RetrySameKey)];
    ok(cx.commit(&Commit { calls, ..worker.plan(2) }).await.unwrap());
    cx.start_call(&worker, "bare", Policy::Probe).await;
    for id in ["asked", "again", "refused", "seen"] {
        let policy = if id == "again" { Policy::RetrySameKey } else { Policy::Ask };
        let claim = cx.start_call(&worker, id, policy).await;
        let complete = match id {
            "refused" => Complete { outcome: CompleteOutcome::KeyRefused, ..worker.complete(&claim) },
            "seen" => Complete { outcome: CompleteOutcome::Failed, result: None, ..worker.complete(&claim) },
            _ => continue,
        };
        cx.complete(&complete).await.unwrap();
    }
    let worker = cx.next_worker(&worker).await;
    let claim = Claim { tool: Some("bank.pay".into()), ..worker.claim("again", Policy::RetrySameKey) };
    assert!(matches!(cx.claim(&claim).await.unwrap(), Claimed::Go(_)));
    let usage = Usage { tokens_in: 5, ..Usage::default() };
    let result = Some(json(r#"{"at":"last"}"#));
    cx.complete(&Complete { result, usage, ..worker.complete(&claim) }).await.unwrap();
    cx.settle(&worker.settle("bare")).await.unwrap();
    let settle = Settle { outcome: CallOutcome::Failed, result: None, ..person_settles(worker.run, "asked") };
    cx.settle(&settle).await.unwrap();
    worker
}

async fn calls_in_every_state_have_no_problem(engine: &Engine) {
    let worker = busy(engine).await;
    let (summary, problems) = engine.check().await;
    assert_eq!(problems, []);
    assert_eq!(summary.calls, 7);
    let rows: Vec<_> = engine.cx.audit(worker.run).await.unwrap();
    // Digests of sealed calls are keyed: without the key nobody can test guesses against them.
    for text in ["key-of-paid", r#"{"amount":  1}"#, r#"{"done":  true}"#] {
        let plain = header::render(&CallDigests::Plain.of(text));
        assert_ne!(rows.iter().any(|row| row.detail.contains(&plain)), engine.is_postgres(), "{text}");
    }
    let rows: Vec<_> = rows.iter().map(|row| row.kind.as_str()).skip(5).collect();
    let first = [
        "planned",
        "claimed",
        "completed",
        "planned",
        "claimed",
        "claimed",
        "claimed",
        "claimed",
        "key-refused",
    ];
    let second = ["claimed", "failed", "ended", "reserved", "pod", "identity", "attached"];
    let third = ["claimed", "completed", "settled", "settled"];
    assert_eq!(rows, [&first[..], &second, &third].concat());
}

/// Runs an edit that causes exactly one problem. Returns the problem without the run's id.
async fn problem_after(engine: &Engine, sql: &str) -> String {
    engine.execute(sql).await.unwrap();
    let (_, problems) = engine.check().await;
    let [problem] = problems.as_slice() else { panic!("{sql}: {problems:?}") };
    format!("{}: {}", problem.location, problem.what)
}

/// The start of an insert that sets every column.
fn insert(engine: &Engine) -> &'static str {
    if engine.is_postgres() { "INSERT INTO calls OVERRIDING SYSTEM VALUE" } else { "INSERT INTO calls" }
}

pub async fn restore(engine: &Engine) {
    engine.execute(&format!("DELETE FROM calls; {} SELECT * FROM kept", insert(engine))).await.unwrap();
}

async fn every_edited_column_of_a_call_is_found(engine: &Engine) {
    let run = id(engine, busy(engine).await.run);
    engine.execute("CREATE TABLE kept AS SELECT * FROM calls").await.unwrap();
    for (call, set, what) in [
        ("again", "turn = 9", "turn"),
        ("never", "turn = 1", "turn"),
        ("paid", "touched_turn = 2", "last turn"),
        ("seen", "touched_turn = 1", "last turn"),
        ("again", "tool = 'bank.ask'", "tool"),
        ("again", "tool = NULL", "tool"),
        ("paid", "tool = 'bank.pay'", "tool"),
        ("again", "tokens_in = 4", "usage"),
        ("paid", "cost_micro_usd = 1", "usage"),
        ("never", "tokens_out = 1", "usage"),
        ("again", "attempt = 1", "attempt"),
        ("again", "attempt = NULL", "attempt"),
        ("again", "state = 'failed'", "state"),
        ("bare", "state = 'failed'", "state"),
        ("asked", "state = 'started'", "state"),
        ("never", "state = 'completed'", "state"),
        ("refused", "key_refused = NOT key_refused", "state"),
        ("again", "policy = 'readOnly'", "policy"),
        ("never", "policy = 'readOnly'", "policy"),
        ("again", "key = 'another'", "key"),
        ("never", "key = 'another'", "key"),
        ("again", "arguments = result", "arguments"),
        ("again", "arguments = NULL", "arguments"),
        ("bare", "arguments = NULL", "arguments"),
        ("never", "arguments = NULL", "arguments"),
        ("again", "result = arguments", "result"),
        ("again", "result = NULL", "result"),
        ("bare", "result = NULL", "result"),
        ("asked", "result = arguments", "result"),
        ("never", "result = arguments", "result"),
        ("seen", "result = arguments", "result"),
        ("refused", "result = NULL", "result"),
    ] {
        let sql = format!("UPDATE calls SET {set} WHERE run = {run} AND id = '{call}'");
        let problem = problem_after(engine, &sql).await;
        if engine.is_postgres() && set.ends_with(['s', 't']) {
            // A ciphertext cannot be opened in another place.
            assert!(problem.starts_with(&format!("calls: call {call:?}: ")), "{sql}: {problem}");
        } else {
            assert_eq!(problem, format!("call {call:?}: its {what} is not what the audit says"), "{sql}");
        }
        restore(engine).await;
        assert_eq!(engine.check().await.1, []);
    }
    // A refused key allows no other state.
    for state in ["planned", "completed", "failed"] {
        let sql = format!("UPDATE calls SET state = '{state}' WHERE run = {run} AND id = 'refused'");
        let problem = problem_after(engine, &sql).await;
        assert!(problem.starts_with("calls: call \"refused\": its key was refused, and it is "), "{problem}");
        restore(engine).await;
    }
    if !engine.is_postgres() {
        // The value is the same, but its bytes are not those that were written.
        let more = format!(
            "UPDATE calls SET result = CAST(result || ' ' AS BLOB) WHERE run = {run} AND id = 'paid'"
        );
        let problem = problem_after(engine, &more).await;
        assert!(problem.ends_with("it has bytes around it"), "{problem}");
        restore(engine).await;
    }
    let cut = format!("UPDATE calls SET result = substr(result, 1, 3) WHERE run = {run} AND id = 'again'");
    let problem = problem_after(engine, &cut).await;
    assert!(problem.starts_with("calls: call \"again\": "), "{problem}");
}

async fn deleted_and_forged_calls_are_found(engine: &Engine) {
    let run = id(engine, busy(engine).await.run);
    engine.execute("CREATE TABLE kept AS SELECT * FROM calls").await.unwrap();
    let gone = problem_after(engine, &format!("DELETE FROM calls WHERE run = {run} AND id = 'asked'")).await;
    assert_eq!(gone, "call \"asked\": the audit records it, and it is missing");
    // A sealed key is bound to the id too, so that a copied one is damage.
    let invented =
        "UPDATE kept SET id = 'invented', key = 'k', arguments = NULL, result = NULL WHERE id = 'asked'";
    engine.execute(invented).await.unwrap();
    restore(engine).await;
    let problems = engine.check().await.1;
    assert_eq!(problems.len(), 2, "{problems:?}");
    let invented = format!("{}: {}", problems[1].location, problems[1].what);
    assert_eq!(invented, "call \"invented\": it exists, and the audit does not record it");
}

/// Before the first possible position of a call, and at the position of a page's last call.
async fn a_forged_call_is_found_at_every_position(engine: &Engine) {
    let cx = &engine.cx;
    let worker = cx.worker().await;
    let large = Claim {
        arguments: Some(json(&format!("{:?}", noise(7, 3 << 20)))),
        ..worker.claim("large", Policy::Ask)
    };
    assert!(matches!(cx.claim(&large).await.unwrap(), Claimed::Go(_)));
    let insert = insert(engine);
    for (turn, ordinal) in [("-2147483648", "-9223372036854775808"), ("turn", "ordinal")] {
        let forged = format!(
            "CREATE TABLE forged AS SELECT * FROM calls; \
             UPDATE forged SET id = 'made-up', turn = {turn}, ordinal = {ordinal}, arguments = NULL; \
             {insert} SELECT * FROM forged"
        );
        match engine.execute(&forged).await {
            Ok(()) => {
                let problems = engine.check().await.1;
                assert!(problems.iter().any(|it| it.location == "call \"made-up\""), "{problems:?}");
            }
            // SQLite allows no two calls at one position.
            Err(_) => assert!(!engine.is_postgres() && turn == "turn"),
        }
        engine.execute("DROP TABLE forged; DELETE FROM calls WHERE id = 'made-up'").await.unwrap();
    }
}

async fn payloads_of_calls_may_be_missing_after_an_audited_expiry(engine: &Engine) {
    let cx = &engine.cx;
    let worker = busy(engine).await;
    cx.set_retention(worker.run, &Retention { days: 0, ..Retention::default() }).await.unwrap();
    cx.mark_deleted(&worker.object_uid).await.unwrap();
    while !cx.drop_expired(100).await.unwrap().done {}
    let calls = cx.calls(worker.run, CallFilter::All).await.unwrap();
    assert!(calls.iter().all(|call| call.arguments.is_none() && call.result.is_none()));
    assert_eq!(engine.check().await.1, []);
    let run = id(engine, worker.run);
    let edit = |set: &str| format!("UPDATE calls SET {set} WHERE run = {run} AND id = 'again'");
    // The data key, which keyed the digests of call keys, was deleted with the payloads.
    if !engine.is_postgres() {
        let problem = problem_after(engine, &edit("key = 'another'")).await;
        assert_eq!(problem, "call \"again\": its key is not what the audit says");
        engine.execute(&edit("key = 'key-of-again'")).await.unwrap();
    }
    let problem = problem_after(engine, &edit("policy = 'ask'")).await;
    assert_eq!(problem, "call \"again\": its policy is not what the audit says");
}
