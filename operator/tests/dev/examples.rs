//! The examples of the README.

use std::fs;

use serde_json::json;

use crate::ledger::Ledger;
use crate::test_context::{TestContext, built, here};

#[test]
fn the_python_example_of_the_readme_runs_unchanged_and_writes_each_note_once() {
    let command = example("python3 deploy/examples/python-agent/agent.py");
    let (python, agent) = command.split_once(' ').unwrap();
    let agent = here("..").join(agent).canonicalize().unwrap();
    run_example(&[python, agent.to_str().unwrap()], r#"{"notes": 6}"#);
}

#[test]
fn the_rust_example_of_the_readme_runs_unchanged_and_writes_each_note_once() {
    let agent = built(&example("agent"));
    run_example(&[agent.to_str().unwrap()], r#"{"notes":6}"#);
}

/// The command that the README runs with `dalsegno dev`.
fn example(command: &str) -> String {
    let readme = fs::read_to_string(here("../README.md")).unwrap();
    let mut lines = readme.lines().filter_map(|line| line.strip_prefix("dalsegno dev ")?.split_once(" -- "));
    let (flags, command) = lines.find(|(_, it)| *it == command).unwrap();
    assert!(flags.contains("--input") && flags.contains("--kill-every"), "{flags}");
    command.to_owned()
}

/// Runs the example, whose worker is killed and continues. Each of its notes must be in the ledger once.
fn run_example(command: &[&str], output: &str) {
    let ledger = Ledger::new();
    let input = json!({ "goal": "Write a field guide.", "turns": 6, "turnSeconds": 1, "ledger": ledger.url });
    let context = TestContext::new(&input);
    let flags = ["--input", "input.json", "--kill-every", "5s"];
    let ended = context.dev_on(&flags, command).end();
    ended.expect_output(
        0,
        &["a disruption, not charged", "resumes at turn", "GoalReached: 6 notes are written"],
    );
    assert_eq!(ledger.turns(), [1, 2, 3, 4, 5, 6]);
    let run = context.rows().remove(0);
    assert_eq!(run.finish.unwrap().output.unwrap(), output);
    assert!(run.counters.disruptions >= 1 && run.counters.recovery_attempts == 0, "{:?}", run.counters);
}
