//! `keepLast`: a run that keeps its last boundaries. Older payloads are dropped, and nothing that a resume needs.

mod damaged;

use dalsegno_model::{
    BoundaryId, Commit, Dropped, Error, EventQuery, RecordQuery, Retention, Rewound, RunId, Written,
};
use dalsegno_proof::verify::{self, Checkpoint};
use dalsegno_proof::{Anchors, check_store};
use dalsegno_protocol::{Payload, RecordOp};

use crate::context::*;
use crate::engines::{self, on_every_engine, on_every_persistent_engine};
use crate::patches;

on_every_engine! {
    the_last_boundaries_keep_their_payloads_and_the_others_their_headers,
    a_live_run_goes_on_while_it_is_compacted,
    a_run_that_keeps_everything_loses_nothing,
    an_ended_run_with_nothing_more_to_drop_is_listed_once,
    a_step_drops_at_most_the_given_number_of_boundaries,
    a_step_reads_a_limited_number_of_bytes,
    undone_boundaries_count_among_the_bytes_of_a_step,
    a_run_can_be_rewound_as_far_as_it_is_kept,
    undone_boundaries_are_dropped_with_the_others,
    patches_are_decoded_after_the_snapshot,
    two_operators_compact_a_run_at_the_same_time,
}

on_every_persistent_engine! {
    replaced_records_are_deleted_behind_the_boundaries_that_are_kept,
    keys_that_a_prefix_has_emptied_leave_nothing_behind_the_boundaries_that_are_kept,
    one_cut_deletes_all_that_was_replaced_however_much_that_is,
}

/// One key is replaced in each turn; the other grows, and was deleted and written again before that.
async fn replaced_records_are_deleted_behind_the_boundaries_that_are_kept(cx: &TestContext) {
    let worker = cx.worker().await;
    let record = async |operation| {
        assert_eq!(cx.write_records(&worker.record_batch(vec![operation])).await.unwrap(), Written::Ok);
    };
    let (space, key) = (|| "s".to_owned(), |name: &str| name.to_owned());
    let value = |number: i32| Payload::Json(json(&number.to_string()));
    record(RecordOp::Put { space: space(), key: key("list"), value: value(0) }).await;
    grow(cx, &worker, 1..=1).await;
    record(RecordOp::Delete { space: space(), key: key("list") }).await;
    for turn in 2..=20 {
        record(RecordOp::Put { space: space(), key: key("meta"), value: value(turn) }).await;
        let entry_id = format!("entry-{turn}");
        record(RecordOp::Append { space: space(), key: key("list"), entry_id, value: value(turn) }).await;
        grow(cx, &worker, turn..=turn).await;
    }
    let count = async || engines::count(cx, "SELECT count(*) FROM records").await;
    assert_eq!(count().await, 1 + 1 + 19 + 19);
    keep_last(cx, worker.run, 5).await;
    compact(cx, worker.run).await;
    // Of `meta`: what was put in turn 15, the last one that is dropped, and in the five turns that are kept. Of `list`: the
    // entries, without the `delete` before them.
    assert_eq!(count().await, 6 + 19);
    assert_valid(cx, &worker).await;
    let query = RecordQuery { space: space(), limit: 100, bytes: 1 << 20, ..RecordQuery::default() };
    let read = async || {
        let page = cx.read_records(worker.run, &query).await.unwrap();
        page.records.into_iter().map(|record| (record.key, record.turn)).collect::<Vec<_>>()
    };
    let mut expected: Vec<_> = (2..=20).map(|turn| (key("list"), turn)).collect();
    expected.push((key("meta"), 20));
    assert_eq!(read().await, expected);
    // As far as the run can be rewound, each key still has what it held.
    let to = BoundaryId { turn: 15, boundary: dalsegno_protocol::Boundary::Result, epoch: 1 };
    let rewound = cx.rewind(worker.run, &rewind_to(1, to)).await.unwrap();
    assert!(matches!(rewound, Rewound::Done(_)), "{rewound:?}");
    expected.retain(|(_, turn)| *turn <= 15);
    expected.push((key("meta"), 15));
    assert_eq!(read().await, expected);
}

