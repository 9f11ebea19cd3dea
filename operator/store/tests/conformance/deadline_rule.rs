//! The deadline poll and a run's record name the same deadline, whatever the run's row holds.

use dalsegno_model::{Deadline, Deadlines, GatewayHeartbeat, NewRun, RunRecord};
use jiff::{Timestamp, ToSpan as _};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;

use crate::context::*;
use crate::engines::{on_every_persistent_engine, tamper};

on_every_persistent_engine! {
    the_poll_and_the_record_name_the_same_deadline,
    a_store_that_is_often_unavailable_still_finds_a_hung_worker,
}

/// Runs, each with a row of its own.
const RUNS: usize = 60;

/// All that the rule reads of a run's row. Times are in seconds before the poll.
#[derive(Clone, Debug)]
struct Row {
    state: &'static str,
    /// Of the cancel's request, of its delivery, of the suspend's request, of its delivery, of the lease, of scheduling,
    /// of attach.
    times: [Option<i64>; 7],
    head_at: i64,
    /// Whether the current attempt committed the head.
    is_own_head: bool,
    /// Of the lease that was granted, of the heartbeat timeout, of the start and the progress deadline, of the time to
    /// park, in milliseconds.
    lengths: [i64; 5],
    /// Since when a limit of usage is reached, in seconds before the poll, and the limit of active time in milliseconds.
    limits: [Option<i64>; 2],
    /// The gateway that last renewed the lease, of those that [`put_gateways`] stores; 0 is none.
    gateway: u8,
}

/// Far enough from every length that the time between a write and the poll does not count.
fn row() -> impl Strategy<Value = Row> {
    let state = prop::sample::select(&["reserved", "created", "attached", "ended"][..]);
    let time = || prop::sample::select(&[5, 20, 45, 120][..]);
    let times = prop::array::uniform7(prop::option::of(time()));
    let limits =
        (prop::option::of(time()), prop::option::of(prop::sample::select(&[0, 60_000, 3_600_000][..])));
    let length = || prop::sample::select(&[10_000, 30_000, 3_600_000][..]);
    (state, times, time(), any::<bool>(), prop::array::uniform5(length()), limits, 0..4_u8).prop_map(
        |(state, times, head_at, is_own_head, lengths, limits, gateway)| Row {
            state,
            times,
            head_at,
            is_own_head,
            lengths,
            limits: [limits.0, limits.1],
            gateway,
        },
    )
}

