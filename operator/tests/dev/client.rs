//! The Python client against the real gateway: agents that wait without a process, and one that reaches a limit.

use std::time::{Duration, Instant};

use dalsegno_model::Cause;
use serde_json::json;

use crate::test_context::TestContext;

#[test]
fn a_run_sleeps_without_a_process_and_is_not_charged() {
    let nap = Duration::from_secs(4);
    let context = TestContext::new(&json!({ "turns": 3, "sleepAt": 2, "nap": nap.as_secs() }));
    let mut dev = context.dev(&["--input", "input.json"]);
    dev.wait_for("turn 1");
    let began = Instant::now();
    dev.wait_for("woke elapsed in attempt 2");
    assert!(began.elapsed() > nap - Duration::from_millis(500), "{:?}", began.elapsed());
    let ended =
        dev.end().expect_output(0, &["attempt 1 ended after turn 1: ", "attempt 2 resumes at turn 2"]);
    assert_eq!(ended.turns(), [1, 2, 3]);
    let run = context.rows().remove(0);
    let end = run.past[0].end.as_ref().unwrap();
    assert_eq!((end.cause, end.charged, run.past.len()), (Cause::Parked, false, 1));
    assert_eq!((run.counters.recovery_attempts, run.counters.disruptions), (0, 0));
}

#[test]
fn a_run_waits_for_a_message_without_a_process_and_takes_it_once() {
    let context = TestContext::new(&json!({ "turns": 3, "hearAt": 2 }));
    let mut dev = context.dev(&["--input", "input.json"]);
    dev.wait_for_stderr("attempt 1 ended after turn 1: Parked");
    context.command(&["dev", "send", "of no interest", "--topic", "weather"]);
    context.command(&["dev", "send", "hello", "--topic", "greeting"]);
    dev.wait_for("heard hello in attempt 2");
    let ended = dev.end().expect_output(0, &["attempt 2 resumes at turn 2"]);
    assert_eq!(ended.turns(), [1, 2, 3]);
    assert!(ended.lines.contains(&"unread of no interest".to_owned()), "{:?}", ended.lines);
    assert_eq!(context.rows()[0].counters.recovery_attempts, 0);
}

#[test]
fn an_agent_at_a_limit_exits_by_itself_and_goes_on_when_the_limit_is_raised() {
    let context = TestContext::new(&json!({ "turns": 4 }));
    let held = context
        .run_to_end(&["--limit", "turns=2"])
        .expect_output(1, &["held: LimitReached: ", "what to do: "]);
    assert_eq!(held.turns(), [1, 2]);
    let end = context.rows().remove(0).past.remove(0).end.unwrap();
    assert_eq!((end.cause, end.charged), (Cause::LimitReached, false));
    assert!(end.message.contains("and its worker exited"), "{}", end.message);

    let ended =
        context.run_to_end(&["--limit", "turns=9"]).expect_output(0, &["attempt 2 resumes at turn 3"]);
    assert_eq!(ended.turns(), [3, 4]);
    assert_eq!(context.rows()[0].counters.recovery_attempts, 0);
}
