//! Suspend: the worker parks between two steps.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use dalsegno_protocol::{Code, Policy};
use dalsegno_sdk::{Commit, Error, Run, ToolCall, ToolError};
use serde_json::{Value, json};

use crate::gateway::{
    Answer, Gateway, attached, call, child_run, committed, exit_code, flags, problem, wait_until,
};

fn suspended() -> Answer {
    attached(json!({"suspend": true}))
}

fn answer(result: &str) -> Answer {
    Some((200, json!({"result": result})))
}

/// A park that is answered only by its sixth try, between one and four seconds later.
fn late(result: &str) -> [Answer; 6] {
    std::array::from_fn(|n| if n < 5 { problem(503, "UNAVAILABLE") } else { answer(result) })
}

#[test]
fn a_check_parks_a_suspended_run_and_exits_with_0() {
    if let Some(run) = child_run() {
        run.check().unwrap();
        panic!("the process goes on");
    }
    let gateway = Gateway::new().on("attach", [suspended()]).on("park", [None, answer("parked")]);
    let code = exit_code("suspend::a_check_parks_a_suspended_run_and_exits_with_0", &gateway);
    assert_eq!(code, Some(0));
    let parks = gateway.bodies("park");
    assert_eq!((parks.len(), &parks[0]), (2, &parks[1]));
    let body: Value = gateway.body("park");
    assert_eq!((body.as_object().unwrap().len(), body["parkId"].as_str().unwrap().len()), (1, 36));
}

#[test]
fn a_check_acknowledges_a_cancel_rather_than_a_suspend() {
    if let Some(run) = child_run() {
        run.check().unwrap();
        panic!("the process goes on");
    }
    let gateway = Gateway::new()
        .on("attach", [attached(json!({"suspend": true, "cancel": true}))])
        .on("park", [answer("parked")])
        .on("cancelled", [answer("ok")]);
    let code = exit_code("suspend::a_check_acknowledges_a_cancel_rather_than_a_suspend", &gateway);
    assert_eq!((code, gateway.bodies("cancelled").len(), gateway.bodies("park").len()), (Some(0), 1, 0));
}

#[test]
fn a_fenced_park_ends_the_process() {
    if let Some(run) = child_run() {
        let _ = run.park();
        return;
    }
    let gateway = Gateway::new().on("park", [problem(409, "FENCED")]);
    assert_eq!(exit_code("suspend::a_fenced_park_ends_the_process", &gateway), Some(1));
}

#[test]
fn a_run_whose_suspend_was_lifted_goes_on() {
    let gateway = Gateway::new()
        .on("attach", [suspended()])
        .on("park", [answer("ready")])
        .on("turns/1", [committed(1, "result")]);
    let mut run = gateway.attach();
    assert!(run.suspending());
    for _ in 0..2 {
        run.check().unwrap();
        assert!(!run.suspending());
    }
    assert_eq!(gateway.bodies("park").len(), 1);
    run.commit(Commit::new(1)).unwrap();
}

#[test]
fn heartbeats_continue_after_a_park_that_is_not_needed() {
    let gateway = Gateway::new().on("park", [answer("ready")]);
    let run = gateway.builder().heartbeat(true).attach().unwrap();
    assert!(!run.park().unwrap());
    let before = gateway.bodies("heartbeat").len();
    wait_until(Duration::from_secs(60), || gateway.bodies("heartbeat").len() > before + 1);
}

/// The run's hook counts its calls.
fn attach_and_count(gateway: &Gateway) -> (Run, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let hook = calls.clone();
    let builder = gateway.builder().heartbeat(true).on_ended(move |_| {
        hook.fetch_add(1, Ordering::SeqCst);
    });
    (builder.attach().unwrap(), calls)
}

#[test]
fn a_heartbeat_that_is_fenced_by_the_agents_own_park_does_not_call_the_hook() {
    let gateway = Gateway::new()
        .on("attach", [suspended()])
        .on("heartbeat", [flags(json!({"suspend": true})), problem(409, "FENCED")])
        .on("park", late("parked"));
    let (run, calls) = attach_and_count(&gateway);
    wait_until(Duration::from_secs(60), || !gateway.bodies("heartbeat").is_empty());
    assert!(run.park().unwrap());
    thread::sleep(Duration::from_secs(2));
    let heartbeats = gateway.bodies("heartbeat").len();
    thread::sleep(Duration::from_secs(3));
    assert_eq!((gateway.bodies("heartbeat").len(), calls.load(Ordering::SeqCst)), (heartbeats, 0));
    assert!(heartbeats >= 2, "no heartbeat was sent during the park");
}

#[test]
fn a_fence_that_a_heartbeat_met_during_a_park_is_found_after_it() {
    let gateway = Gateway::new()
        .on("attach", [suspended()])
        .on("heartbeat", [flags(json!({"suspend": true})), problem(409, "FENCED")])
        .on("park", late("ready"));
    let (run, calls) = attach_and_count(&gateway);
    assert!(!run.park().unwrap());
    wait_until(Duration::from_secs(60), || calls.load(Ordering::SeqCst) == 1);
}

#[test]
fn an_unsettled_call_of_an_earlier_attempt_postpones_the_park_of_a_check() {
    let gateway = Gateway::new()
        .on("attach", [suspended()])
        .on("park", [problem(409, "UNSETTLED_CALLS")])
        .on("calls/turn-1/claim", [call("uncertain", "started", json!({}))]);
    let run = gateway.attach();
    run.check().unwrap();
    assert!(run.suspending());
    let called = run.call(ToolCall::new("turn-1", Policy::Probe), (), |_, ()| Ok(()));
    assert!(matches!(called, Err(Error::Uncertain(_))));
    run.check().unwrap();
    assert!(
        matches!(run.park(), Err(Error::Refused { problem, .. }) if problem.code == Code::UnsettledCalls)
    );
    let parks = gateway.bodies("park");
    assert!(parks[0] != parks[1] && parks[1] != parks[2], "each park has its own id");
}

#[test]
fn an_open_call_of_this_process_is_an_error_of_a_check() {
    for (policy, refused) in [(Policy::Ask, true), (Policy::RetrySameKey, false)] {
        let gateway = Gateway::new()
            .on("attach", [suspended()])
            .on("park", [problem(409, "UNSETTLED_CALLS")])
            .on("calls/turn-1/claim", [call("go", "started", json!({}))]);
        let run = gateway.attach();
        let tool = |_: &str, ()| Err::<(), _>(ToolError::from(std::io::Error::other("no answer")));
        assert!(matches!(run.call(ToolCall::new("turn-1", policy), (), tool), Err(Error::Tool { .. })));
        assert_eq!(matches!(run.check(), Err(Error::Refused { .. })), refused, "{policy:?}");
    }
}