/// A thread that was dropped costs no read anything once no rewind can bring it back.
async fn keys_that_a_prefix_has_emptied_leave_nothing_behind_the_boundaries_that_are_kept(cx: &TestContext) {
    let worker = cx.worker().await;
    let put = |key: String| RecordOp::Put { space: "s".into(), key, value: Payload::Json(json("1")) };
    let empty = |prefix: &str| RecordOp::DeletePrefix { space: "s".into(), prefix: prefix.into() };
    let write = async |operations| {
        assert_eq!(cx.write_records(&worker.record_batch(operations)).await.unwrap(), Written::Ok);
    };
    write((0..50).map(|n| put(format!("thread/{n}"))).collect()).await;
    write((0..3).map(|n| put(format!("later/{n}"))).collect()).await;
    grow(cx, &worker, 1..=1).await;
    write(vec![empty("thread/")]).await;
    grow(cx, &worker, 2..=18).await;
    write(vec![empty("later/"), put("thread/7".into())]).await;
    grow(cx, &worker, 19..=20).await;
    let count = async || engines::count(cx, "SELECT count(*) FROM records").await;
    assert_eq!(count().await, 2 * 50 + 2 * 3 + 1);
    keep_last(cx, worker.run, 5).await;
    compact(cx, worker.run).await;
    assert_eq!(count().await, 2 * 3 + 1, "what was deleted in a boundary that is kept stays");
    assert_valid(cx, &worker).await;
    let query = RecordQuery { space: "s".into(), limit: 100, bytes: 1 << 20, ..RecordQuery::default() };
    let keys = async || cx.read_record_keys(worker.run, &query).await.unwrap().keys;
    assert_eq!(keys().await, ["thread/7"]);
    let to = BoundaryId { turn: 18, boundary: dalsegno_protocol::Boundary::Result, epoch: 1 };
    let rewound = cx.rewind(worker.run, &rewind_to(1, to)).await.unwrap();
    assert!(matches!(rewound, Rewound::Done(_)), "{rewound:?}");
    assert_eq!(keys().await, ["later/0", "later/1", "later/2"]);
}

/// A cut once deleted at most 20,000 of these rows, and no later cut looked at the rest.
async fn one_cut_deletes_all_that_was_replaced_however_much_that_is(cx: &TestContext) {
    let worker = cx.worker().await;
    let write = async |operations| {
        assert_eq!(cx.write_records(&worker.record_batch(operations)).await.unwrap(), Written::Ok);
    };
    let keys = ["a", "b", "c"];
    for batch in 0..7 {
        for key in keys {
            let append = |n| RecordOp::Append {
                space: "s".into(),
                key: key.into(),
                entry_id: format!("{batch}-{n}"),
                value: Payload::Json(json("1")),
            };
            write((0..1_000).map(append).collect()).await;
        }
    }
    grow(cx, &worker, 1..=1).await;
    write(keys.map(|key| RecordOp::Delete { space: "s".into(), key: key.into() }).to_vec()).await;
    grow(cx, &worker, 2..=20).await;
    keep_last(cx, worker.run, 5).await;
    compact(cx, worker.run).await;
    assert_eq!(engines::count(cx, "SELECT count(*) FROM records").await, 0);
}

