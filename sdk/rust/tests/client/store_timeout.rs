//! A worker that gives up when the gateway or the store is unavailable for too long.

use std::process::Command;
use std::time::Duration;
use std::{env, fs};

use dalsegno_sdk::{Commit, Error, env as names};
use serde_json::Value;

use crate::gateway::{Gateway, committed, problem};

/// The test runs itself in another process, which gives up.
#[test]
fn a_worker_whose_call_is_unanswered_for_too_long_ends_as_a_disruption() {
    const NAME: &str = "store_timeout::a_worker_whose_call_is_unanswered_for_too_long_ends_as_a_disruption";
    if let Some(url) = env::var_os("CHILD") {
        let builder = Gateway::new().builder().env(names::URL, url.to_str().unwrap());
        let _ = builder.attach().unwrap().commit(Commit::new(1));
        panic!("the process goes on");
    }
    let gateway = Gateway::new().on("turns/1", [problem(503, "UNAVAILABLE")]);
    let log = env::temp_dir().join(format!("dalsegno-sdk-gives-up-{}", std::process::id()));
    fs::write(&log, "").unwrap();
    let mut child = Command::new(env::current_exe().unwrap());
    child.args(["--exact", "--nocapture", NAME]).env("CHILD", &gateway.url);
    child.env(names::TERMINATION_LOG, &log).env(names::STORE_TIMEOUT_SECONDS, "1");
    assert_eq!(child.output().unwrap().status.code(), Some(1));
    let message: Value = serde_json::from_slice(&fs::read(&log).unwrap()).unwrap();
    assert_eq!(message["class"], "disruption");
    let text = message["message"].as_str().unwrap();
    assert!(text.starts_with("turns/1: no answer for ") && text.contains("503"), "{text}");
    assert!(gateway.bodies("turns/1").len() > 1, "it has tried again before");
}

#[test]
fn a_call_that_is_answered_in_time_is_no_reason_to_give_up() {
    let gateway = Gateway::new().on("turns/1", [problem(503, "UNAVAILABLE"), committed(1, "result")]);
    let mut run = gateway.builder().store_timeout(Duration::from_secs(60)).attach().unwrap();
    run.commit(Commit::new(1)).unwrap();
    assert_eq!(run.turn(), 2);
}

#[test]
fn the_variable_holds_a_whole_number_of_seconds_and_the_builder_comes_first() {
    for text in ["0", "1.5", "30s", "-1"] {
        let gateway = Gateway::new();
        let refused = gateway.builder().env(names::STORE_TIMEOUT_SECONDS, text).attach().err().unwrap();
        assert!(matches!(refused, Error::NotSeconds(name) if name == names::STORE_TIMEOUT_SECONDS), "{text}");
        let builder = gateway.builder().env(names::STORE_TIMEOUT_SECONDS, text);
        assert!(builder.store_timeout(Duration::from_secs(1)).attach().is_ok(), "{text}");
    }
    assert!(Gateway::new().builder().env(names::STORE_TIMEOUT_SECONDS, "").attach().is_ok(), "as if unset");
}
