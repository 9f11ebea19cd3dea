//! Each kind of damage, on both databases: it is found, and the run can be rewound to the last good boundary.

use dalsegno_model::{CallFilter, Class, Commit, Error, EventQuery, NewRun, Rewind, Rewound, RunRecord};
use dalsegno_proof::check_run;
use dalsegno_proof::verify::{self, Checkpoint, CheckpointCorruption};
use dalsegno_protocol::{Boundary, Payload, Policy, RecordOp};

use crate::context::*;
use crate::{Engine, on_both_databases};

on_both_databases! {
    an_untouched_run_is_valid,
    damage_is_found_and_the_run_is_rewound,
    a_wholly_damaged_run_has_no_last_good_boundary,
    a_run_with_a_lost_head_is_not_taken_for_a_fresh_one,
    damage_before_the_last_full_state_is_reported_and_does_not_stop_the_run,
    effects_of_undone_turns_are_listed,
    records_of_undone_turns_are_hidden,
    an_edited_audit_row_is_found,
    an_unavailable_store_is_not_corrupt,
}

/// The operations of a turn, and whether they are the full state.
fn full_at(turn: i32, full: &[i32]) -> (String, bool) {
    let full = full.contains(&turn);
    let start = if full { r#""full":true,"# } else { "" };
    (format!(r#"{{{start}"append":{{"log":[{{"json":{turn}}}]}}}}"#), full)
}

fn put(key: &str) -> RecordOp {
    RecordOp::Put { space: "s".into(), key: key.into(), value: Payload::Json(json("1")) }
}

/// A run with this name and this number of turns, each with an event and a record. Its next attempt is reserved.
pub async fn run(cx: &TestContext, name: &str, turns: i32, full: &[i32]) -> RunRecord {
    let worker = cx.start_worker(&cx.create(&NewRun { name: name.into(), ..new_run() }).await).await;
    for turn in 1..=turns {
        let (ops, full) = full_at(turn, full);
        let commit = Commit {
            ops: Some(ops.into()),
            full,
            events: vec![json(&turn.to_string())],
            records: vec![put(&format!("k{turn}"))],
            trigger: (turn % 2 == 0).then(|| "TASK_END".into()),
            ..worker.result(turn)
        };
        ok(cx.commit(&commit).await.unwrap());
    }
    cx.end_and_reserve(&worker, Class::Disruption).await
}

async fn corruption(cx: &TestContext, run: &RunRecord) -> CheckpointCorruption {
    match verify::checkpoint(&*cx.store, run).await.unwrap() {
        Checkpoint::Corrupt(corruption) => corruption,
        Checkpoint::Valid => panic!("the checkpoint is valid"),
    }
}

async fn state(cx: &TestContext, run: &RunRecord) -> String {
    serde_json::to_string(&cx.state(run.id, None).await.unwrap()).unwrap()
}

/// Rewinds to the last good boundary, as the operator does.
async fn rewind_to_last_good(cx: &TestContext, run: &RunRecord, found: &CheckpointCorruption) -> RunRecord {
    let to = found.last_good.as_ref().unwrap().boundary;
    let rewind = Rewind { epoch: run.epoch, to, reason: found.detail.clone(), actor: "operator".into() };
    match cx.rewind(run.id, &rewind).await.unwrap() {
        Rewound::Done(run) => *run,
        Rewound::Refused(run) => panic!("refused, with {:?}", run.head),
    }
}

async fn an_untouched_run_is_valid(engine: &Engine) {
    let cx = &engine.cx;
    let run = run(cx, "one", 6, &[]).await;
    assert_eq!(verify::checkpoint(&*cx.store, &run).await.unwrap(), Checkpoint::Valid);
    let found = verify::scan(&*cx.store, &run).await.unwrap();
    assert_eq!((found.boundaries, found.damage, found.last_good.unwrap().turn), (6, vec![], 6));
    let fresh = cx.run().await;
    assert_eq!(verify::checkpoint(&*cx.store, &fresh).await.unwrap(), Checkpoint::Valid);
    assert_eq!(verify::scan(&*cx.store, &fresh).await.unwrap(), Default::default());
}

/// Damage to the run `one`, which has six turns and no full state, and the last good turn after the damage.
const EDITS: &[(i32, &str)] = &[
    // A wrong hash or digest.
    (3, "UPDATE boundaries SET content_hash = digest WHERE turn = 4"),
    (3, "UPDATE boundaries SET parent_hash = digest WHERE turn = 4"),
    (3, "UPDATE boundaries SET ops_digest = digest WHERE turn = 4"),
    (3, "UPDATE boundaries SET events_digest = NULL WHERE turn = 4"),
    (3, "UPDATE boundaries SET ops_digest = NULL, ops = NULL WHERE turn = 4"),
    // A missing row.
    (5, "DELETE FROM boundaries WHERE turn = 6"),
    (2, "DELETE FROM boundaries WHERE turn = 3"),
    (2, "DELETE FROM boundaries WHERE turn IN (3, 5)"),
    // A parent that does not exist, is later, or is the row itself.
    (3, "UPDATE boundaries SET parent_turn = 4 WHERE turn = 4"),
    (2, "UPDATE boundaries SET parent_turn = 6 WHERE turn = 3"),
    (3, "UPDATE boundaries SET parent_epoch = 9 WHERE turn = 4"),
    (
        3,
        "UPDATE boundaries SET parent_turn = NULL, parent_boundary = NULL, parent_epoch = NULL WHERE turn = 4",
    ),
    // A payload that is cut, or belongs to another boundary.
    (4, "UPDATE boundaries SET ops = substr(ops, 1, length(ops) - 1) WHERE turn = 5"),
    (4, "UPDATE boundaries SET events = substr(events, 1, 3) WHERE turn = 5"),
    (
        1,
        "UPDATE boundaries SET ops = (SELECT ops FROM boundaries o WHERE o.run = boundaries.run AND o.turn = 5) \
         WHERE turn = 2",
    ),
    (
        1,
        "UPDATE boundaries SET ops = (SELECT o.ops FROM boundaries o JOIN runs r ON r.id = o.run \
         WHERE r.name = 'two' AND o.turn = 3) WHERE turn = 2",
    ),
    // A hash of another run's row.
    (
        1,
        "UPDATE boundaries SET content_hash = (SELECT o.content_hash FROM boundaries o JOIN runs r ON r.id = o.run \
         WHERE r.name = 'two' AND o.turn = 2) WHERE turn = 2",
    ),
    // A field of the header.
    (3, "UPDATE boundaries SET epoch = 7 WHERE turn = 4"),
    (3, "UPDATE boundaries SET boundary = 1 WHERE turn = 4"),
    (3, "UPDATE boundaries SET attempt = 2 WHERE turn = 4"),
    (3, "UPDATE boundaries SET at = at + 1 WHERE turn = 4"),
    (3, "UPDATE boundaries SET position = position + 1 WHERE turn = 4"),
    (3, "UPDATE boundaries SET commit_id = run WHERE turn = 4"),
    (3, "UPDATE boundaries SET digest = content_hash WHERE turn = 4"),
    (3, "UPDATE boundaries SET is_full = NOT is_full WHERE turn = 4"),
    (3, "UPDATE boundaries SET tokens_in = tokens_in + 1 WHERE turn = 4"),
    (3, "UPDATE boundaries SET cost_micro_usd = 1 WHERE turn = 4"),
    (3, "UPDATE boundaries SET trigger_word = NULL WHERE turn = 4"),
    (3, "UPDATE boundaries SET records_digest = NULL WHERE turn = 4"),
    // A head that matches no boundary's hash.
    (6, "UPDATE runs SET head_hash = audit_hash WHERE TRUE"),
    (6, "UPDATE runs SET head_epoch = 9 WHERE TRUE"),
];

async fn damage_is_found_and_the_run_is_rewound(engine: &Engine) {
    let cx = &engine.cx;
    for (number, (last_good, edit)) in EDITS.iter().enumerate() {
        let one = run(cx, "one", 6, &[]).await;
        let two = run(cx, "two", 6, &[]).await;
        // Edit only this run's rows: earlier cases have left damaged ones.
        let edit = if edit.contains("boundaries") {
            format!("{edit} AND run = (SELECT id FROM runs WHERE object_uid = '{}')", one.object_uid)
        } else {
            format!("{edit} AND id = (SELECT id FROM runs WHERE object_uid = '{}')", one.object_uid)
        };
        engine.edit(&edit.replace("r.name = 'two'", &format!("r.object_uid = '{}'", two.object_uid))).await;

        let one = cx.run_by_uid(&one.object_uid).await;
        let state_there = cx.state(one.id, None).await;
        assert!(matches!(state_there, Err(Error::Corrupt { .. })), "{number}: {edit}: {state_there:?}");
        let found = corruption(cx, &one).await;
        let good = found.last_good.as_ref().unwrap_or_else(|| panic!("{edit}: {}", found.detail));
        assert_eq!(
            (good.boundary.turn, good.boundary.boundary),
            (*last_good, Boundary::Result),
            "{edit}: {found:?}"
        );
        assert!(good.effects.is_empty());

        let rewound = rewind_to_last_good(cx, &one, &found).await;
        assert_eq!(rewound.head.as_ref().unwrap().turn, *last_good);
        assert_eq!(rewound.highest_turn, 6);
        let valid = verify::checkpoint(&*cx.store, &rewound).await.unwrap();
        assert_eq!(valid, Checkpoint::Valid, "{edit}");
        let log: Vec<_> = (1..=*last_good).map(|turn| format!(r#"{{"json":{turn}}}"#)).collect();
        assert_eq!(state(cx, &rewound).await, format!(r#"{{"log":{{"list":[{}]}}}}"#, log.join(",")));
        let worker = cx.start_worker(&rewound).await;
        cx.commit_turn(&worker, last_good + 1).await;
        assert_eq!(
            verify::checkpoint(&*cx.store, &cx.run_of(&worker).await).await.unwrap(),
            Checkpoint::Valid
        );
        let untouched = verify::scan(&*cx.store, &two).await.unwrap();
        assert_eq!(untouched.damage, vec![], "the other run is unchanged");
        // Free the names for the next case.
        for done in [&one, &two] {
            cx.mark_deleted(&done.object_uid).await.unwrap();
        }
    }
}

async fn a_wholly_damaged_run_has_no_last_good_boundary(engine: &Engine) {
    let cx = &engine.cx;
    for edit in [
        "DELETE FROM boundaries WHERE turn = 1",
        "DELETE FROM boundaries WHERE turn > 0",
        "UPDATE boundaries SET ops = substr(ops, 1, length(ops) - 1) WHERE turn > 0",
    ] {
        let one = run(cx, &new_run().name, 3, &[]).await;
        engine
            .edit(&format!("{edit} AND run = (SELECT id FROM runs WHERE object_uid = '{}')", one.object_uid))
            .await;
        let found = corruption(cx, &one).await;
        assert_eq!(found.last_good, None, "{edit}: {}", found.detail);
    }
}

async fn a_run_with_a_lost_head_is_not_taken_for_a_fresh_one(engine: &Engine) {
    let cx = &engine.cx;
    let one = run(cx, "one", 3, &[]).await;
    engine
        .edit("UPDATE runs SET head_turn = NULL, head_boundary = NULL, head_epoch = NULL, head_hash = NULL")
        .await;
    let one = cx.run_by_uid(&one.object_uid).await;
    assert_eq!((one.head.clone(), one.highest_turn), (None, 3));
    let found = corruption(cx, &one).await;
    assert!(found.detail.contains("turn 3 was reached"), "{}", found.detail);
}

async fn damage_before_the_last_full_state_is_reported_and_does_not_stop_the_run(engine: &Engine) {
    let cx = &engine.cx;
    let one = run(cx, "one", 6, &[1, 4]).await;
    engine.edit("UPDATE boundaries SET tokens_in = 7 WHERE turn = 2").await;
    assert_eq!(verify::checkpoint(&*cx.store, &one).await.unwrap(), Checkpoint::Valid);
    let found = verify::scan(&*cx.store, &one).await.unwrap();
    assert_eq!(found.damage.len(), 1);
    assert!(found.damage[0].to_string().starts_with("turn 2 (result): "), "{}", found.damage[0]);
    assert_eq!(found.last_good.unwrap().turn, 6);

    engine.edit("UPDATE boundaries SET tokens_in = 7 WHERE turn = 6").await;
    let found = corruption(cx, &one).await;
    assert_eq!(found.last_good.as_ref().unwrap().boundary.turn, 5, "the state is whole from turn 4 on");
    assert_eq!(
        state(cx, &rewind_to_last_good(cx, &one, &found).await).await,
        r#"{"log":{"list":[{"json":4},{"json":5}]}}"#
    );
}

async fn effects_of_undone_turns_are_listed(engine: &Engine) {
    let cx = &engine.cx;
    let worker = cx.worker().await;
    // `late` and `slow` are planned or started in a turn that stays, and claimed or completed in an undone one.
    let calls = vec![planned("late", Policy::Probe), planned("never", Policy::Probe)];
    ok(cx.commit(&Commit { calls, ..worker.plan(1) }).await.unwrap());
    let slow = cx.start_call(&worker, "slow", Policy::Probe).await;
    for (turn, id, policy) in
        [(1, "before", Policy::RetrySameKey), (2, "looked", Policy::ReadOnly), (3, "paid", Policy::Probe)]
    {
        if turn == 3 {
            cx.start_call(&worker, "late", Policy::Probe).await;
            cx.complete(&worker.complete(&slow)).await.unwrap();
        }
        let claim = cx.start_call(&worker, id, policy).await;
        cx.complete(&worker.complete(&claim)).await.unwrap();
        let open_calls = ["slow", "late"].map(str::to_owned).to_vec();
        ok(cx.commit(&Commit { open_calls, ..worker.result(turn) }).await.unwrap());
    }
    cx.start_call(&worker, "begun", Policy::RetrySameKey).await;
    cx.start_call(&worker, "looking", Policy::ReadOnly).await;
    let run = cx.end_and_reserve(&worker, Class::Disruption).await;
    engine.edit("UPDATE boundaries SET tokens_in = 7 WHERE turn = 3").await;
    // Each turn has the full state, so only the head is lost.
    let good = corruption(cx, &run).await.last_good.unwrap();
    assert_eq!((good.boundary.turn, good.effects.join(" ").as_str()), (2, "late slow paid begun"));
}

async fn records_of_undone_turns_are_hidden(engine: &Engine) {
    let cx = &engine.cx;
    let one = run(cx, "one", 3, &[]).await;
    engine.edit("UPDATE boundaries SET records_digest = digest WHERE turn = 2").await;
    let found = corruption(cx, &one).await;
    rewind_to_last_good(cx, &one, &found).await;
    let query = all_records();
    let page = cx.read_records(one.id, &query).await.unwrap();
    assert_eq!(page.records.iter().map(|record| &*record.key).collect::<Vec<_>>(), ["k1"]);
}

async fn an_edited_audit_row_is_found(engine: &Engine) {
    let cx = &engine.cx;
    let one = run(cx, "one", 1, &[]).await;
    engine.drop_audit_triggers().await;
    engine.edit("UPDATE audit SET actor = 'nobody' WHERE seq = 3").await;
    let mut reading = cx.begin_read().await.unwrap();
    let problems = check_run(&mut *reading, one.id).await.unwrap().problems;
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(
        problems[0]
            .to_string()
            .ends_with("audit row 3: it was edited: it does not have the hash it must have")
    );
}

async fn an_unavailable_store_is_not_corrupt(engine: &Engine) {
    let cx = &engine.cx;
    let one = run(cx, "one", 3, &[]).await;
    engine.edit("ALTER TABLE boundaries RENAME TO gone; UPDATE runs SET name = name").await;
    let answer = verify::checkpoint(&*cx.store, &one).await;
    assert!(matches!(answer, Err(Error::Unavailable { .. })), "{answer:?}");
}

/// Such a row is damaged. It is not reported as unreadable without keys: this store has no keys.
#[tokio::test]
async fn a_seal_mark_in_a_plain_store_is_damage() {
    let engine = Engine::file().await;
    let cx = &engine.cx;
    let worker = cx.worker().await;
    let commit = Commit { events: vec![json("1")], records: vec![put("k")], ..worker.result(1) };
    ok(cx.commit(&commit).await.unwrap());
    let claim = cx.start_call(&worker, "pay", Policy::Probe).await;
    cx.complete(&worker.complete(&claim)).await.unwrap();
    for (table, column) in
        [("calls", "arguments"), ("calls", "result"), ("boundaries", "events"), ("records", "value")]
    {
        engine
            .edit(&format!("UPDATE {table} SET {column} = CAST(x'10' || substr({column}, 2) AS BLOB)"))
            .await;
    }
    let query = EventQuery { from: 1, limit: 9, bytes: 1 << 20 };
    assert!(matches!(cx.events(worker.run, query).await, Err(Error::Corrupt { .. })));
    let query = all_records();
    assert!(matches!(cx.read_records(worker.run, &query).await, Err(Error::Corrupt { .. })));
    assert!(matches!(cx.calls(worker.run, CallFilter::All).await, Err(Error::Corrupt { .. })));
    let other = cx.worker().await;
    cx.start_call(&other, "ship", Policy::Probe).await;
    engine
        .edit("UPDATE calls SET arguments = CAST(x'10' || substr(arguments, 2) AS BLOB) WHERE id = 'ship'")
        .await;
    let held = corruption(cx, &cx.end_and_reserve(&other, Class::Disruption).await).await;
    assert!(held.detail.contains("ship"), "{}", held.detail);
}
