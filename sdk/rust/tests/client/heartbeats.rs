//! Heartbeats.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use dalsegno_protocol::Finish;
use dalsegno_sdk::{Commit, succeeded};
use serde_json::json;

use crate::gateway::{Gateway, attached, committed, flags, head, merged, problem, wait_until};

#[test]
fn heartbeats_continue_while_the_loop_sleeps_and_a_fenced_one_calls_the_hook() {
    let gateway =
        Gateway::new().on("heartbeat", [flags(json!({"cancel": true})), None, problem(409, "FENCED")]);
    let received = Arc::new(Mutex::new(None));
    let hook = received.clone();
    let builder = gateway.builder().heartbeat(true);
    let run = builder.on_ended(move |problem| *hook.lock().unwrap() = Some(problem.code)).attach().unwrap();
    wait_until(Duration::from_secs(60), || received.lock().unwrap().is_some());
    assert!(run.cancelled());
    assert_eq!(gateway.bodies("heartbeat"), ["", "", ""]);
}

#[test]
fn retry_after_does_not_delay_a_heartbeat_past_the_lease() {
    let gateway =
        Gateway::new().on("heartbeat", [problem(504, "UNAVAILABLE"), flags(json!({"cancel": true}))]);
    let run = gateway.builder().heartbeat(true).attach().unwrap();
    wait_until(Duration::from_secs(20), || run.cancelled());
}

#[test]
fn a_shorter_lease_in_any_answer_brings_the_next_heartbeat_forward() {
    let lease = |seconds: u32| json!({"leaseSeconds": seconds});
    let gateway = Gateway::new()
        .on("attach", [attached(merged(lease(180), json!({"heartbeatSeconds": 60})))])
        .on(
            "heartbeat",
            [flags(lease(180)), flags(lease(2)), flags(lease(2)), flags(json!({"cancel": true}))],
        )
        .on("turns/1", [flags(merged(lease(2), json!({"result": "ok", "head": head(1, "result")})))]);
    let mut run = gateway.builder().heartbeat(true).attach().unwrap();
    wait_until(Duration::from_secs(60), || gateway.bodies("heartbeat").len() == 1);
    run.commit(Commit::new(1)).unwrap();
    // Sooner than the first period.
    wait_until(Duration::from_secs(30), || run.cancelled());
}

#[test]
fn a_heartbeat_that_is_fenced_after_the_agents_own_finish_does_not_call_the_hook() {
    // Retry-After delays the second heartbeat, so that the run is finished before it.
    let answers = [problem(504, "UNAVAILABLE"), problem(409, "FENCED")];
    let gateway = Gateway::new().on("finish", [committed(1, "result")]).on("heartbeat", answers);
    let received = Arc::new(AtomicUsize::new(0));
    let hook = received.clone();
    let builder = gateway.builder().heartbeat(true).on_ended(move |_| {
        hook.fetch_add(1, Ordering::SeqCst);
    });
    let mut run = builder.attach().unwrap();
    wait_until(Duration::from_secs(60), || !gateway.bodies("heartbeat").is_empty());
    run.finish(Finish { reason: Some("GoalReached".into()), ..succeeded() }).unwrap();
    let finish = json!({"outcome": "succeeded", "reason": "GoalReached"});
    assert_eq!(gateway.body("finish")["finish"], finish);
    // The second heartbeat is refused because the run is finished. It is the last one: the period is one second.
    wait_until(Duration::from_secs(60), || gateway.bodies("heartbeat").len() == 2);
    thread::sleep(Duration::from_secs(3));
    assert_eq!((gateway.bodies("heartbeat").len(), received.load(Ordering::SeqCst)), (2, 0));
}
