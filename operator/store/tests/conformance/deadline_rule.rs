//! The deadline poll and a run's record name the same deadline, whatever the run's row holds.

use dalsegno_model::{Deadline, GatewayHeartbeat, RunRecord};
use jiff::{Timestamp, ToSpan as _};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;

use crate::context::*;
use crate::engines::{on_every_persistent_engine, tamper};

on_every_persistent_engine! {
    the_poll_and_the_record_name_the_same_deadline,
}

/// Runs, each with a row of its own.
const RUNS: usize = 60;

/// All that the rule reads of a run's row. Times are in seconds before the poll.
#[derive(Clone, Debug)]
struct Row {
    state: &'static str,
    /// Of the cancel's request, of its delivery, of the lease, of scheduling, of attach.
    times: [Option<i64>; 5],
    head_at: i64,
    /// Whether the current attempt committed the head.
    is_own_head: bool,
    /// Of the lease that was granted, of the heartbeat timeout, of the start and the progress deadline, in milliseconds.
    lengths: [i64; 4],
}

/// Far enough from every length that the time between a write and the poll does not count.
fn row() -> impl Strategy<Value = Row> {
    let state = prop::sample::select(&["reserved", "created", "attached", "ended"][..]);
    let time = || prop::sample::select(&[5, 20, 45, 120][..]);
    let times = prop::array::uniform5(prop::option::of(time()));
    let length = || prop::sample::select(&[10_000, 30_000, 3_600_000][..]);
    (state, times, time(), any::<bool>(), prop::array::uniform4(length())).prop_map(
        |(state, times, head_at, is_own_head, lengths)| Row { state, times, head_at, is_own_head, lengths },
    )
}

impl Row {
    /// What makes the run's row, and its attempt's, so.
    fn statements(&self, run: &RunRecord, now: i64) -> [String; 2] {
        let Self { state, times, head_at, is_own_head, lengths: [lease, heartbeat, start, progress] } = self;
        let at = |ago: &Option<i64>| ago.map_or("NULL".into(), |ago| (now - ago * 1_000).to_string());
        let [requested, told, renewed, scheduled, attached] = times.each_ref().map(at);
        let told = if times[0].is_some() { told } else { "NULL".into() };
        let attached = if *state == "attached" { at(&times[4].or(Some(45))) } else { attached };
        let (head_at, head_attempt) = (now - head_at * 1_000, if *is_own_head { 1 } else { 0 });
        let of_attempt = format!("scheduled_at = {scheduled}, attached_at = {attached}");
        let uid = &run.object_uid;
        [
            format!(
                "UPDATE runs SET attempt_state = '{state}', {of_attempt}, cancel_requested_at = {requested}, \
                 cancel_told_at = {told}, lease_renewed_at = {renewed}, lease_ms = {lease}, \
                 heartbeat_ms = {heartbeat}, start_ms = {start}, progress_ms = {progress}, head_at = {head_at}, \
                 head_attempt = {head_attempt} WHERE object_uid = '{uid}'"
            ),
            format!(
                "UPDATE attempts SET state = '{state}', {of_attempt} \
                 WHERE run = (SELECT id FROM runs WHERE object_uid = '{uid}')"
            ),
        ]
    }
}

async fn the_poll_and_the_record_name_the_same_deadline(cx: &TestContext) {
    let mut runner = TestRunner::deterministic();
    let worker = cx.worker().await;
    cx.commit_turn(&worker, 1).await;
    let mut found = [0; 5];
    // The gateways have beaten for long, and for less than some deadlines.
    for beating in [3_600, 25] {
        let now = cx.run_of(&worker).await.now.as_millisecond();
        let mut rows = Vec::new();
        for _ in 0..RUNS {
            let worker = cx.worker().await;
            cx.commit_turn(&worker, 1).await;
            let run = cx.run_of(&worker).await;
            let row = row().new_tree(&mut runner).unwrap().current();
            for sql in row.statements(&run, now) {
                assert_eq!(tamper(cx, &sql).await, 1);
            }
            rows.push((row, worker.object_uid));
        }
        let since = now - beating * 1_000;
        tamper(cx, &format!("UPDATE store SET beat_since = {since}, gap_from = {since}")).await;
        let poll = loop {
            // A beat after a gap would start every clock anew.
            let last = cx.run_of(&worker).await.now.as_millisecond();
            tamper(cx, &format!("UPDATE store SET beat_last = {last}")).await;
            let poll = cx.poll_deadlines(Timestamp::now()).await.unwrap();
            if poll.now.as_millisecond() - last < 2_500 {
                break poll;
            }
        };
        let since = Timestamp::from_millisecond(since).unwrap();
        for (row, object_uid) in rows {
            let expired = poll.expired.iter().find(|expired| expired.object.uid == object_uid);
            let run = cx.run_by_uid(&object_uid).await;
            let beat = GatewayHeartbeat { last: poll.now, since, gap_from: since };
            let record = RunRecord { now: poll.now, beat, ..run };
            let first = first_expired(&record);
            assert_eq!(expired.map(|expired| expired.deadline), first, "beating for {beating} s: {row:?}");
            found[first.map_or(0, |deadline| deadline as usize + 1)] += 1;
            let silent = GatewayHeartbeat { last: poll.now - 4.seconds(), ..beat };
            assert_eq!(first_expired(&RunRecord { beat: silent, ..record }), None);
        }
    }
    assert!(found.iter().all(|count| *count > 0), "each is met: {found:?}");
}

fn first_expired(record: &RunRecord) -> Option<Deadline> {
    let all = [Deadline::Cancel, Deadline::Lease, Deadline::Start, Deadline::Progress];
    all.into_iter().find(|deadline| record.is_expired(*deadline))
}
