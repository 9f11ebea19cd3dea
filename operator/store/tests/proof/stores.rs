//! The check of a whole store, on both databases.

use dalsegno_model::{Commit, EventQuery, NewMessage, RecordBatch, Retention, RunId, Written};
use dalsegno_proof::bundle::{state as replayed, verify};
use dalsegno_proof::{Problem, check_run};
use dalsegno_protocol::{Payload, RawValue, RecordOp};

use crate::bundles;
use crate::context::{Worker, result_place, rewind_to};
use crate::{Engine, on_both_databases};

on_both_databases! {
    a_used_store_has_no_problem,
    every_edited_column_of_the_audit_is_found,
    every_edited_column_of_a_boundary_is_found,
    edits_of_harmless_columns_hide_no_event,
    deleted_rows_are_found,
    a_reading_sees_one_point_in_time,
    a_rewound_run_has_no_problem,
    an_unrecorded_rewind_is_found,
    a_run_row_that_contradicts_the_audit_is_found,
    an_expired_run_has_no_problem_and_vanished_payloads_are_one,
}

/// Two runs with turns, one of them recovered, and more rows than fit on a page.
pub async fn used(engine: &Engine) -> Worker {
    let other = engine.cx.worker().await;
    engine.cx.commit_turn(&other, 1).await;
    let worker = engine.cx.worker().await;
    for turn in 1..=3 {
        let events = vec![event(turn), event(turn)];
        let plan = Commit { events, records: vec![put("plan")], ..worker.plan(turn) };
        engine.cx.commit(&plan).await.unwrap();
        engine.cx.commit_turn(&worker, turn).await;
    }
    for id in ["first", "second"] {
        engine.cx.send_message(&message(&worker, id)).await.unwrap();
    }
    let worker = engine.cx.next_worker(&worker).await;
    assert_eq!(engine.cx.write_records(&batch(&worker, "again")).await.unwrap(), Written::Ok);
    engine.cx.commit(&Commit { inbox: vec![1], ..worker.result(4) }).await.unwrap();
    worker
}

