//! Events, read by position.

use dalsegno_model::{Commit, EventQuery, Rewound};
use uuid::Uuid;

use crate::context::*;
use crate::engines::on_every_engine;

on_every_engine! {
    events_are_read_from_any_position_with_their_turn_and_attempt,
    the_events_of_a_turn_begin_after_those_of_the_turn_before,
    a_page_of_events_is_limited_by_count_and_by_bytes,
    a_page_of_events_reports_that_the_run_is_over,
}

fn all(from: i64) -> EventQuery {
    EventQuery { from, limit: 1_000, bytes: 1 << 20 }
}

async fn with_events(cx: &TestContext) -> Worker {
    let mut worker = cx.worker().await;
    let mut number = 0;
    for turn in 1..=6 {
        let mut events = |count| -> Vec<_> {
            (0..count)
                .map(|_| {
                    number += 1;
                    json(&format!(r#"{{"n":  {number}, "z":1e400}}"#))
                })
                .collect()
        };
        ok(cx.commit(&Commit { events: events(turn % 2), ..worker.plan(turn) }).await.unwrap());
        ok(cx.commit(&Commit { events: events(turn % 3), ..worker.result(turn) }).await.unwrap());
        if turn == 3 {
            worker = cx.next_worker(&worker).await;
        }
    }
    worker
}

async fn events_are_read_from_any_position_with_their_turn_and_attempt(cx: &TestContext) {
    let worker = with_events(cx).await;
    let page = cx.events(worker.run, all(1)).await.unwrap();
    let shown: Vec<_> = page.events.iter().map(|event| (event.position, event.turn, event.attempt)).collect();
    let expected =
        [(1, 1, 1), (2, 1, 1), (3, 2, 1), (4, 2, 1), (5, 3, 1), (6, 4, 2), (7, 5, 2), (8, 5, 2), (9, 5, 2)];
    assert_eq!(shown, expected);
    for (n, event) in (1..).zip(&page.events) {
        assert_eq!(event.event.get(), format!(r#"{{"n":  {n}, "z":1e400}}"#), "as it came");
    }
    for from in [i64::MIN, 0, 1, 2, 4, 8, 9, 10, i64::MAX] {
        let positions: Vec<_> = cx
            .events(worker.run, all(from))
            .await
            .unwrap()
            .events
            .iter()
            .map(|event| event.position)
            .collect();
        assert_eq!(positions, (from.clamp(1, 10)..10).collect::<Vec<_>>(), "from {from}");
    }
}

async fn the_events_of_a_turn_begin_after_those_of_the_turn_before(cx: &TestContext) {
    let worker = with_events(cx).await;
    let first = async |turn| cx.first_event(worker.run, turn).await.unwrap();
    for turn in 1..=6 {
        let events = cx.events(worker.run, all(1)).await.unwrap().events;
        let before = events.iter().filter(|event| event.turn < turn).count() as i64;
        assert_eq!(first(turn).await, Some(before + 1), "turn {turn}");
    }
    for turn in [0, 7] {
        assert_eq!(first(turn).await, None, "turn {turn}");
    }
    assert_eq!(cx.first_event(Uuid::now_v7(), 1).await.unwrap(), None, "an unknown run");

    // An undone turn has no events any more, and positions continue after the highest one ever used.
    let epoch = cx.run_of(&worker).await.epoch;
    let rewind = rewind_to(epoch, result_place(3));
    let Rewound::Done(run) = cx.rewind(worker.run, &rewind).await.unwrap() else { panic!("refused") };
    assert_eq!((first(3).await, first(4).await), (Some(5), None));
    let worker = cx.start_worker(&run).await;
    ok(cx.commit(&Commit { events: vec![json("1")], ..worker.plan(4) }).await.unwrap());
    assert_eq!(first(4).await, Some(10));
}

async fn a_page_of_events_is_limited_by_count_and_by_bytes(cx: &TestContext) {
    let worker = with_events(cx).await;
    for limit in 1..=10 {
        let mut positions = Vec::new();
        loop {
            let from = positions.last().map_or(1, |last| last + 1);
            let page = cx.events(worker.run, EventQuery { limit, ..all(from) }).await.unwrap();
            assert!(page.events.len() <= limit as usize);
            if page.events.is_empty() {
                break;
            }
            positions.extend(page.events.iter().map(|event| event.position));
        }
        assert_eq!(positions, (1..10).collect::<Vec<_>>(), "limit {limit}");
    }
    // The nonce and the tag of a sealed event count too.
    let two = if cx.sealed { 26 + 28 } else { 26 };
    for (bytes, count) in [(1, 1), (20, 1), (two, 2), (1_000, 9)] {
        let page = cx.events(worker.run, EventQuery { bytes, ..all(1) }).await.unwrap();
        assert_eq!(page.events.len(), count, "{bytes} bytes");
    }
}

async fn a_page_of_events_reports_that_the_run_is_over(cx: &TestContext) {
    let worker = with_events(cx).await;
    assert!(!cx.events(worker.run, all(99)).await.unwrap().over);
    ok(cx.finish(&worker.finish()).await.unwrap());
    let page = cx.events(worker.run, all(9)).await.unwrap();
    assert_eq!((page.over, page.events.len()), (true, 1));
    assert!(cx.events(Uuid::now_v7(), all(1)).await.unwrap().over, "an unknown run");
}