/// Commits turns with one event each; each appends its number to the list `log`.
async fn grow(cx: &TestContext, worker: &Worker, turns: std::ops::RangeInclusive<i32>) {
    for turn in turns {
        let text = format!(r#"{{"append":{{"log":[{{"json":{turn}}}]}}}}"#);
        let commit = Commit {
            ops: Some(text.into()),
            full: false,
            events: vec![json(&turn.to_string())],
            ..worker.result(turn)
        };
        ok(cx.commit(&commit).await.unwrap());
    }
}

async fn keep_last(cx: &TestContext, run: RunId, boundaries: i32) {
    let retention = Retention { keep_last: Some(boundaries), ..Retention::default() };
    assert_eq!(cx.set_retention(run, &retention).await.unwrap().retention, retention);
}

/// Compacts until nothing is left to drop. Returns the number of rows.
async fn compact(cx: &TestContext, run: RunId) -> u64 {
    let mut rows = 0;
    loop {
        let dropped = cx.compact(run, 500).await.unwrap();
        if dropped.run.is_none() {
            return rows;
        }
        rows += dropped.rows;
    }
}

/// A live run of this number of turns that keeps its last five.
async fn compacted(cx: &TestContext, turns: i32) -> Worker {
    let worker = cx.worker().await;
    grow(cx, &worker, 1..=turns).await;
    keep_last(cx, worker.run, 5).await;
    compact(cx, worker.run).await;
    worker
}

async fn state(cx: &TestContext, run: RunId, turn: Option<i32>) -> String {
    serde_json::to_string(&cx.state(run, turn).await.unwrap().unwrap()).unwrap()
}

fn grown(turns: i32) -> String {
    let items: Vec<_> = (1..=turns).map(|turn| format!(r#"{{"json":{turn}}}"#)).collect();
    format!(r#"{{"log":{{"list":[{}]}}}}"#, items.join(","))
}

/// Asserts that nothing is damaged and that the audit reports everything that was dropped.
async fn assert_valid(cx: &TestContext, worker: &Worker) {
    let run = cx.run_of(worker).await;
    assert_eq!(verify::checkpoint(&*cx.store, &run).await.unwrap(), Checkpoint::Valid);
    let found = verify::scan(&*cx.store, &run).await.unwrap();
    assert_eq!(found.damage, []);
    let head = run.head.unwrap();
    let last = BoundaryId { turn: head.turn, boundary: head.boundary, epoch: head.epoch };
    assert_eq!(found.last_good, Some(last));
    cx.assert_audit_is_valid(run.id).await;
    assert_eq!(problems(cx).await, [""; 0]);
}

async fn problems(cx: &TestContext) -> Vec<String> {
    let mut reported = Vec::new();
    let mut reading = cx.begin_read().await.unwrap();
    let summary =
        check_store(&mut *reading, Anchors::default(), &mut |problem| reported.push(problem.to_string()))
            .await;
    summary.unwrap();
    reported
}

async fn the_last_boundaries_keep_their_payloads_and_the_others_their_headers(cx: &TestContext) {
    let worker = cx.worker().await;
    grow(cx, &worker, 1..=12).await;
    ok(cx.finish(&worker.finish()).await.unwrap());
    keep_last(cx, worker.run, 5).await;
    assert_eq!(cx.runs_to_compact(RunId::nil()).await.unwrap(), [worker.run]);
    let held = cx.namespace_usage(1).await.unwrap()[0].bytes;
    assert_eq!(compact(cx, worker.run).await, 7, "exactly keepLast after the finish");
    let left = cx.namespace_usage(1).await.unwrap()[0].bytes;
    assert!(left > 0 && left < held / 2, "{left} of {held} bytes");

    let rows = cx.boundaries(worker.run, 1, 12).await.unwrap();
    let kept: Vec<_> = rows.iter().filter(|row| row.ops.is_some()).map(|row| row.turn).collect();
    assert_eq!((rows.len(), kept), (12, vec![8, 9, 10, 11, 12]));
    for turn in 7..=12 {
        assert_eq!(state(cx, worker.run, Some(turn)).await, grown(turn), "a snapshot replaces turn 7");
    }
    for turn in 1..=6 {
        let gone = cx.state(worker.run, Some(turn)).await;
        assert!(matches!(gone, Err(Error::Gone { .. })), "turn {turn}: {gone:?}");
    }
    assert!(cx.state(worker.run, Some(13)).await.unwrap().is_none());
    let events = cx.events(worker.run, EventQuery { from: 1, limit: 99, bytes: 999 }).await.unwrap();
    let positions: Vec<_> = events.events.iter().map(|event| event.position).collect();
    assert_eq!(positions, [8, 9, 10, 11, 12]);
    let reported = cx.audit(worker.run).await.unwrap().pop().unwrap();
    assert_eq!((reported.kind.as_str(), reported.actor.as_str()), ("dropped", "operator"));
    assert!(
        reported.detail.contains(r#""turn": 7"#) || reported.detail.contains(r#""turn":7"#),
        "{}",
        reported.detail
    );
    let run = cx.run_of(&worker).await;
    assert_eq!(run.dropped_to.map(|boundary_id| boundary_id.turn), Some(7));
    assert_eq!(verify::scan(&*cx.store, &run).await.unwrap().dropped, 7);
    assert_valid(cx, &worker).await;
}

async fn a_live_run_goes_on_while_it_is_compacted(cx: &TestContext) {
    let mut worker = cx.worker().await;
    keep_last(cx, worker.run, 5).await;
    for turn in 1..=60 {
        grow(cx, &worker, turn..=turn).await;
        compact(cx, worker.run).await;
        let kept = cx.boundaries(worker.run, 1, turn).await.unwrap();
        let kept = kept.iter().filter(|row| row.ops.is_some()).count() as i32;
        assert!(kept >= turn.min(5) && kept <= 14, "turn {turn}: {kept}");
        assert_eq!(state(cx, worker.run, None).await, grown(turn));
        if turn % 20 == 0 {
            assert_valid(cx, &worker).await;
            worker = cx.next_worker(&worker).await;
        }
        if turn % 7 == 0 {
            cx.snapshot(worker.run).await.unwrap();
        }
    }
}

async fn a_run_that_keeps_everything_loses_nothing(cx: &TestContext) {
    let worker = cx.worker().await;
    grow(cx, &worker, 1..=30).await;
    assert!(cx.runs_to_compact(RunId::nil()).await.unwrap().is_empty());
    assert_eq!(cx.compact(worker.run, 500).await.unwrap(), Dropped::default());
    keep_last(cx, worker.run, 25).await;
    assert_eq!(compact(cx, worker.run).await, 0, "a live run keeps up to nine more");
}

/// The operator asks every minute, and each run on the list costs it queries.
async fn an_ended_run_with_nothing_more_to_drop_is_listed_once(cx: &TestContext) {
    let listed = async || cx.runs_to_compact(RunId::nil()).await.unwrap();
    let (short, long) = (cx.worker().await, cx.worker().await);
    grow(cx, &short, 1..=1).await;
    grow(cx, &long, 1..=12).await;
    for worker in [&short, &long] {
        keep_last(cx, worker.run, 5).await;
    }
    compact(cx, long.run).await;
    assert_eq!(listed().await, [long.run], "a live run stays on the list once it has enough turns");
    for worker in [&short, &long] {
        ok(cx.finish(&worker.finish()).await.unwrap());
    }
    assert_eq!(listed().await, [short.run, long.run]);
    compact(cx, short.run).await;
    assert_eq!(compact(cx, long.run).await, 7);
    assert!(listed().await.is_empty());

    keep_last(cx, long.run, 3).await;
    assert_eq!(listed().await, [long.run], "it keeps less now");
    compact(cx, long.run).await;
    assert_eq!(cx.run_of(&long).await.dropped_to.map(|last| last.turn), Some(9));
    assert!(listed().await.is_empty());
    assert_valid(cx, &long).await;
}

async fn a_step_drops_at_most_the_given_number_of_boundaries(cx: &TestContext) {
    let worker = cx.worker().await;
    grow(cx, &worker, 1..=30).await;
    ok(cx.finish(&worker.finish()).await.unwrap());
    keep_last(cx, worker.run, 3).await;
    let mut cuts = Vec::new();
    while let Some(cut) = step(cx, worker.run, 10).await {
        assert_eq!(state(cx, worker.run, None).await, grown(30), "after each step");
        assert_valid(cx, &worker).await;
        cuts.push(cut);
    }
    cuts.dedup();
    assert_eq!(cuts, [10, 20, 27]);
}

/// One step of compaction. Returns the turn up to which everything is dropped; `None` if there was nothing to do.
async fn step(cx: &TestContext, run: RunId, rows: u32) -> Option<i32> {
    let run = cx.compact(run, rows).await.unwrap().run?;
    Some(cx.get_run(run).await.unwrap().unwrap().dropped_to.unwrap().turn)
}

async fn a_step_reads_a_limited_number_of_bytes(cx: &TestContext) {
    let worker = cx.worker().await;
    for turn in 1..=7 {
        cx.commit_large_turn(&worker, turn, 3 << 20).await;
    }
    ok(cx.finish(&worker.finish()).await.unwrap());
    keep_last(cx, worker.run, 1).await;
    assert!(cx.namespace_usage(1).await.unwrap()[0].bytes > 10 << 20);
    let first = step(cx, worker.run, 500).await.unwrap();
    assert!((2..6).contains(&first), "up to turn {first}");
    compact(cx, worker.run).await;
    assert_eq!(cx.run_of(&worker).await.dropped_to.unwrap().turn, 6);
}

async fn undone_boundaries_count_among_the_bytes_of_a_step(cx: &TestContext) {
    let worker = cx.worker().await;
    for turn in 1..=4 {
        cx.commit_large_turn(&worker, turn, 3 << 20).await;
    }
    let epoch = cx.run_of(&worker).await.epoch;
    assert!(matches!(
        cx.rewind(worker.run, &rewind_to(epoch, result_place(1))).await.unwrap(),
        Rewound::Done(_)
    ));
    let worker = cx.start_worker(&cx.run_of(&worker).await).await;
    for turn in 2..=6 {
        cx.commit_large_turn(&worker, turn, 3 << 20).await;
    }
    ok(cx.finish(&worker.finish()).await.unwrap());
    keep_last(cx, worker.run, 1).await;
    assert_eq!(step(cx, worker.run, 500).await, Some(3), "five boundaries of 1.5 MiB");
    compact(cx, worker.run).await;
    assert_eq!(cx.run_of(&worker).await.dropped_to.unwrap().turn, 5);
    assert_valid(cx, &worker).await;
}

async fn a_run_can_be_rewound_as_far_as_it_is_kept(cx: &TestContext) {
    let worker = compacted(cx, 20).await;
    let epoch = cx.run_of(&worker).await.epoch;
    for turn in [1, 14] {
        let refused = cx.rewind(worker.run, &rewind_to(epoch, result_place(turn))).await.unwrap();
        let Rewound::Refused(run) = refused else { panic!("turn {turn}: {refused:?}") };
        assert_eq!(run.dropped_to.unwrap().turn, 15, "the record has the reason");
    }
    let done = cx.rewind(worker.run, &rewind_to(epoch, result_place(15))).await.unwrap();
    assert!(matches!(done, Rewound::Done(_)), "a snapshot replaces turn 15: {done:?}");
    assert_eq!(state(cx, worker.run, None).await, grown(15));
    let worker = cx.start_worker(&cx.run_of(&worker).await).await;
    grow(cx, &worker, 16..=40).await;
    compact(cx, worker.run).await;
    assert_eq!(state(cx, worker.run, None).await, grown(40));
    assert_valid(cx, &worker).await;
}

async fn undone_boundaries_are_dropped_with_the_others(cx: &TestContext) {
    let worker = cx.worker().await;
    grow(cx, &worker, 1..=30).await;
    let epoch = cx.run_of(&worker).await.epoch;
    assert!(matches!(
        cx.rewind(worker.run, &rewind_to(epoch, result_place(4))).await.unwrap(),
        Rewound::Done(_)
    ));
    let worker = cx.start_worker(&cx.run_of(&worker).await).await;
    grow(cx, &worker, 5..=20).await;
    keep_last(cx, worker.run, 5).await;
    compact(cx, worker.run).await;
    assert_valid(cx, &worker).await;
    // Undone turns after the cut derive from turns before it, so their states are gone too.
    grow(cx, &worker, 21..=60).await;
    compact(cx, worker.run).await;
    assert_valid(cx, &worker).await;
}

async fn patches_are_decoded_after_the_snapshot(cx: &TestContext) {
    let worker = cx.worker().await;
    let mut base = None;
    let filling = "much the same in each turn ".repeat(40);
    for turn in 1..=30 {
        let ops = format!(r#"{{"full":true,"set":{{"a":{{"json":"{filling}{turn}"}}}}}}"#);
        let commit = Commit { ops: Some(ops.clone().into()), base, ..worker.result(turn) };
        let head = ok(cx.commit(&commit).await.unwrap()).head.unwrap();
        base = Some(patches::base(&head.content_hash, &ops));
    }
    keep_last(cx, worker.run, 5).await;
    compact(cx, worker.run).await;
    let rows = cx.boundaries(worker.run, 1, 30).await.unwrap();
    assert_eq!(rows.iter().filter(|row| row.ops.is_some()).count(), 5, "also in a range with dropped ones");
    assert!(state(cx, worker.run, Some(27)).await.contains(&format!("{filling}27")));
    assert_valid(cx, &worker).await;
}

async fn two_operators_compact_a_run_at_the_same_time(cx: &TestContext) {
    let worker = cx.worker().await;
    for round in 0..4 {
        grow(cx, &worker, round * 25 + 1..=round * 25 + 25).await;
        keep_last(cx, worker.run, 5).await;
        let operator = async || {
            for _ in 0..8 {
                let _: Dropped = cx.compact(worker.run, 7).await.unwrap();
            }
        };
        tokio::join!(operator(), operator());
        compact(cx, worker.run).await;
        assert_eq!(state(cx, worker.run, None).await, grown(round * 25 + 25));
        assert_valid(cx, &worker).await;
    }
}