fn message(worker: &Worker, id: &str) -> NewMessage {
    let value = RawValue::from_string(r#"{"text":  "hello"}"#.into()).unwrap();
    let (id, topic, author) = (id.into(), Some("price".into()), "ada".into());
    NewMessage { run: worker.run, id, topic, value, author, audit_id: None }
}

fn put(key: &str) -> RecordOp {
    let value = Payload::Json(RawValue::from_string("1".into()).unwrap());
    RecordOp::Put { space: "notes".into(), key: key.into(), value }
}

/// A batch with a key that has been written before, and this key.
pub fn batch(worker: &Worker, key: &str) -> RecordBatch {
    let Worker { run: _, capability: _, .. } = *worker;
    let operations = vec![put("plan"), put(key)];
    worker.record_batch(operations)
}

fn event(number: i32) -> Box<RawValue> {
    RawValue::from_string(format!(r#"{{"event":  {number}}}"#)).unwrap()
}

async fn a_used_store_has_no_problem(engine: &Engine) {
    used(engine).await;
    let (summary, problems) = engine.check().await;
    assert_eq!(problems, []);
    assert_eq!((summary.runs, summary.boundaries, summary.problems), (2, 8, 0));
    assert!(summary.audit > 10, "{summary:?}");
}

/// The run's id as a literal in the database's SQL.
pub fn id(engine: &Engine, run: RunId) -> String {
    if engine.is_postgres() { format!("'{run}'") } else { format!("x'{}'", run.simple()) }
}

async fn one_problem_after(engine: &Engine, sql: String) {
    engine.execute(&sql).await.unwrap();
    let (_, problems) = engine.check().await;
    assert!(!problems.is_empty(), "not found: {sql}");
}

async fn every_edited_column_of_the_audit_is_found(engine: &Engine) {
    let worker = used(engine).await;
    engine.unlock().await;
    let run = id(engine, worker.run);
    engine.execute("CREATE TABLE kept AS SELECT * FROM audit").await.unwrap();
    for set in [
        "at = at + 1",
        "kind = 'pod'",
        "actor = 'nobody'",
        "detail = '{}'",
        "parent_hash = hash",
        "hash = parent_hash",
        "seq = 99",
    ] {
        one_problem_after(engine, format!("UPDATE audit SET {set} WHERE run = {run} AND seq = 2")).await;
        engine.execute("DELETE FROM audit; INSERT INTO audit SELECT * FROM kept").await.unwrap();
        assert_eq!(engine.check().await.1, []);
    }
}

async fn every_edited_column_of_a_boundary_is_found(engine: &Engine) {
    let worker = used(engine).await;
    let run = id(engine, worker.run);
    engine.execute("CREATE TABLE kept AS SELECT * FROM boundaries").await.unwrap();
    let sets = [
        "run = (SELECT id FROM runs WHERE id <> run LIMIT 1)",
        "turn = 9",
        "boundary = 2, epoch = epoch + 7",
        "epoch = epoch + 7",
        "parent_turn = 0",
        "parent_boundary = 1",
        "parent_boundary = NULL",
        "parent_epoch = 9",
        "parent_hash = content_hash",
        "content_hash = parent_hash",
        "attempt = 9",
        "position = 99",
        "commit_id = run",
        "digest = content_hash",
        "at = at + 1",
        "ops = NULL",
        "ops_digest = digest",
        "is_full = NOT is_full",
        "events = NULL",
        "events_digest = digest",
        "event_count = 0",
        "event_count = event_count + 1",
        "tokens_in = 1",
        "tokens_out = 1",
        "tool_calls = 1",
        "cost_micro_usd = 1",
        "trigger_word = 'x'",
        "records_digest = digest",
        "undone = NOT undone",
        "forked_run = run",
        "forked_turn = 1",
        "forked_hash = digest",
    ];
    for set in sets {
        let sql = format!("UPDATE boundaries SET {set} WHERE run = {run} AND turn = 2 AND boundary = 1");
        one_problem_after(engine, sql).await;
        engine.execute("DELETE FROM boundaries; INSERT INTO boundaries SELECT * FROM kept").await.unwrap();
        assert_eq!(engine.check().await.1, []);
    }
    let edited = sets.iter().map(|set| set.split_once(" = ").unwrap().0).chain(HARMLESS);
    assert_eq!(engine.columns("boundaries").await, edited.map(str::to_owned).collect());
    let half_a_place =
        format!("UPDATE boundaries SET parent_epoch = 1 WHERE run = {run} AND parent_turn IS NULL");
    one_problem_after(engine, half_a_place).await;
}

/// Columns that nothing depends on: the run's own row and its audit say how it ended and that nothing was dropped.
const HARMLESS: [&str; 2] = ["finish", "dropped"];

async fn edits_of_harmless_columns_hide_no_event(engine: &Engine) {
    let worker = used(engine).await;
    let events = async || {
        let query = EventQuery { from: 1, limit: 99, bytes: 9_999 };
        engine.cx.events(worker.run, query).await.unwrap().events.len()
    };
    assert_eq!(events().await, 6);
    for column in HARMLESS {
        engine.execute(&format!("UPDATE boundaries SET {column} = NOT {column}")).await.unwrap();
        assert_eq!(engine.check().await.1, []);
        assert_eq!(events().await, 6, "{column}");
    }
}

async fn deleted_rows_are_found(engine: &Engine) {
    let worker = used(engine).await;
    engine.unlock().await;
    let run = id(engine, worker.run);
    one_problem_after(engine, format!("DELETE FROM boundaries WHERE run = {run} AND turn = 4")).await;
    one_problem_after(engine, format!("DELETE FROM audit WHERE run = {run} AND seq > 3")).await;
    if engine.is_postgres() {
        one_problem_after(engine, format!("DELETE FROM runs WHERE id = {run}")).await;
        let (_, problems) = engine.check().await;
        assert!(problems[0].to_string().contains("the run's own row is missing"), "{problems:?}");
    }
}

async fn a_reading_sees_one_point_in_time(engine: &Engine) {
    let worker = used(engine).await;
    let mut reading = engine.cx.begin_read().await.unwrap();
    let before = reading.runs(None).await.unwrap();
    engine.cx.commit_turn(&worker, 5).await;
    engine.cx.worker().await;
    assert_eq!(reading.runs(None).await.unwrap(), before);
    let after = engine.cx.begin_read().await.unwrap().runs(None).await.unwrap();
    assert_eq!(after.len(), 3);
}

async fn a_rewound_run_has_no_problem(engine: &Engine) {
    let worker = used(engine).await;
    let before = engine.cx.run_of(&worker).await;
    let rewind = rewind_to(before.epoch, result_place(2));
    engine.cx.rewind(worker.run, &rewind).await.unwrap();
    assert_eq!(engine.check().await.1, []);
    let worker = engine.cx.start_worker(&engine.cx.run_of(&worker).await).await;
    let again = Commit { events: vec![event(3)], ..worker.result(3) };
    engine.cx.commit(&again).await.unwrap();
    engine.cx.commit_turn(&worker, 4).await;
    assert_eq!(engine.check().await.1, []);
    let run = id(engine, worker.run);
    one_problem_after(
        engine,
        format!("UPDATE boundaries SET undone = NOT undone WHERE run = {run} AND turn = 3"),
    )
    .await;
}

/// A forged rewind: these statements make boundaries and head agree.
async fn an_unrecorded_rewind_is_found(engine: &Engine) {
    let worker = used(engine).await;
    let run = id(engine, worker.run);
    let flip = |head: i32| {
        format!(
            "UPDATE boundaries SET undone = NOT undone WHERE run = {run} AND turn > 2; \
             UPDATE records SET undone = NOT undone WHERE run = {run} AND turn > 2; \
             UPDATE record_changes SET undone = NOT undone WHERE run = {run} AND turn > 2; \
             UPDATE runs SET head_turn = b.turn, head_epoch = b.epoch, head_hash = b.content_hash FROM boundaries b \
             WHERE id = {run} AND b.run = {run} AND b.turn = {head} AND b.boundary = head_boundary"
        )
    };
    let unrecorded =
        "turn 3 (plan): it is marked as undone, and the audit does not say that a rewind undid it";
    found(engine, &worker, &flip(2), unrecorded).await;
    engine.execute(&flip(4)).await.unwrap();
    assert_eq!(engine.check().await.1, []);

    let epoch = engine.cx.run_of(&worker).await.epoch;
    let rewind = rewind_to(epoch, result_place(2));
    engine.cx.rewind(worker.run, &rewind).await.unwrap();
    let unmarked =
        "turn 3 (plan): the audit says that a rewind undid it, and it is not marked as undone, or is missing";
    found(engine, &worker, &flip(4), unmarked).await;
}

async fn a_run_row_that_contradicts_the_audit_is_found(engine: &Engine) {
    let worker = used(engine).await;
    let run = id(engine, worker.run);
    engine.execute("CREATE TABLE kept AS SELECT * FROM runs").await.unwrap();
    for (column, set) in [
        ("tenant", "tenant = 'x'"),
        ("namespace", "namespace = 'x'"),
        ("name", "name = 'x'"),
        ("objectUID", "object_uid = 'x'"),
        ("lifecycle", "lifecycle = 'finished'"),
        ("outcome", "finish_outcome = 'Succeeded'"),
    ] {
        let sql = format!("UPDATE runs SET {set} WHERE id = {run}");
        found(engine, &worker, &sql, &format!("runs: its {column} is not what the audit says")).await;
        let columns = ["tenant", "namespace", "name", "object_uid", "lifecycle", "finish_outcome"];
        let back = columns.map(|it| format!("{it} = (SELECT {it} FROM kept WHERE kept.id = runs.id)"));
        engine.execute(&format!("UPDATE runs SET {}", back.join(", "))).await.unwrap();
        assert_eq!(engine.check().await.1, []);
    }
    engine.cx.mark_deleted(&worker.object_uid).await.unwrap();
    assert_eq!(engine.check().await.1, []);
    let alive = format!("UPDATE runs SET lifecycle = 'live' WHERE id = {run}");
    found(engine, &worker, &alive, "runs: its lifecycle is not what the audit says").await;
}

/// Asserts that this statement causes exactly this problem: in the check of the store, in the check of the run, and in the
/// run's bundle unless the bundle cannot show it.
async fn found(engine: &Engine, worker: &Worker, sql: &str, problem: &str) {
    engine.execute(sql).await.unwrap();
    let problem = format!("run {}, {problem}", worker.run);
    let shown = |problems: Vec<Problem>| problems.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(shown(engine.check().await.1), [problem.as_str()], "{sql}");
    let mut reading = engine.cx.begin_read().await.unwrap();
    let alone = check_run(&mut *reading, worker.run).await.unwrap();
    assert_eq!(shown(alone.problems), [problem.as_str()], "{sql}");
    let bundle = bundles::bundle(reading, worker.run, bundles::signer().await).await;
    let in_bundle = shown(verify(&bundle[..], None).unwrap().problems);
    assert!(in_bundle == [problem.as_str()] || sql.contains("finish_outcome"), "{sql}: {in_bundle:?}");
}

async fn an_expired_run_has_no_problem_and_vanished_payloads_are_one(engine: &Engine) {
    let worker = used(engine).await;
    engine.cx.finish(&worker.finish()).await.unwrap();
    engine.cx.set_retention(worker.run, &Retention { days: 0, ..Retention::default() }).await.unwrap();
    while engine.cx.drop_expired(2).await.unwrap().run.is_some() {
        assert_eq!(engine.check().await.1, [], "also between two steps");
    }
    let reading = engine.cx.begin_read().await.unwrap();
    let bundle = bundles::bundle(reading, worker.run, bundles::signer().await).await;
    assert!(replayed(&bundle[..], 1).is_err(), "no state can be built without payloads");
    let found = verify(&bundle[..], None).unwrap();
    assert_eq!((found.boundaries, found.events, found.problems), (7, 0, vec![]));

    let yes = if engine.is_postgres() { "true" } else { "1" };
    let vanish = async |run: RunId| {
        let run = id(engine, run);
        let sql =
            format!("UPDATE boundaries SET dropped = {yes}, ops = NULL, events = NULL WHERE run = {run}");
        engine.execute(&sql).await.unwrap();
        let (_, problems) = engine.check().await;
        problems.into_iter().map(|problem| problem.what).collect::<Vec<_>>()
    };
    let over = engine.cx.worker().await;
    engine.cx.commit_turn(&over, 1).await;
    engine.cx.finish(&over.finish()).await.unwrap();
    let unrecorded = "its payloads are missing, and the audit does not say that they were dropped";
    assert_eq!(vanish(over.run).await, [unrecorded]);
    let live = engine.cx.worker().await;
    engine.cx.commit_turn(&live, 1).await;
    let other = "it has another payload than was committed";
    assert_eq!(vanish(live.run).await[..2], [unrecorded, other], "a live run has no retention");
}
