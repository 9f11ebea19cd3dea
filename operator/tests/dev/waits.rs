//! A run that waits: for the machine, or for a time.

use std::fs;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::json;

use crate::test_context::TestContext;

#[test]
fn a_run_whose_store_cannot_be_written_says_so_once_and_continues_later() {
    let folder = tempfile::tempdir().unwrap();
    let fixed = folder.path().join("fixed");
    let context = TestContext::new(&json!({ "turns": 4, "pauseAt": 3, "crashAt": 3, "fixed": fixed }));
    let mut dev = context.dev(&["--input", "input.json"]);
    dev.wait_for("turn 2");
    context.fill_disk();
    context.end_pause();
    dev.wait_for_stderr("waiting: the store failed while ending the attempt: ");
    // The run is reconciled once a second.
    thread::sleep(Duration::from_millis(2_500));
    fs::write(fixed, "").unwrap();
    context.free_space();
    let ended = dev.end().expect_output(
        0,
        &["refused a row", "exit code 7: charged (1 of 20)", "attempt 2 resumes at turn 3"],
    );
    assert_eq!(ended.turns(), [1, 2, 3, 4]);
    assert_eq!(ended.stderr.matches("waiting: ").count(), 1, "{}", ended.stderr);
    assert_eq!(context.rows()[0].counters.recovery_attempts, 1);
}

#[test]
fn a_run_that_parks_on_a_time_has_no_process_until_it_has_come() {
    let context = TestContext::new(&json!({ "turns": 3, "waitAt": 2, "wait": 10 }));
    let mut dev = context.dev(&["--input", "input.json"]);
    dev.wait_for("wait open");
    dev.wait_for_stderr("the run waits for later, without a process");
    dev.wait_for("wait answered");
    let until: u64 = fs::read_to_string(context.path().join("until")).unwrap().parse().unwrap();
    assert!(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() >= until);
    let ended = dev.end().expect_output(
        0,
        &["attempt 1 ended after turn 1: Parked: not charged", "attempt 2 resumes at turn 2"],
    );
    assert_eq!(ended.turns(), [1, 2, 3]);
    assert_eq!(context.rows()[0].counters.recovery_attempts, 0);
}

#[test]
fn a_person_approves_what_the_agent_asks_from_another_terminal() {
    for (verdict, answer) in [
        (&["approve", "--reason", "it is due", "pay"][..], ("approved", "it is due None")),
        (&["approve", "--changes", r#"{"cents": 3}"#, "pay"], ("changed", "None {'cents': 3}")),
        (&["deny", "pay"], ("denied", "None None")),
    ] {
        let context = TestContext::new(&json!({ "turns": 2, "approveAt": 2 }));
        let mut dev = context.dev(&["--input", "input.json"]);
        dev.wait_for_stderr("without a process");
        let shown = context.failing_command(&["dev", "approve"]);
        assert!(shown.contains("name the approval to decide"), "{shown}");
        assert!(context.failing_command(&["dev", "deny", "other"]).contains("no open approval"));
        let decided = context.command(&[&["dev"], verdict].concat());
        assert!(
            decided.contains("the agent says: it is due") && decided.contains(r#"{"cents": 500}"#),
            "{decided}"
        );
        let ended = dev.end().expect_output(0, &["attempt 2 resumes at turn 2"]);
        let me = std::env::var("USER").unwrap_or_else(|_| "a person".to_owned());
        let answer = format!("answer {} {me} {}", answer.0, answer.1);
        assert!(ended.lines.contains(&answer), "{answer}: {:?}", ended.lines);
    }
}

#[test]
fn an_approval_that_nobody_decides_times_out_on_a_laptop_too() {
    let context = TestContext::new(&json!({ "turns": 2, "approveAt": 2, "deadline": 8 }));
    let ended = context.run_to_end(&[]).expect_output(0, &["attempt 2 resumes at turn 2"]);
    assert!(ended.lines.contains(&"answer timedOut None None None".to_owned()), "{:?}", ended.lines);
}

#[test]
fn a_run_whose_worker_cannot_be_started_says_so_once_and_continues_later() {
    let context = TestContext::new(&json!({ "turns": 6, "seconds": 1 }));
    let (attempts, away) = (context.path().join(".dalsegno/attempts"), context.path().join("away"));
    let mut dev = context.dev(&["--input", "input.json", "--kill-every", "4s"]);
    dev.wait_for("turn 1");
    fs::rename(&attempts, &away).unwrap();
    fs::write(&attempts, "no folder").unwrap();
    dev.wait_for_stderr("waiting: this machine failed while starting a process: ");
    thread::sleep(Duration::from_millis(2_500));
    fs::remove_file(&attempts).unwrap();
    fs::rename(&away, &attempts).unwrap();
    let ended = dev.end().expect_output(0, &["the run is over after turn 6"]);
    assert_eq!(ended.turns(), [1, 2, 3, 4, 5, 6]);
    assert_eq!(ended.stderr.matches("waiting: ").count(), 1, "{}", ended.stderr);
    assert_eq!(context.rows()[0].counters.recovery_attempts, 0);
}
