//! Forks: a new run begins with the state and the records of another run, and the other run is not touched.

use std::sync::Arc;

use dalsegno_format::fold;
use dalsegno_model::audit::kind;
use dalsegno_model::{
    AvailableTurns, Class, Commit, Effects, ForkRefusal, ForkRequest, ForkState, Forked, Identity, NewRun,
    ParentRun, RecordPage, RequestedBy, Retention, RunId, RunLimits, RunRecord, Shred,
};
use dalsegno_proof::bundle::{Export, ExportOf, verify as verify_bundle};
use dalsegno_proof::{Signer, check_run, verify};
use dalsegno_protocol::{Payload, Policy, RecordOp};
use serde_json::Value;
use uuid::Uuid;

use crate::context::*;
use crate::engines::{on_every_engine, on_every_persistent_engine, tamper};
use crate::requested_rewinds::request as rewind_request;

on_every_engine! {
    a_fork_goes_on_from_a_turn_of_its_parent,
    the_parent_is_not_touched,
    records_are_copied_page_by_page_and_once,
    records_are_those_of_the_turn,
    later_calls_with_effects_must_be_named,
    a_fork_needs_a_parent_of_its_namespace,
    a_turn_that_is_not_there_is_refused,
    a_rewind_of_the_parent_during_the_copy_stops_the_fork,
    a_fork_of_a_shredded_run_is_refused,
    a_fork_begins_with_the_version_of_its_parent_and_without_usage,
    a_fork_goes_back_to_its_beginning_and_no_further,
    a_fork_can_be_forked_and_outlives_its_parent,
    the_bundle_of_a_fork_is_verified_without_its_parent,
}

on_every_persistent_engine! {
    a_fork_that_names_another_parent_is_found,
}

/// A request to fork this run.
pub fn fork_of(parent: &str, turn: Option<i32>) -> ForkRequest {
    ForkRequest {
        parent: ParentRun::ObjectUid(parent.into()),
        turn,
        accept_effects: Vec::new(),
        requested_by: RequestedBy { user: Some("ada".into()), ..RequestedBy::default() },
    }
}

/// A new run that begins as a fork.
pub async fn new_fork(cx: &TestContext) -> RunRecord {
    cx.create(&NewRun { is_fork: true, ..new_run() }).await
}

/// Takes all steps of a fork. Returns how many there were besides the one that accepts it.
pub async fn copy_all(cx: &TestContext, run: RunId, request: &ForkRequest) -> (RunRecord, usize) {
    for steps in 0.. {
        match cx.fork(run, request).await.unwrap() {
            Forked::Refused(why) => panic!("refused: {why:?}"),
            Forked::Step(run) if run.fork.as_ref().unwrap().state == ForkState::Done => return (*run, steps),
            Forked::Step(_) => {}
        }
    }
    unreachable!("a fork ends")
}

async fn fork(cx: &TestContext, request: &ForkRequest) -> RunRecord {
    let run = new_fork(cx).await;
    copy_all(cx, run.id, request).await.0
}

async fn refusal(cx: &TestContext, run: RunId, request: &ForkRequest) -> ForkRefusal {
    match cx.fork(run, request).await.unwrap() {
        Forked::Refused(why) => why,
        Forked::Step(run) => panic!("not refused: {:?}", run.fork),
    }
}

pub async fn text_of_state(cx: &TestContext, run: RunId, turn: Option<i32>) -> String {
    let state = cx.state(run, turn).await.unwrap().unwrap();
    String::from_utf8(fold::text(&state).unwrap()).unwrap()
}

fn put(key: &str, value: &str) -> RecordOp {
    RecordOp::Put { space: "s".into(), key: key.into(), value: Payload::Json(json(value)) }
}

fn append(key: &str, entry: &str, value: &str) -> RecordOp {
    let value = Payload::Json(json(value));
    RecordOp::Append { space: "s".into(), key: key.into(), entry_id: entry.into(), value }
}

/// Keys, entry ids and values.
pub fn texts(page: &RecordPage) -> Vec<(String, Option<String>, String)> {
    let text = |value: &Payload| serde_json::to_string(value).unwrap();
    page.records.iter().map(|it| (it.key.clone(), it.entry_id.clone(), text(&it.value))).collect()
}

