//! The check of a whole store, on the databases.

use dalsegno_protocol::{Boundary, Payload, RawValue, RecordOp};
use dalsegno_store::proof::bundle::{state as replayed, verify};
use dalsegno_store::proof::{Problem, check_run};
use dalsegno_store::{Commit, EventQuery, Place, RecordBatch, Retention, Rewind, RunId, Written};
use uuid::Uuid;

use crate::bundles;
use crate::world::{Worker, random};
use crate::{Face, on_both};

on_both! {
    a_store_that_was_worked_with_has_no_problem,
    every_edited_column_of_the_audit_is_found,
    every_edited_column_of_a_boundary_is_found,
    what_nobody_goes_by_hides_no_event,
    what_is_deleted_is_found,
    a_reading_is_one_moment,
    a_rewound_run_has_no_problem,
    a_rewind_that_the_audit_does_not_tell_of_is_found,
    a_run_whose_own_row_says_something_else_than_its_audit_is_found,
    a_run_past_its_retention_has_no_problem_and_payloads_that_just_vanish_are_one,
}

/// Two runs with turns, one of them recovered, and more rows than a page has.
pub async fn worked_with(face: &Face) -> Worker {
    let other = face.world.worker().await;
    face.world.turn(&other, 1).await;
    let worker = face.world.worker().await;
    for turn in 1..=3 {
        let events = vec![event(turn), event(turn)];
        let plan = Commit { events, records: vec![put("plan")], ..worker.plan(turn) };
        face.world.commit(&plan).await.unwrap();
        face.world.turn(&worker, turn).await;
    }
    let worker = face.world.next(&worker).await;
    assert_eq!(face.world.write_records(&batch(&worker, "again")).await.unwrap(), Written::Ok);
    face.world.turn(&worker, 4).await;
    worker
}

fn put(key: &str) -> RecordOp {
    let value = Payload::Json(RawValue::from_string("1".into()).unwrap());
    RecordOp::Put { space: "notes".into(), key: key.into(), value }
}

/// Of a key that has been written before, and of its own.
pub fn batch(worker: &Worker, key: &str) -> RecordBatch {
    let Worker { run, capability, .. } = *worker;
    let operations = vec![put("plan"), put(key)];
    RecordBatch { run, capability, batch_id: Uuid::new_v4(), digest: random(), operations }
}

