//! Committed states are read back byte for byte, at any turn.

use std::collections::HashMap;

use dalsegno_format::header;
use dalsegno_format::seal::{DigestKey, DigestKeyExt as _};
use dalsegno_model::read_transaction::BoundaryKey;
use dalsegno_model::{Class, Commit, Digest, RunId};
use dalsegno_protocol::{Boundary, Usage};
use uuid::Uuid;

use crate::context::*;
use crate::engines::on_every_engine;

on_every_engine! {
    a_run_without_a_boundary_has_no_state,
    a_full_state_replaces_the_one_before,
    channels_are_folded_from_the_last_full_state,
    a_boundary_without_operations_keeps_the_state,
    a_state_is_found_at_every_turn,
    the_state_of_a_turn_is_that_of_its_latest_boundary,
    json_is_read_back_byte_for_byte,
    an_operation_on_another_kind_of_channel_replaces_it,
    boundaries_are_read_back_as_committed,
    boundaries_are_linked_by_their_hashes_across_attempts,
    a_range_of_boundaries_can_be_read,
    large_payloads_are_read_back,
}

/// A commit of these channel operations.
fn ops(worker: &Worker, turn: i32, boundary: Boundary, text: &str) -> Commit {
    let full = text.contains(r#""full":true"#);
    Commit { ops: Some(text.into()), full, ..worker.commit(turn, boundary) }
}

async fn state(cx: &TestContext, worker: &Worker, turn: Option<i32>) -> Option<String> {
    let state = cx.state(worker.run, turn).await.unwrap();
    state.map(|state| serde_json::to_string(&state).unwrap())
}

async fn a_run_without_a_boundary_has_no_state(cx: &TestContext) {
    let worker = cx.worker().await;
    for turn in [None, Some(0), Some(1), Some(-1)] {
        assert_eq!(state(cx, &worker, turn).await, None);
    }
    assert!(cx.state(Uuid::now_v7(), None).await.unwrap().is_none());
    assert!(cx.boundaries(worker.run, 1, 10).await.unwrap().is_empty());
}

async fn a_full_state_replaces_the_one_before(cx: &TestContext) {
    let worker = cx.worker().await;
    for turn in 1..=3 {
        cx.commit_turn(&worker, turn).await;
    }
    let worker = cx.next_worker(&worker).await;
    let expected = r#"{"state":{"value":{"json":{"turn":3}}}}"#;
    assert_eq!(state(cx, &worker, None).await.as_deref(), Some(expected));
}

async fn channels_are_folded_from_the_last_full_state(cx: &TestContext) {
    let worker = cx.worker().await;
    let turns = [
        r#"{"set":{"gone":{"json":0}},"append":{"log":[{"json":"a"}]}}"#,
        r#"{"full":true,"set":{"note":{"json":1}},"append":{"log":[{"json":"b"}]}}"#,
        r#"{"append":{"log":[{"json":"c"},{"json":"d"}]}}"#,
        r#"{"truncate":{"log":2},"set":{"note":{"json":2}},"append":{"log":[{"json":"e"}]}}"#,
    ];
    for (text, turn) in turns.iter().zip(1..) {
        ok(cx.commit(&ops(&worker, turn, Boundary::Result, text)).await.unwrap());
    }
    let expected = r#"{"log":{"list":[{"json":"b"},{"json":"c"},{"json":"e"}]},"note":{"value":{"json":2}}}"#;
    assert_eq!(state(cx, &worker, None).await.as_deref(), Some(expected));
}

async fn a_boundary_without_operations_keeps_the_state(cx: &TestContext) {
    let worker = cx.worker().await;
    ok(cx.commit(&Commit { ops: None, full: false, ..worker.plan(1) }).await.unwrap());
    assert_eq!(state(cx, &worker, None).await.as_deref(), Some("{}"), "committed and empty");
    cx.commit_turn(&worker, 1).await;
    ok(cx.commit(&Commit { ops: None, full: false, ..worker.result(2) }).await.unwrap());
    let expected = r#"{"state":{"value":{"json":{"turn":1}}}}"#;
    assert_eq!(state(cx, &worker, None).await.as_deref(), Some(expected));
    assert_eq!(cx.boundaries(worker.run, 2, 2).await.unwrap()[0].ops, None);
}

async fn a_state_is_found_at_every_turn(cx: &TestContext) {
    let worker = cx.worker().await;
    for turn in 1..=6 {
        let text = match turn {
            1 | 4 => format!(r#"{{"full":true,"append":{{"log":[{{"json":{turn}}}]}}}}"#),
            _ => format!(r#"{{"append":{{"log":[{{"json":{turn}}}]}}}}"#),
        };
        ok(cx.commit(&ops(&worker, turn, Boundary::Result, &text)).await.unwrap());
    }
    for (turn, items) in [(1, "1"), (2, "1 2"), (3, "1 2 3"), (4, "4"), (5, "4 5"), (6, "4 5 6")] {
        let items: Vec<_> = items.split(' ').map(|item| format!(r#"{{"json":{item}}}"#)).collect();
        let expected = format!(r#"{{"log":{{"list":[{}]}}}}"#, items.join(","));
        assert_eq!(state(cx, &worker, Some(turn)).await, Some(expected), "turn {turn}");
    }
    for turn in [0, -1, 7, i32::MAX, i32::MIN] {
        assert_eq!(state(cx, &worker, Some(turn)).await, None, "turn {turn}");
    }
}

async fn the_state_of_a_turn_is_that_of_its_latest_boundary(cx: &TestContext) {
    let worker = cx.worker().await;
    let set = |value: i32| format!(r#"{{"set":{{"a":{{"json":{value}}}}}}}"#);
    ok(cx.commit(&ops(&worker, 1, Boundary::Plan, &set(1))).await.unwrap());
    ok(cx.commit(&ops(&worker, 1, Boundary::Result, &set(2))).await.unwrap());
    ok(cx.commit(&ops(&worker, 2, Boundary::Plan, &set(3))).await.unwrap());
    let at = |value: i32| Some(format!(r#"{{"a":{{"value":{{"json":{value}}}}}}}"#));
    assert_eq!(state(cx, &worker, Some(1)).await, at(2));
    assert_eq!(state(cx, &worker, Some(2)).await, at(3));
}

async fn json_is_read_back_byte_for_byte(cx: &TestContext) {
    let worker = cx.worker().await;
    for (text, turn) in [
        r#"{"z":1,  "a":[ 1e400, 12345678901234567890123456789.10 ]}"#,
        r#""\ud800 \u00e9 é \u0000""#,
        "[ ]",
        "null",
    ]
    .iter()
    .zip(1..)
    {
        let operations = format!(r#"{{"full":true,"set":{{"state":{{"json":{text}}}}}}}"#);
        let commit = Commit { events: vec![json(text)], ..ops(&worker, turn, Boundary::Result, &operations) };
        ok(cx.commit(&commit).await.unwrap());
        let expected = format!(r#"{{"state":{{"value":{{"json":{text}}}}}}}"#);
        assert_eq!(state(cx, &worker, None).await, Some(expected));
        let row = cx.boundaries(worker.run, turn, turn).await.unwrap().remove(0);
        assert_eq!(row.ops.as_deref(), Some(operations.as_str()));
        assert_eq!(row.events[0].get(), *text);
    }
}

async fn an_operation_on_another_kind_of_channel_replaces_it(cx: &TestContext) {
    let worker = cx.worker().await;
    ok(cx.commit(&ops(&worker, 1, Boundary::Result, r#"{"set":{"note":{"json":1}}}"#)).await.unwrap());
    let strange = r#"{"truncate":{"none":3},"append":{"note":[{"json":2}]}}"#;
    ok(cx.commit(&ops(&worker, 2, Boundary::Result, strange)).await.unwrap());
    assert_eq!(state(cx, &worker, None).await.as_deref(), Some(r#"{"note":{"list":[{"json":2}]}}"#));
    assert!(state(cx, &worker, Some(1)).await.is_some(), "the turn before is intact");
}

async fn boundaries_are_read_back_as_committed(cx: &TestContext) {
    let worker = cx.worker().await;
    let commit = Commit {
        events: vec![json("1"), json(r#"{"a":  2}"#)],
        usage: Usage { tokens_in: 1, tokens_out: 2, tool_calls: 3, cost_micro_usd: 4 },
        trigger: Some("TASK_END".into()),
        ..worker.plan(1)
    };
    let head = ok(cx.commit(&commit).await.unwrap()).head.unwrap();
    let row = cx.boundaries(worker.run, 1, 1).await.unwrap().remove(0);
    assert_eq!((row.turn, row.boundary, row.epoch, row.attempt), (1, Boundary::Plan, 1, 1));
    assert_eq!((row.position, row.commit_id), (2, commit.commit_id));
    assert_eq!(row.digest == commit.digest, !cx.sealed, "a plain digest would reveal a short body");
    assert_eq!((row.ops, row.full), (commit.ops.map(|ops| String::from_utf8(ops).unwrap()), true));
    let events: Vec<_> = row.events.iter().map(|event| event.get()).collect();
    assert_eq!(events, ["1", r#"{"a":  2}"#]);
    assert_eq!((row.usage, row.trigger.as_deref()), (commit.usage, Some("TASK_END")));
    assert_eq!(header::render(&row.content_hash), head.content_hash);
    assert_eq!(row.at, cx.run_of(&worker).await.head.unwrap().at);
}

async fn boundaries_are_linked_by_their_hashes_across_attempts(cx: &TestContext) {
    let mut worker = cx.worker().await;
    for turn in 1..=6 {
        let events = (0..turn % 3).map(|number| json(&number.to_string())).collect();
        ok(cx.commit(&Commit { events, ..worker.plan(turn) }).await.unwrap());
        let bare = Commit { ops: None, full: false, trigger: Some("é".into()), ..worker.result(turn) };
        ok(cx.commit(&bare).await.unwrap());
        if turn % 2 == 0 {
            worker = cx.start_worker(&cx.end_and_reserve(&worker, Class::Disruption).await).await;
        }
    }
    cx.assert_linked(&worker).await;
    let rows = cx.boundaries(worker.run, 1, 6).await.unwrap();
    assert_eq!(rows.len(), 12);
    assert_eq!((rows[11].epoch, rows[11].attempt), (3, 3));
}

impl TestContext {
    /// Asserts that the live branch has every turn from 1 without gaps, and that each boundary's hash matches its header
    /// and its parent.
    pub async fn assert_linked(&self, worker: &Worker) {
        let run = self.run_of(worker).await;
        let Some(head) = run.head else { return };
        let rows = self.boundaries(worker.run, 1, head.turn).await.unwrap();
        let digest_keys = self.digest_keys(worker.run).await;
        let mut parent = header::NO_PARENT;
        let mut last = (0, Boundary::Result);
        let mut position = 0;
        for row in &rows {
            let next = match last {
                (turn, Boundary::Plan) => row.turn == turn && row.boundary == Boundary::Result,
                (turn, Boundary::Result) => row.turn == turn + 1,
            };
            assert!(next, "({}, {:?}) after {last:?}", row.turn, row.boundary);
            position += row.events.len() as i64;
            let digest_key = digest_keys[&row.content_hash];
            let has_payloads = row.ops.is_some() || !row.events.is_empty();
            assert_eq!(digest_key.is_some(), self.sealed && has_payloads);
            let keyed = |plain| digest_key.map_or(plain, |key| key.digest(plain));
            let hash = header::Header {
                parent_hash: parent,
                run: worker.run,
                turn: row.turn,
                boundary: row.boundary,
                epoch: row.epoch,
                attempt: row.attempt,
                at: row.at.as_millisecond(),
                position,
                commit_id: row.commit_id,
                digest: row.digest,
                ops_digest: header::ops_digest(row.ops.as_deref().map(str::as_bytes)).map(keyed),
                full: row.full,
                events_digest: header::events_digest(&row.events).map(keyed),
                usage: row.usage,
                trigger: row.trigger.as_deref(),
                records_digest: row.records_digest,
                forked_from: None,
            }
            .content_hash();
            assert_eq!((row.parent_hash, row.content_hash, row.position), (parent, hash, position));
            parent = hash;
            last = (row.turn, row.boundary);
        }
        assert_eq!((last, header::render(&parent)), ((head.turn, head.boundary), head.content_hash));
    }

    /// The key for the payload digests of each boundary of the run, by the boundary's hash.
    async fn digest_keys(&self, run: RunId) -> HashMap<Digest, Option<DigestKey>> {
        let mut reading = self.begin_read().await.unwrap();
        let (mut after, mut found) = (BoundaryKey::before(run), HashMap::new());
        loop {
            let page = reading.boundaries(after, run).await.unwrap();
            let Some(last) = page.last() else { return found };
            after = last.key();
            found.extend(page.into_iter().map(|it| (it.decoded.row.content_hash, it.decoded.digest_key)));
        }
    }
}

async fn a_range_of_boundaries_can_be_read(cx: &TestContext) {
    let worker = cx.worker().await;
    for turn in 1..=5 {
        cx.commit_turn(&worker, turn).await;
    }
    for (from, to, expected) in [
        (2, 4, "2 3 4"),
        (1, 1, "1"),
        (4, 99, "4 5"),
        (0, 2, "1 2"),
        (i32::MIN, i32::MAX, "1 2 3 4 5"),
        (6, 9, ""),
        (4, 2, ""),
    ] {
        let rows = cx.boundaries(worker.run, from, to).await.unwrap();
        let turns: Vec<_> = rows.iter().map(|row| row.turn.to_string()).collect();
        assert_eq!(turns.join(" "), expected, "{from}..={to}");
    }
}

async fn large_payloads_are_read_back(cx: &TestContext) {
    let worker = cx.worker().await;
    let text: String = (0..200_000).map(|number| format!("{number:x},")).collect();
    let operations = format!(r#"{{"full":true,"set":{{"state":{{"json":"{text}"}}}}}}"#);
    let commit = Commit {
        events: vec![json(&format!("\"{text}\""))],
        ..ops(&worker, 1, Boundary::Result, &operations)
    };
    ok(cx.commit(&commit).await.unwrap());
    let row = cx.boundaries(worker.run, 1, 1).await.unwrap().remove(0);
    assert_eq!(row.ops.unwrap(), operations);
    assert_eq!(row.events[0].get().len(), text.len() + 2);
}