/// A run of this number of turns. Each appends its number to a list.
async fn worked(cx: &TestContext, turns: i32) -> Worker {
    let worker = cx.worker().await;
    for turn in 1..=turns {
        ok(cx.commit(&appending(&worker, turn)).await.unwrap());
    }
    worker
}

fn appending(worker: &Worker, turn: i32) -> Commit {
    let ops = format!(r#"{{"set":{{"last":{{"json": {turn}}}}},"append":{{"all":[{{"json":{turn}}}]}}}}"#);
    Commit { ops: Some(ops.into()), full: false, ..worker.result(turn) }
}

async fn a_fork_goes_on_from_a_turn_of_its_parent(cx: &TestContext) {
    let parent = worked(cx, 3).await;
    let run = fork(cx, &fork_of(&parent.object_uid, Some(2))).await;
    let base = run.head.clone().unwrap();
    assert_eq!((base.turn, base.epoch, base.attempt, base.position), (2, 1, 0, 0));
    assert_eq!((run.highest_turn, run.attempt.number, run.attempt.turn_at_start), (2, 1, 2));
    assert!(run.past.is_empty(), "the attempt of the parent is none of the fork's");
    let expected = text_of_state(cx, parent.run, Some(2)).await;
    assert_eq!(text_of_state(cx, run.id, None).await, expected);
    let from = run.fork.clone().unwrap();
    let rows = cx.boundaries(parent.run, 2, 2).await.unwrap();
    let hash = dalsegno_format::header::render(&rows[0].content_hash);
    assert_eq!((from.parent, from.turn, from.content_hash), (Some(parent.run), Some(2), Some(hash.clone())));

    let worker = cx.start_worker(&run).await;
    ok(cx.commit(&appending(&worker, 3)).await.unwrap());
    assert_eq!(text_of_state(cx, run.id, None).await, text_of_state(cx, parent.run, None).await);
    let rows = cx.audit(run.id).await.unwrap();
    let forked = rows.iter().find(|row| row.kind == kind::FORKED).unwrap();
    let detail: Value = serde_json::from_str(&forked.detail).unwrap();
    assert_eq!((detail["run"].as_str(), detail["turn"].as_i64()), (Some(&*parent.run.to_string()), Some(2)));
    assert_eq!((detail["contentHash"].as_str(), detail["user"].as_str()), (Some(&*hash), Some("ada")));
    cx.assert_audit_is_valid(run.id).await;
    let found = verify::scan(&*cx.store, &cx.run_of(&worker).await).await.unwrap();
    assert_eq!((found.boundaries, found.damage), (2, vec![]));
}

/// Everything of a run that is not a time of the read.
async fn everything(cx: &TestContext, run: RunId) -> String {
    let record = without_times(cx.get_run(run).await.unwrap().unwrap());
    let (rows, audit) = (cx.boundaries(run, 1, 99).await.unwrap(), cx.audit(run).await.unwrap());
    let records = texts(&cx.read_records(run, &all_records()).await.unwrap());
    format!("{record:?} {rows:?} {audit:?} {records:?}")
}

async fn the_parent_is_not_touched(cx: &TestContext) {
    let parent = worked(cx, 3).await;
    cx.write_records(&parent.record_batch(vec![put("a", "1")])).await.unwrap();
    let before = everything(cx, parent.run).await;
    let run = fork(cx, &fork_of(&parent.object_uid, None)).await;
    let worker = cx.start_worker(&run).await;
    cx.write_records(&worker.record_batch(vec![put("a", "2")])).await.unwrap();
    cx.commit_turn(&worker, 4).await;
    assert_eq!(everything(cx, parent.run).await, before);
    // Its worker does not notice.
    cx.commit_turn(&parent, 4).await;
    cx.assert_audit_is_valid(parent.run).await;
}

async fn records_are_copied_page_by_page_and_once(cx: &TestContext) {
    let parent = cx.worker().await;
    let batch: Vec<_> =
        (0..700).map(|number| append("list", &format!("{number}"), &number.to_string())).collect();
    cx.write_records(&parent.record_batch(batch)).await.unwrap();
    cx.write_records(&parent.record_batch(vec![put("list-2", "true")])).await.unwrap();
    cx.commit_turn(&parent, 1).await;
    let (run, request) = (new_fork(cx).await, fork_of(&parent.object_uid, None));
    // Two operators take the steps in turns, and some of them at once.
    let mut steps = 0;
    let run = loop {
        let (one, other) = (cx.fork(run.id, &request), cx.second_gateway.fork(run.id, &request));
        let (one, other) = tokio::join!(one, other);
        steps += 1;
        let done = |forked: &Forked| match forked {
            Forked::Step(run) => run.fork.as_ref().unwrap().state == ForkState::Done,
            Forked::Refused(why) => panic!("{why:?}"),
        };
        if done(&one.unwrap()) && done(&other.unwrap()) {
            break cx.get_run(run.id).await.unwrap().unwrap();
        }
    };
    assert!(steps >= 3, "{steps}");
    let mut all = all_records();
    all.limit = 1_000;
    let of = async |run| texts(&cx.read_records(run, &all).await.unwrap());
    assert_eq!(of(run.id).await, of(parent.run).await);
    assert_eq!(of(run.id).await.len(), 701);
    cx.assert_audit_is_valid(run.id).await;
}

async fn records_are_those_of_the_turn(cx: &TestContext) {
    let parent = cx.worker().await;
    let first =
        vec![put("changed", "1"), put("deleted", "1"), append("list", "a", "1"), append("list", "b", "2")];
    ok(cx.commit(&Commit { records: first, ..parent.result(1) }).await.unwrap());
    let at_1 = texts(&cx.read_records(parent.run, &all_records()).await.unwrap());
    let delete = RecordOp::Delete { space: "s".into(), key: "deleted".into() };
    let second = vec![put("changed", "2"), delete, append("list", "c", "3"), put("new", "1")];
    cx.write_records(&parent.record_batch(second)).await.unwrap();
    ok(cx
        .commit(&Commit { records: vec![put("list", "0"), append("list", "d", "4")], ..parent.result(2) })
        .await
        .unwrap());
    let at_2 = texts(&cx.read_records(parent.run, &all_records()).await.unwrap());
    // After the turn, and not part of it.
    cx.write_records(&parent.record_batch(vec![put("changed", "3"), put("later", "1")])).await.unwrap();
    for (turn, expected) in [(1, at_1), (2, at_2)] {
        let run = fork(cx, &fork_of(&parent.object_uid, Some(turn))).await;
        assert_eq!(texts(&cx.read_records(run.id, &all_records()).await.unwrap()), expected, "turn {turn}");
        let worker = cx.start_worker(&run).await;
        cx.write_records(&worker.record_batch(vec![append("list", "a", "9"), put("changed", "4")]))
            .await
            .unwrap();
        cx.commit_turn(&worker, turn + 1).await;
        cx.assert_audit_is_valid(run.id).await;
    }
}

async fn later_calls_with_effects_must_be_named(cx: &TestContext) {
    let parent = worked(cx, 1).await;
    for (id, policy) in [("paid", Policy::Probe), ("read", Policy::ReadOnly)] {
        let claim = cx.start_call(&parent, id, policy).await;
        cx.complete(&parent.complete(&claim)).await.unwrap();
    }
    cx.commit_turn(&parent, 2).await;
    cx.start_call(&parent, "in-the-open-turn", Policy::RetrySameKey).await;
    let run = new_fork(cx).await;
    let missing = |calls: &[&str]| {
        let calls = calls.iter().map(|id| (*id).to_owned()).collect();
        ForkRefusal::Effects(Effects { calls, further: 0 })
    };
    let request = fork_of(&parent.object_uid, Some(1));
    assert_eq!(refusal(cx, run.id, &request).await, missing(&["paid", "in-the-open-turn"]));
    let named = |calls: &[&str]| ForkRequest {
        accept_effects: calls.iter().map(|id| (*id).to_owned()).collect(),
        ..request.clone()
    };
    assert_eq!(refusal(cx, run.id, &named(&["paid"])).await, missing(&["in-the-open-turn"]));
    assert_eq!(cx.get_run(run.id).await.unwrap().unwrap().fork.unwrap().state, ForkState::Pending);
    let (run, _) = copy_all(cx, run.id, &named(&["paid", "in-the-open-turn"])).await;
    assert_eq!(cx.call_ids(run.id, dalsegno_model::CallFilter::All).await, Vec::<String>::new());
    let last = fork_of(&parent.object_uid, None);
    let other = new_fork(cx).await;
    assert_eq!(
        refusal(cx, other.id, &last).await,
        missing(&["in-the-open-turn"]),
        "the open turn counts too"
    );
}

async fn a_fork_needs_a_parent_of_its_namespace(cx: &TestContext) {
    let parent = worked(cx, 1).await;
    let run = new_fork(cx).await;
    let by_name = |name: &str| ForkRequest { parent: ParentRun::Name(name.into()), ..fork_of("", None) };
    let name = cx.run_of(&parent).await.name;
    for request in [fork_of("another-object", None), by_name("another-run"), by_name(&run.name)] {
        assert_eq!(refusal(cx, run.id, &request).await, ForkRefusal::NoSuchRun, "{request:?}");
    }
    // A namespace of the same name that was created again is another one.
    let elsewhere = NewRun { tenant: "tenant-2".into(), is_fork: true, ..new_run() };
    let elsewhere = cx.create(&elsewhere).await;
    for request in [fork_of(&parent.object_uid, None), by_name(&name)] {
        assert_eq!(refusal(cx, elsewhere.id, &request).await, ForkRefusal::NoSuchRun);
    }
    // A run that was deleted has no name any more, and still has its UID.
    cx.mark_deleted(&parent.object_uid).await.unwrap();
    assert_eq!(refusal(cx, run.id, &by_name(&name)).await, ForkRefusal::NoSuchRun);
    let (run, _) = copy_all(cx, run.id, &fork_of(&parent.object_uid, None)).await;
    assert_eq!(run.head.unwrap().turn, 1);
}

async fn a_turn_that_is_not_there_is_refused(cx: &TestContext) {
    let parent = worked(cx, 14).await;
    ok(cx.commit(&parent.plan(15)).await.unwrap());
    let run = new_fork(cx).await;
    let not_available = |first, last| ForkRefusal::TurnNotAvailable(AvailableTurns { first, last });
    let at = |turn| fork_of(&parent.object_uid, Some(turn));
    assert_eq!(refusal(cx, run.id, &at(15)).await, not_available(1, 14));
    cx.set_retention(parent.run, &Retention { days: 30, keep_last: Some(3), ..Retention::default() })
        .await
        .unwrap();
    while cx.compact(parent.run, 500).await.unwrap().run.is_some() {}
    let dropped = cx.run_of(&parent).await.dropped_to.unwrap();
    assert_eq!(refusal(cx, run.id, &at(dropped.turn - 1)).await, not_available(dropped.turn, 14));
    let (forked, _) = copy_all(cx, run.id, &at(dropped.turn)).await;
    let expected = text_of_state(cx, parent.run, Some(dropped.turn)).await;
    assert_eq!(text_of_state(cx, forked.id, None).await, expected);
    // A run without a turn.
    let empty = cx.worker().await;
    let run = new_fork(cx).await;
    assert_eq!(refusal(cx, run.id, &fork_of(&empty.object_uid, None)).await, not_available(1, 0));
}

async fn a_rewind_of_the_parent_during_the_copy_stops_the_fork(cx: &TestContext) {
    let parent = worked(cx, 1).await;
    cx.write_records(&parent.record_batch(vec![put("a", "1")])).await.unwrap();
    cx.commit_turn(&parent, 2).await;
    let (run, request) = (new_fork(cx).await, fork_of(&parent.object_uid, Some(2)));
    assert!(matches!(cx.fork(run.id, &request).await.unwrap(), Forked::Step(_)), "accepted");
    cx.request_rewind(parent.run, &rewind_request(1, 1)).await.unwrap();
    let turns = AvailableTurns { first: 1, last: 1 };
    for _ in 0..2 {
        assert_eq!(refusal(cx, run.id, &request).await, ForkRefusal::TurnNotAvailable(turns));
    }
    assert_eq!(cx.get_run(run.id).await.unwrap().unwrap().head, None);
    assert_eq!(cx.read_records(run.id, &all_records()).await.unwrap().records.len(), 0);
    cx.assert_audit_is_valid(run.id).await;
}

async fn a_fork_of_a_shredded_run_is_refused(cx: &TestContext) {
    let parent = worked(cx, 2).await;
    ok(cx.finish(&parent.finish()).await.unwrap());
    cx.shred(&Shred { run: parent.run, actor: "ada".into(), reason: "asked for".into() }).await.unwrap();
    let (run, request) = (new_fork(cx).await, fork_of(&parent.object_uid, None));
    if cx.sealed {
        assert!(matches!(cx.fork(run.id, &request).await.unwrap(), Forked::Step(_)), "nothing was read yet");
        assert!(matches!(refusal(cx, run.id, &request).await, ForkRefusal::Unreadable(_)));
    } else {
        copy_all(cx, run.id, &request).await;
    }
}

async fn a_fork_begins_with_the_version_of_its_parent_and_without_usage(cx: &TestContext) {
    let parent = worked(cx, 2).await;
    let run = fork(cx, &fork_of(&parent.object_uid, None)).await;
    let head = run.head.clone().unwrap();
    assert_eq!(head.revision.as_deref(), Some("revision-1"));
    assert_eq!(head.identity.map(|Identity { agent_version, .. }| agent_version).as_deref(), Some("v1"));
    assert_eq!((run.usage, run.calls.completed, run.counters), Default::default());
    let limits = RunLimits { turns: Some(2), ..RunLimits::default() };
    let run = cx.set_limits(run.id, &limits).await.unwrap();
    assert_eq!((run.is_limit_reached(), run.limit_uses()[0].used), (false, 0), "its own turns count");
    let worker = cx.start_worker(&run).await;
    let receipt = cx.commit_turn(&worker, 3).await;
    assert!(!receipt.signals.limit);
    let receipt = cx.commit_turn(&worker, 4).await;
    assert!(receipt.signals.limit);
    assert_eq!(cx.run_of(&worker).await.limit_uses()[0].used, 2);
}

async fn a_fork_goes_back_to_its_beginning_and_no_further(cx: &TestContext) {
    let parent = worked(cx, 3).await;
    let run = fork(cx, &fork_of(&parent.object_uid, Some(2))).await;
    let worker = cx.start_worker(&run).await;
    cx.commit_turn(&worker, 3).await;
    let refused = cx.request_rewind(run.id, &rewind_request(1, 1)).await.unwrap();
    let turns = AvailableTurns { first: 2, last: 3 };
    let expected = dalsegno_model::RewindRefusal::TurnNotAvailable(turns);
    assert_eq!(refused.rewind.unwrap().refused, Some(expected));
    let back = cx.request_rewind(run.id, &rewind_request(2, 2)).await.unwrap();
    let head = back.head.clone().unwrap();
    assert_eq!((head.turn, head.attempt, head.revision.as_deref()), (2, 0, Some("revision-1")));
    assert_eq!(text_of_state(cx, run.id, None).await, text_of_state(cx, parent.run, Some(2)).await);
    let worker = cx.start_worker(&back).await;
    cx.commit_turn(&worker, 3).await;
    cx.assert_audit_is_valid(run.id).await;
}

async fn a_fork_can_be_forked_and_outlives_its_parent(cx: &TestContext) {
    let parent = worked(cx, 2).await;
    cx.write_records(&parent.record_batch(vec![put("a", "1")])).await.unwrap();
    cx.commit_turn(&parent, 3).await;
    let first = fork(cx, &fork_of(&parent.object_uid, Some(3))).await;
    let worker = cx.start_worker(&first).await;
    ok(cx.commit(&appending(&worker, 4)).await.unwrap());
    let second = fork(cx, &fork_of(&worker.object_uid, Some(4))).await;
    let before = (everything(cx, first.id).await, everything(cx, second.id).await);
    ok(cx.finish(&parent.finish()).await.unwrap());
    cx.set_retention(parent.run, &Retention { days: 0, ..Retention::default() }).await.unwrap();
    while !cx.expire(parent.run, 500).await.unwrap().done {}
    assert!(cx.state(parent.run, None).await.is_err(), "the payloads of the parent are gone");
    assert_eq!((everything(cx, first.id).await, everything(cx, second.id).await), before);
    for run in [first.id, second.id] {
        assert_eq!(texts(&cx.read_records(run, &all_records()).await.unwrap()).len(), 1);
        cx.assert_audit_is_valid(run).await;
    }
    let run = cx.end_and_reserve(&worker, Class::Disruption).await;
    let worker = cx.start_worker(&run).await;
    cx.commit_turn(&worker, 5).await;
}

/// The lines of the run's bundle.
async fn bundle(cx: &TestContext, run: RunId) -> Vec<u8> {
    let signer = Arc::new(Signer::load(&*cx.store, None).await.unwrap());
    let of = ExportOf { store: Uuid::nil(), run, at: jiff::Timestamp::UNIX_EPOCH };
    let mut export = Export::begin(cx.begin_read().await.unwrap(), of, signer).await.unwrap().unwrap();
    let mut bytes = Vec::new();
    while let Some(lines) = export.next().await.unwrap() {
        bytes.extend(lines);
    }
    bytes
}

async fn the_bundle_of_a_fork_is_verified_without_its_parent(cx: &TestContext) {
    let parent = worked(cx, 2).await;
    cx.write_records(&parent.record_batch(vec![put("a", "1"), append("list", "x", "2")])).await.unwrap();
    cx.commit_turn(&parent, 3).await;
    cx.write_records(&parent.record_batch(vec![put("a", "9")])).await.unwrap();
    let before = bundle(cx, parent.run).await;
    let run = fork(cx, &fork_of(&parent.object_uid, None)).await;
    let worker = cx.start_worker(&run).await;
    ok(cx.commit(&Commit { records: vec![put("b", "3")], ..appending(&worker, 4) }).await.unwrap());
    assert!(bundle(cx, parent.run).await == before, "not a byte of the parent has changed");

    let text = bundle(cx, run.id).await;
    let verified = verify_bundle(&*text, None).unwrap();
    assert_eq!(verified.problems, []);
    assert_eq!((verified.boundaries, verified.batches, verified.records), (2, 2, 3));
    for turn in [3, 4] {
        let state = dalsegno_proof::bundle::state(&*text, turn).unwrap().unwrap();
        let state = String::from_utf8(fold::text(&state).unwrap()).unwrap();
        assert_eq!(state, text_of_state(cx, run.id, Some(turn)).await, "turn {turn}");
    }
    assert!(dalsegno_proof::bundle::state(&*text, 2).unwrap().is_none());
    let verified = verify_bundle(&*before, None).unwrap();
    assert_eq!((verified.problems, verified.batches, verified.records), (vec![], 2, 2));
    let edited = String::from_utf8(before).unwrap().replace(r#""key":"a","seq""#, r#""key":"c","seq""#);
    assert!(!verify_bundle(edited.as_bytes(), None).unwrap().problems.is_empty());
}

async fn a_fork_that_names_another_parent_is_found(cx: &TestContext) {
    let parent = worked(cx, 3).await;
    let problems = async |run: RunId| {
        let mut reading = cx.begin_read().await.unwrap();
        check_run(&mut *reading, run).await.unwrap().problems.len()
    };
    for edit in ["forked_turn = NULL", "forked_turn = 1", "forked_run = NULL", "forked_hash = content_hash"] {
        let run = fork(cx, &fork_of(&parent.object_uid, Some(2))).await;
        assert_eq!(problems(run.id).await, 0);
        let id = match cx.is_sqlite() {
            true => format!("x'{}'", run.id.simple()),
            false => format!("'{}'", run.id),
        };
        assert_eq!(tamper(cx, &format!("UPDATE boundaries SET {edit} WHERE run = {id}")).await, 1);
        assert!(problems(run.id).await > 0, "{edit}");
        let state = cx.state(run.id, None).await;
        assert!(matches!(state, Err(dalsegno_model::Error::Corrupt { .. })), "{edit}: {state:?}");
    }
}
