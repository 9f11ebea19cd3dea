//! Tool calls, held to what the audit tells of them.

use dalsegno_protocol::{CallOutcome, CompleteOutcome, Policy};
use dalsegno_store::seal::{CallDigests, CallDigestsExt as _};
use dalsegno_store::{CallFilter, Claim, Claimed, Commit, Complete, Retention, Settle, header};

use crate::stores::id;
use crate::world::{Worker, json, noise, ok, person_settles, planned};
use crate::{Face, on_both};

on_both! {
    calls_of_every_fate_have_no_problem,
    every_edited_column_of_a_call_is_found,
    calls_that_are_gone_or_that_nobody_made_are_found,
    a_call_that_nobody_made_is_found_wherever_it_stands,
    payloads_of_calls_may_be_gone_once_the_audit_says_so,
}

/// Calls in every state and by every way there: planned in one turn and again in the next, given their arguments by the
/// claim, claimed by two attempts, refused, settled by the worker and by a person.
pub async fn busy(face: &Face) -> Worker {
    let world = &face.world;
    let worker = world.worker().await;
    let bare = || dalsegno_protocol::PlannedCall { arguments: None, ..planned("bare", Policy::Probe) };
    let calls = vec![planned("never", Policy::Probe), bare(), planned("paid", Policy::RetrySameKey)];
    ok(world.commit(&Commit { calls, ..worker.plan(1) }).await.unwrap());
    let claim = world.start_call(&worker, "paid", Policy::RetrySameKey).await;
    world.complete(&worker.complete(&claim)).await.unwrap();
    world.turn(&worker, 1).await;
    let calls = vec![planned("never", Policy::Probe), bare(), planned("paid", Policy::RetrySameKey)];
    ok(world.commit(&Commit { calls, ..worker.plan(2) }).await.unwrap());
    world.start_call(&worker, "bare", Policy::Probe).await;
    for id in ["asked", "again", "refused", "seen"] {
        let policy = if id == "again" { Policy::RetrySameKey } else { Policy::Ask };
        let claim = world.start_call(&worker, id, policy).await;
        let complete = match id {
            "refused" => Complete { outcome: CompleteOutcome::KeyRefused, ..worker.complete(&claim) },
            "seen" => Complete { outcome: CompleteOutcome::Failed, result: None, ..worker.complete(&claim) },
            _ => continue,
        };
        world.complete(&complete).await.unwrap();
    }
    let worker = world.next(&worker).await;
    let claim = world.start_call(&worker, "again", Policy::RetrySameKey).await;
    world
        .complete(&Complete { result: Some(json(r#"{"at":"last"}"#)), ..worker.complete(&claim) })
        .await
        .unwrap();
    world.settle(&worker.settle("bare")).await.unwrap();
    let settle = Settle { outcome: CallOutcome::Failed, result: None, ..person_settles(worker.run, "asked") };
    world.settle(&settle).await.unwrap();
    worker
}

async fn calls_of_every_fate_have_no_problem(face: &Face) {
    let worker = busy(face).await;
    let (summary, problems) = face.check().await;
    assert_eq!(problems, []);
    assert_eq!(summary.calls, 7);
    let told: Vec<_> = face.world.audit(worker.run).await.unwrap();
    // Where they are sealed, nobody without the key can try out what they may be.
    for text in ["key-of-paid", r#"{"amount":  1}"#, r#"{"done":  true}"#] {
        let plain = header::render(&CallDigests::Plain.of(text));
        assert_ne!(told.iter().any(|row| row.detail.contains(&plain)), face.is_postgres(), "{text}");
    }
    let told: Vec<_> = told.iter().map(|row| row.kind.as_str()).skip(5).collect();
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
    assert_eq!(told, [&first[..], &second, &third].concat());
}

/// The one problem that an edit makes, without the run's id.
async fn problem_after(face: &Face, sql: &str) -> String {
    face.execute(sql).await.unwrap();
    let (_, problems) = face.check().await;
    let [problem] = problems.as_slice() else { panic!("{sql}: {problems:?}") };
    format!("{}: {}", problem.place, problem.what)
}

/// How rows are put into the table with every column of theirs.
fn insert(face: &Face) -> &'static str {
    if face.is_postgres() { "INSERT INTO calls OVERRIDING SYSTEM VALUE" } else { "INSERT INTO calls" }
}

pub async fn restore(face: &Face) {
    face.execute(&format!("DELETE FROM calls; {} SELECT * FROM kept", insert(face))).await.unwrap();
}

async fn every_edited_column_of_a_call_is_found(face: &Face) {
    let run = id(face, busy(face).await.run);
    face.execute("CREATE TABLE kept AS SELECT * FROM calls").await.unwrap();
    for (call, set, what) in [
        ("again", "turn = 9", "turn"),
        ("never", "turn = 1", "turn"),
        ("paid", "touched_turn = 2", "last turn"),
        ("seen", "touched_turn = 1", "last turn"),
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
        let problem = problem_after(face, &sql).await;
        if face.is_postgres() && set.ends_with(['s', 't']) {
            // What was sealed elsewhere cannot be opened there.
            assert!(problem.starts_with(&format!("calls: call {call:?}: ")), "{sql}: {problem}");
        } else {
            assert_eq!(problem, format!("call {call:?}: its {what} is not what the audit says"), "{sql}");
        }
        restore(face).await;
        assert_eq!(face.check().await.1, []);
    }
    // Under the mark of a refused key nothing else may stand.
    for state in ["planned", "completed", "failed"] {
        let sql = format!("UPDATE calls SET state = '{state}' WHERE run = {run} AND id = 'refused'");
        let problem = problem_after(face, &sql).await;
        assert!(problem.starts_with("calls: call \"refused\": its key was refused, and it is "), "{problem}");
        restore(face).await;
    }
    if !face.is_postgres() {
        // What is read is the same value; it is not what was written.
        let more = format!(
            "UPDATE calls SET result = CAST(result || ' ' AS BLOB) WHERE run = {run} AND id = 'paid'"
        );
        let problem = problem_after(face, &more).await;
        assert!(problem.ends_with("it has bytes around it"), "{problem}");
        restore(face).await;
    }
    let cut = format!("UPDATE calls SET result = substr(result, 1, 3) WHERE run = {run} AND id = 'again'");
    let problem = problem_after(face, &cut).await;
    assert!(problem.starts_with("calls: call \"again\": "), "{problem}");
}

async fn calls_that_are_gone_or_that_nobody_made_are_found(face: &Face) {
    let run = id(face, busy(face).await.run);
    face.execute("CREATE TABLE kept AS SELECT * FROM calls").await.unwrap();
    let gone = problem_after(face, &format!("DELETE FROM calls WHERE run = {run} AND id = 'asked'")).await;
    assert_eq!(gone, "call \"asked\": the audit tells of it, and it is not there");
    let invented = "UPDATE kept SET id = 'invented', arguments = NULL, result = NULL WHERE id = 'asked'";
    face.execute(invented).await.unwrap();
    restore(face).await;
    let problems = face.check().await.1;
    assert_eq!(problems.len(), 2, "{problems:?}");
    let invented = format!("{}: {}", problems[1].place, problems[1].what);
    assert_eq!(invented, "call \"invented\": it is there, and the audit does not tell of it");
}

/// Before the first place that a call can have, and in that of the last call of a page.
async fn a_call_that_nobody_made_is_found_wherever_it_stands(face: &Face) {
    let world = &face.world;
    let worker = world.worker().await;
    let large = Claim {
        arguments: Some(json(&format!("{:?}", noise(7, 3 << 20)))),
        ..worker.claim("large", Policy::Ask)
    };
    assert!(matches!(world.claim(&large).await.unwrap(), Claimed::Go(_)));
    let insert = insert(face);
    for (turn, ordinal) in [("-2147483648", "-9223372036854775808"), ("turn", "ordinal")] {
        let forged = format!(
            "CREATE TABLE forged AS SELECT * FROM calls; \
             UPDATE forged SET id = 'made-up', turn = {turn}, ordinal = {ordinal}, arguments = NULL; \
             {insert} SELECT * FROM forged"
        );
        match face.execute(&forged).await {
            Ok(()) => {
                let problems = face.check().await.1;
                assert!(problems.iter().any(|it| it.place == "call \"made-up\""), "{problems:?}");
            }
            // There no two calls may stand in one place.
            Err(_) => assert!(!face.is_postgres() && turn == "turn"),
        }
        face.execute("DROP TABLE forged; DELETE FROM calls WHERE id = 'made-up'").await.unwrap();
    }
}

async fn payloads_of_calls_may_be_gone_once_the_audit_says_so(face: &Face) {
    let world = &face.world;
    let worker = busy(face).await;
    world.set_retention(worker.run, &Retention { days: 0, keep_last: None }).await.unwrap();
    world.mark_deleted(&worker.object_uid).await.unwrap();
    while !world.drop_expired(100).await.unwrap().done {}
    let calls = world.calls(worker.run, CallFilter::All).await.unwrap();
    assert!(calls.iter().all(|call| call.arguments.is_none() && call.result.is_none()));
    assert_eq!(face.check().await.1, []);
    let run = id(face, worker.run);
    let edit = |set: &str| format!("UPDATE calls SET {set} WHERE run = {run} AND id = 'again'");
    // With the data key went what the digest of a key is made with.
    if !face.is_postgres() {
        let problem = problem_after(face, &edit("key = 'another'")).await;
        assert_eq!(problem, "call \"again\": its key is not what the audit says");
        face.execute(&edit("key = 'key-of-again'")).await.unwrap();
    }
    let problem = problem_after(face, &edit("policy = 'ask'")).await;
    assert_eq!(problem, "call \"again\": its policy is not what the audit says");
}