fn event(number: i32) -> Box<RawValue> {
    RawValue::from_string(format!(r#"{{"event":  {number}}}"#)).unwrap()
}

async fn a_store_that_was_worked_with_has_no_problem(face: &Face) {
    worked_with(face).await;
    let (summary, problems) = face.check().await;
    assert_eq!(problems, []);
    assert_eq!((summary.runs, summary.boundaries, summary.problems), (2, 8, 0));
    assert!(summary.audit > 10, "{summary:?}");
}

/// How a run's id is written in the database's own SQL.
pub fn id(face: &Face, run: RunId) -> String {
    if face.is_postgres() { format!("'{run}'") } else { format!("x'{}'", run.simple()) }
}

async fn one_problem_after(face: &Face, sql: String) {
    face.execute(&sql).await.unwrap();
    let (_, problems) = face.check().await;
    assert!(!problems.is_empty(), "not found: {sql}");
}

async fn every_edited_column_of_the_audit_is_found(face: &Face) {
    let worker = worked_with(face).await;
    face.unlock().await;
    let run = id(face, worker.run);
    face.execute("CREATE TABLE kept AS SELECT * FROM audit").await.unwrap();
    for set in [
        "at = at + 1",
        "kind = 'pod'",
        "actor = 'nobody'",
        "detail = '{}'",
        "parent_hash = hash",
        "hash = parent_hash",
        "seq = 99",
    ] {
        one_problem_after(face, format!("UPDATE audit SET {set} WHERE run = {run} AND seq = 2")).await;
        face.execute("DELETE FROM audit; INSERT INTO audit SELECT * FROM kept").await.unwrap();
        assert_eq!(face.check().await.1, []);
    }
}

async fn every_edited_column_of_a_boundary_is_found(face: &Face) {
    let worker = worked_with(face).await;
    let run = id(face, worker.run);
    face.execute("CREATE TABLE kept AS SELECT * FROM boundaries").await.unwrap();
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
    ];
    for set in sets {
        let sql = format!("UPDATE boundaries SET {set} WHERE run = {run} AND turn = 2 AND boundary = 1");
        one_problem_after(face, sql).await;
        face.execute("DELETE FROM boundaries; INSERT INTO boundaries SELECT * FROM kept").await.unwrap();
        assert_eq!(face.check().await.1, []);
    }
    let edited = sets.iter().map(|set| set.split_once(" = ").unwrap().0).chain(HARMLESS);
    assert_eq!(face.columns("boundaries").await, edited.map(str::to_owned).collect());
    let half_a_place =
        format!("UPDATE boundaries SET parent_epoch = 1 WHERE run = {run} AND parent_turn IS NULL");
    one_problem_after(face, half_a_place).await;
}

/// Columns that nobody goes by: how a run ended, and that nothing of it was dropped, its own row and its audit say.
const HARMLESS: [&str; 2] = ["finish", "dropped"];

async fn what_nobody_goes_by_hides_no_event(face: &Face) {
    let worker = worked_with(face).await;
    let events = async || {
        let query = EventQuery { from: 1, limit: 99, bytes: 9_999 };
        face.world.events(worker.run, query).await.unwrap().events.len()
    };
    assert_eq!(events().await, 6);
    for column in HARMLESS {
        face.execute(&format!("UPDATE boundaries SET {column} = NOT {column}")).await.unwrap();
        assert_eq!(face.check().await.1, []);
        assert_eq!(events().await, 6, "{column}");
    }
}

async fn what_is_deleted_is_found(face: &Face) {
    let worker = worked_with(face).await;
    face.unlock().await;
    let run = id(face, worker.run);
    one_problem_after(face, format!("DELETE FROM boundaries WHERE run = {run} AND turn = 4")).await;
    one_problem_after(face, format!("DELETE FROM audit WHERE run = {run} AND seq > 3")).await;
    if face.is_postgres() {
        one_problem_after(face, format!("DELETE FROM runs WHERE id = {run}")).await;
        let (_, problems) = face.check().await;
        assert!(problems[0].to_string().contains("the run's own row is missing"), "{problems:?}");
    }
}

async fn a_reading_is_one_moment(face: &Face) {
    let worker = worked_with(face).await;
    let mut reading = face.world.reading().await.unwrap();
    let before = reading.runs(None).await.unwrap();
    face.world.turn(&worker, 5).await;
    face.world.worker().await;
    assert_eq!(reading.runs(None).await.unwrap(), before);
    let after = face.world.reading().await.unwrap().runs(None).await.unwrap();
    assert_eq!(after.len(), 3);
}

async fn a_rewound_run_has_no_problem(face: &Face) {
    let worker = worked_with(face).await;
    let before = face.world.of(&worker).await;
    let to = Place { turn: 2, boundary: Boundary::Result, epoch: 1 };
    let rewind = Rewind { epoch: before.epoch, to, reason: "it went astray".into(), actor: "ada".into() };
    face.world.rewind(worker.run, &rewind).await.unwrap();
    assert_eq!(face.check().await.1, []);
    let worker = face.world.work_on(&face.world.of(&worker).await).await;
    let again = Commit { events: vec![event(3)], ..worker.result(3) };
    face.world.commit(&again).await.unwrap();
    face.world.turn(&worker, 4).await;
    assert_eq!(face.check().await.1, []);
    let run = id(face, worker.run);
    one_problem_after(
        face,
        format!("UPDATE boundaries SET undone = NOT undone WHERE run = {run} AND turn = 3"),
    )
    .await;
}

/// Two statements are enough to bend a branch so that its boundaries and its head agree.
async fn a_rewind_that_the_audit_does_not_tell_of_is_found(face: &Face) {
    let worker = worked_with(face).await;
    let run = id(face, worker.run);
    let bend = |head: i32| {
        format!(
            "UPDATE boundaries SET undone = NOT undone WHERE run = {run} AND turn > 2; \
             UPDATE records SET undone = NOT undone WHERE run = {run} AND turn > 2; \
             UPDATE record_changes SET undone = NOT undone WHERE run = {run} AND turn > 2; \
             UPDATE runs SET head_turn = b.turn, head_epoch = b.epoch, head_hash = b.content_hash FROM boundaries b \
             WHERE id = {run} AND b.run = {run} AND b.turn = {head} AND b.boundary = head_boundary"
        )
    };
    let untold = "turn 3 (plan): it is marked as undone, and the audit does not say that a rewind undid it";
    found(face, &worker, &bend(2), untold).await;
    face.execute(&bend(4)).await.unwrap();
    assert_eq!(face.check().await.1, []);

    let epoch = face.world.of(&worker).await.epoch;
    let to = Place { turn: 2, boundary: Boundary::Result, epoch: 1 };
    let rewind = Rewind { epoch, to, reason: "it went astray".into(), actor: "ada".into() };
    face.world.rewind(worker.run, &rewind).await.unwrap();
    let unmarked =
        "turn 3 (plan): the audit says that a rewind undid it, and it is not marked as undone, or is missing";
    found(face, &worker, &bend(4), unmarked).await;
}

async fn a_run_whose_own_row_says_something_else_than_its_audit_is_found(face: &Face) {
    let worker = worked_with(face).await;
    let run = id(face, worker.run);
    face.execute("CREATE TABLE kept AS SELECT * FROM runs").await.unwrap();
    for (column, set) in [
        ("tenant", "tenant = 'x'"),
        ("namespace", "namespace = 'x'"),
        ("name", "name = 'x'"),
        ("objectUID", "object_uid = 'x'"),
        ("lifecycle", "lifecycle = 'finished'"),
        ("outcome", "finish_outcome = 'Succeeded'"),
    ] {
        let sql = format!("UPDATE runs SET {set} WHERE id = {run}");
        found(face, &worker, &sql, &format!("runs: its {column} is not what the audit says")).await;
        let columns = ["tenant", "namespace", "name", "object_uid", "lifecycle", "finish_outcome"];
        let back = columns.map(|it| format!("{it} = (SELECT {it} FROM kept WHERE kept.id = runs.id)"));
        face.execute(&format!("UPDATE runs SET {}", back.join(", "))).await.unwrap();
        assert_eq!(face.check().await.1, []);
    }
    face.world.mark_deleted(&worker.object_uid).await.unwrap();
    assert_eq!(face.check().await.1, []);
    let alive = format!("UPDATE runs SET lifecycle = 'live' WHERE id = {run}");
    found(face, &worker, &alive, "runs: its lifecycle is not what the audit says").await;
}

/// One problem after this statement: of the store, of the run, and of its bundle, unless that cannot tell.
async fn found(face: &Face, worker: &Worker, sql: &str, problem: &str) {
    face.execute(sql).await.unwrap();
    let problem = format!("run {}, {problem}", worker.run);
    let shown = |problems: Vec<Problem>| problems.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(shown(face.check().await.1), [problem.as_str()], "{sql}");
    let mut reading = face.world.reading().await.unwrap();
    let alone = check_run(&mut *reading, worker.run).await.unwrap();
    assert_eq!(shown(alone.problems), [problem.as_str()], "{sql}");
    let bundle = bundles::bundle(reading, worker.run, bundles::signer().await).await;
    let told = shown(verify(&bundle[..], None).unwrap().problems);
    assert!(told == [problem.as_str()] || sql.contains("finish_outcome"), "{sql}: {told:?}");
}

async fn a_run_past_its_retention_has_no_problem_and_payloads_that_just_vanish_are_one(face: &Face) {
    let worker = worked_with(face).await;
    face.world.finish(&worker.finish()).await.unwrap();
    face.world.set_retention(worker.run, &Retention { days: 0, keep_last: None }).await.unwrap();
    while face.world.drop_expired(2).await.unwrap().run.is_some() {
        assert_eq!(face.check().await.1, [], "also between two steps");
    }
    let reading = face.world.reading().await.unwrap();
    let bundle = bundles::bundle(reading, worker.run, bundles::signer().await).await;
    assert!(replayed(&bundle[..], 1).is_err(), "no state is made of what is not there");
    let found = verify(&bundle[..], None).unwrap();
    assert_eq!((found.boundaries, found.events, found.problems), (7, 0, vec![]));

    let yes = if face.is_postgres() { "true" } else { "1" };
    let vanish = async |run: RunId| {
        let run = id(face, run);
        let sql =
            format!("UPDATE boundaries SET dropped = {yes}, ops = NULL, events = NULL WHERE run = {run}");
        face.execute(&sql).await.unwrap();
        let (_, problems) = face.check().await;
        problems.into_iter().map(|problem| problem.what).collect::<Vec<_>>()
    };
    let over = face.world.worker().await;
    face.world.turn(&over, 1).await;
    face.world.finish(&over.finish()).await.unwrap();
    let untold = "its payloads are missing, and the audit does not say that they were dropped";
    assert_eq!(vanish(over.run).await, [untold]);
    let live = face.world.worker().await;
    face.world.turn(&live, 1).await;
    let other = "it has another payload than was committed";
    assert_eq!(vanish(live.run).await[..2], [untold, other], "a live run has no retention");
}
