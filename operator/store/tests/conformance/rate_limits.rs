//! Waits for the rate limit of one provider: one run tries first, and twice as many in each later group.

use dalsegno_model::{Deadline, WaitAsks};
use dalsegno_protocol::{ParkMode, WaitState};
use futures::future::join_all;
use jiff::Timestamp;

use super::waits::{in_ms, in_time, open, opened, park_on, parked_before, request, settle_after};
use crate::context::*;
use crate::engines::on_every_engine;

on_every_engine! {
    a_rate_limit_is_tried_by_one_run_first_and_then_by_twice_as_many,
    runs_that_are_limited_at_the_same_moment_try_again_in_turn,
    a_run_that_is_limited_again_is_the_first_to_try_again,
    a_run_that_is_limited_again_moves_the_later_ones,
}

fn rate_limit(reset: Timestamp) -> WaitAsks {
    rate_limit_of("models.example", reset)
}

fn rate_limit_of(provider: &str, reset: Timestamp) -> WaitAsks {
    WaitAsks::RateLimit { provider: provider.into(), reset: Some(reset) }
}

/// How long after the reset the wait's time comes, in whole seconds.
fn delay(wake_at: Option<Timestamp>, reset: Timestamp) -> i64 {
    wake_at.unwrap().duration_since(reset).as_secs()
}

async fn a_rate_limit_is_tried_by_one_run_first_and_then_by_twice_as_many(cx: &TestContext) {
    let reset = Timestamp::from_second(in_ms(60_000).as_second()).unwrap();
    let mut delays = Vec::new();
    for _ in 0..7 {
        let worker = cx.worker().await;
        let wait = open(cx, &request(&worker, "limit", rate_limit(reset))).await;
        delays.push(delay(wait.facts.wake_at, reset));
    }
    assert_eq!(delays, [0, 5, 5, 10, 10, 10, 10]);
    let worker = cx.worker().await;
    let far = open(cx, &request(&worker, "far", rate_limit(in_ms(90 * 86_400_000)))).await;
    let hours = far.facts.wake_at.unwrap().duration_since(Timestamp::now()).as_hours();
    assert_eq!(hours, 24, "a reset is at most a day away");
}

/// Fifteen runs open their waits at the same moment, through two gateways.
async fn runs_that_are_limited_at_the_same_moment_try_again_in_turn(cx: &TestContext) {
    let reset = Timestamp::from_second(in_ms(60_000).as_second()).unwrap();
    let mut requests = Vec::new();
    for _ in 0..15 {
        requests.push(request(&cx.worker().await, "limit", rate_limit(reset)));
    }
    let waits = join_all(requests.iter().enumerate().map(|(nth, request)| {
        let store = if nth % 2 == 0 { &cx.store } else { &cx.second_gateway };
        async move { opened(store.open_wait(request).await.unwrap()) }
    }));
    let mut delays: Vec<_> = waits.await.iter().map(|wait| delay(wait.facts.wake_at, reset)).collect();
    delays.sort_unstable();
    assert_eq!(delays, [0, 5, 5, 10, 10, 10, 10, 15, 15, 15, 15, 15, 15, 15, 15]);
}

async fn a_run_that_is_limited_again_is_the_first_to_try_again(cx: &TestContext) {
    in_time(500, async |ms: i64| {
        let (probe, later) = (cx.worker().await, cx.worker().await);
        let limit = |reset| rate_limit_of(&format!("{ms}.example"), reset);
        let reset = Timestamp::from_millisecond(in_ms(ms).as_millisecond()).unwrap();
        open(cx, &request(&probe, "limit", limit(reset))).await;
        let waits = open(cx, &request(&later, "limit", limit(reset))).await;
        let park = park_on(&later, &["limit"], ParkMode::All);
        parked_before(cx, &later, &park, Some(reset)).await?;
        assert_eq!(delay(waits.facts.wake_at, reset), 5);
        settle_after(cx, &probe, ms + 1_100).await;
        let again = Timestamp::from_second(in_ms(60_000).as_second()).unwrap();
        let probed = open(cx, &request(&probe, "limit-2", limit(again))).await;
        assert_eq!(delay(probed.facts.wake_at, again), 0);
        assert_eq!(delay(cx.run_of(&later).await.waits[0].wake_at, again), 5);
        Some(())
    })
    .await;
}

async fn a_run_that_is_limited_again_moves_the_later_ones(cx: &TestContext) {
    in_time(500, async |ms: i64| {
        let (probe, later) = (cx.worker().await, cx.worker().await);
        let limit = |reset| rate_limit_of(&format!("{ms}.example"), reset);
        open(cx, &request(&probe, "limit", limit(in_ms(-10_000)))).await;
        settle_after(cx, &probe, 1_100).await;
        assert_eq!(cx.waits(probe.run).await.unwrap()[0].state, WaitState::Answered, "the probe tries");
        let soon = in_ms(ms);
        let waits = open(cx, &request(&later, "limit", limit(soon))).await.facts;
        let park = park_on(&later, &["limit"], ParkMode::All);
        parked_before(cx, &later, &park, Some(soon)).await?;
        let again = Timestamp::from_millisecond(soon.as_millisecond() + 60_000).unwrap();
        // The later one took the place of the probe. The probe finds it taken.
        let probed = open(cx, &request(&probe, "limit-2", limit(again))).await;
        assert_eq!(delay(probed.facts.wake_at, again), 5);
        let run = cx.run_of(&later).await;
        let moved = run.waits[0].wake_at.unwrap().duration_since(waits.wake_at.unwrap()).as_millis();
        assert_eq!(moved, 60_000);
        sleep_ms(ms.unsigned_abs() + 1_100).await;
        assert!(cx.run_of(&later).await.is_expired(Deadline::Wake), "the run's own row does not know yet");
        let run = cx.settle_time(later.run).await.unwrap();
        assert_eq!((run.park.is_some(), run.wake_at), (true, run.waits[0].wake_at));
        Some(())
    })
    .await;
}