impl Row {
    /// What makes the run's row, and its attempt's, so.
    fn statements(&self, cx: &TestContext, run: &RunRecord, now: i64) -> [String; 2] {
        let Self { state, times, head_at, is_own_head, lengths, limits: [reached, active], gateway } = self;
        let [lease, heartbeat, start, progress, park] = lengths;
        let gateway = gateway_id(cx, *gateway);
        let at = |ago: &Option<i64>| ago.map_or("NULL".into(), |ago| (now - ago * 1_000).to_string());
        let [requested, told, suspended, told_of_suspend, renewed, scheduled, attached] =
            times.each_ref().map(at);
        let if_requested = |is: bool, told| if is { told } else { "NULL".into() };
        let told = if_requested(times[0].is_some(), told);
        let (suspend, told_of_suspend) =
            (times[2].is_some(), if_requested(times[2].is_some(), told_of_suspend));
        let attached = if *state == "attached" { at(&times[6].or(Some(45))) } else { attached };
        let (head_at, head_attempt) = (now - head_at * 1_000, if *is_own_head { 1 } else { 0 });
        let (reached, active) = (at(reached), active.map_or("NULL".into(), |ms| ms.to_string()));
        let of_attempt = format!("scheduled_at = {scheduled}, attached_at = {attached}");
        let uid = &run.object_uid;
        [
            format!(
                "UPDATE runs SET created_at = {now} - 7200000, lease_gateway = {gateway}, \
                 attempt_state = '{state}', {of_attempt}, cancel_requested_at = {requested}, \
                 cancel_told_at = {told}, suspend = {suspend}, suspend_requested_at = {suspended}, \
                 suspend_told_at = {told_of_suspend}, suspend_ms = {park}, lease_renewed_at = {renewed}, lease_ms = {lease}, \
                 heartbeat_ms = {heartbeat}, start_ms = {start}, progress_ms = {progress}, head_at = {head_at}, \
                 head_attempt = {head_attempt}, limit_reached_at = {reached}, limit_active_ms = {active}, active_ms = 2000 \
                 WHERE object_uid = '{uid}'"
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
    let mut found = [0; 7];
    // The gateways have beaten for long, and for less than some deadlines.
    for beating in [3_600, 35] {
        let now = cx.run_of(&worker).await.now.as_millisecond();
        let mut rows = Vec::new();
        for _ in 0..RUNS {
            let worker = cx.worker().await;
            cx.commit_turn(&worker, 1).await;
            let run = cx.run_of(&worker).await;
            let row = row().new_tree(&mut runner).unwrap().current();
            for sql in row.statements(cx, &run, now) {
                assert_eq!(tamper(cx, &sql).await, 1);
            }
            rows.push((row, worker.object_uid));
        }
        let since = now - beating * 1_000;
        tamper(cx, &format!("UPDATE store SET beat_since = {since}, gap_from = {since}")).await;
        tamper(cx, "DELETE FROM gateway_outages").await;
        for (began, ended) in [(4_000, beating), (beating - 5, beating - 15)] {
            let (began, ended) = (now - began * 1_000, now - ended * 1_000);
            tamper(
                cx,
                &format!("INSERT INTO gateway_outages (began_at, ended_at) VALUES ({began}, {ended})"),
            )
            .await;
        }
        let poll = loop {
            // A beat after a gap would start every clock anew.
            let last = cx.run_of(&worker).await.now.as_millisecond();
            tamper(cx, &format!("UPDATE store SET beat_last = {last}")).await;
            put_gateways(cx, last).await;
            let poll = cx.poll_deadlines(Timestamp::now().into()).await.unwrap();
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

/// The id of a gateway in SQL.
fn gateway_id(cx: &TestContext, number: u8) -> String {
    match number {
        0 => "NULL".into(),
        _ if cx.url.as_deref().unwrap().starts_with("sqlite:") => format!("x'{number:032x}'"),
        _ => format!("'{}'", uuid::Uuid::from_u128(number.into())),
    }
}

/// Stores three gateways: one that has always served, one that has stopped, and one that serves again.
async fn put_gateways(cx: &TestContext, now: i64) {
    tamper(cx, "DELETE FROM gateways").await;
    for (number, [last, since, gap_from]) in
        [(1, [0, 9_000, 9_000]), (2, [12, 9_000, 9_000]), (3, [0, 4, 30])]
    {
        let [last, since, gap_from] = [last, since, gap_from].map(|ago: i64| now - ago * 1_000);
        let id = gateway_id(cx, number);
        let values = format!("{id}, {last}, {since}, {gap_from}");
        let sql = format!("INSERT INTO gateways (id, beat_last, beat_since, gap_from) VALUES ({values})");
        tamper(cx, &sql).await;
    }
}

/// Makes the gateways unavailable for so many seconds, until now.
async fn gateway_outage(cx: &TestContext, seconds: i64) {
    cx.record_gateway_heartbeat().await.unwrap();
    tamper(cx, &format!("UPDATE store SET beat_last = beat_last - {seconds} * 1000")).await;
    cx.record_gateway_heartbeat().await.unwrap();
}

/// Moves all that is stored about the gateways and the attempts into the past.
async fn let_pass(cx: &TestContext, seconds: i64) {
    for sql in [
        "UPDATE store SET beat_since = beat_since - {ms}, gap_from = gap_from - {ms}",
        "UPDATE gateway_outages SET began_at = began_at - {ms}, ended_at = ended_at - {ms}",
        "UPDATE runs SET attached_at = attached_at - {ms}, created_at = created_at - {ms}",
        "UPDATE attempts SET attached_at = attached_at - {ms}",
    ] {
        tamper(cx, &sql.replace("{ms}", &(seconds * 1_000).to_string())).await;
    }
}

/// The deadline that has expired, by the poll and by the run's record.
async fn expired(cx: &TestContext, object_uid: &str) -> Option<Deadline> {
    cx.record_gateway_heartbeat().await.unwrap();
    let poll = cx.poll_deadlines(Timestamp::now().into()).await.unwrap();
    let expired = poll.expired.iter().find(|expired| expired.object.uid == object_uid);
    let run = cx.run_by_uid(object_uid).await;
    assert_eq!(expired.map(|expired| expired.deadline), first_expired(&run));
    first_expired(&run)
}

async fn a_store_that_is_often_unavailable_still_finds_a_hung_worker(cx: &TestContext) {
    cx.record_gateway_heartbeat().await.unwrap();
    let deadlines = Deadlines { progress_ms: 1_800_000, ..LONG_DEADLINES };
    let run = cx.create(&NewRun { deadlines, ..new_run() }).await;
    let worker = cx.start_worker(&run).await;
    // 12 seconds are missing every 5 minutes. The deadline is 30 minutes.
    for _ in 0..6 {
        assert_eq!(expired(cx, &worker.object_uid).await, None);
        let_pass(cx, 300).await;
        gateway_outage(cx, 12).await;
    }
    let_pass(cx, 60).await;
    assert_eq!(
        expired(cx, &worker.object_uid).await,
        None,
        "31 minutes, and 72 seconds of them do not count"
    );
    let_pass(cx, 60).await;
    gateway_outage(cx, 12).await;
    assert_eq!(expired(cx, &worker.object_uid).await, None, "the worker has 30 seconds to connect again");
    let_pass(cx, 31).await;
    assert_eq!(expired(cx, &worker.object_uid).await, Some(Deadline::Progress));
}

fn first_expired(record: &RunRecord) -> Option<Deadline> {
    let all = [
        Deadline::Cancel,
        Deadline::Suspend,
        Deadline::Limit,
        Deadline::Lease,
        Deadline::Start,
        Deadline::Progress,
    ];
    all.into_iter().find(|deadline| record.is_expired(*deadline))
}
