//! A run from its start to its end: crashes, disruptions, interruptions.

use std::fs;

use dalsegno_model::{Cause, Lifecycle, Verdict};
use rustix::process::Signal;
use serde_json::json;

use crate::test_context::TestContext;

#[test]
fn a_run_finishes_and_starts_anew_only_with_fresh() {
    let context = TestContext::new(&json!({ "turns": 3, "message": "käse" }));
    let ended =
        context.run_to_end(&[]).expect_output(0, &["attempt 1 starts at turn 1", "Succeeded", "käse"]);
    assert_eq!(ended.lines, ["dev/agent 1 attached", "turn 1", "turn 2", "turn 3"]);

    // The printed command works.
    let line = ended.stderr.lines().find_map(|it| it.strip_prefix("dalsegno: dalsegno ")).unwrap();
    let shown = context.command(&line.split(' ').collect::<Vec<_>>());
    assert!(shown.contains("Succeeded") && shown.contains("[1, 2, 3]"), "{shown}");
    assert!(shown.contains(" on laptop: ended with the run\n"), "{shown}");

    let again = context.run_to_end(&[]).expect_output(0, &["Succeeded", "--fresh"]);
    assert!(again.lines.is_empty(), "{again:?}");

    let fresh = context.run_to_end(&["--fresh"]).expect_output(0, &["attempt 1 starts at turn 1"]);
    assert_eq!(fresh.turns(), [1, 2, 3]);
    let rows: Vec<_> = context.rows().iter().map(|it| it.lifecycle).collect();
    assert_eq!(rows, [Lifecycle::Finished, Lifecycle::Abandoned]);
}

#[test]
fn a_worker_that_is_killed_repeatedly_loses_and_repeats_nothing() {
    let context = TestContext::new(&json!({ "turns": 10, "seconds": 0.5 }));
    let ended = context
        .run_to_end(&["--kill-every", "4s"])
        .expect_output(0, &["a disruption, not charged", "resumes at turn"]);
    assert_eq!(*ended.turns().last().unwrap(), 10);
    let run = context.rows().remove(0);
    assert_eq!(run.finish.unwrap().output.unwrap(), "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]");
    assert!(run.counters.disruptions >= 1, "{:?}", run.counters);
    assert_eq!(run.counters.recovery_attempts, 0);
    let first = run.past.last().unwrap().end.clone().unwrap();
    assert_eq!((first.cause.as_str(), first.exit_code), ("Evicted", Some(137)));
    let too_early = run.past.iter().filter(|it| it.attached_at.is_none()).count();
    assert_eq!(ended.stderr.matches("had not attached yet").count(), too_early, "{}", ended.stderr);
}

#[test]
fn a_worker_that_is_killed_before_it_has_attached_is_told_apart() {
    let context = TestContext::new(&json!({}));
    let mut dev = context.dev_on(&["--kill-every", "500ms"], &["sleep", "60"]);
    dev.wait_for_stderr(
        "warning: attempt 1 had not attached yet when it was killed; choose a longer --kill-every than the agent needs \
         to start",
    );
    dev.signal(Signal::INT);
    dev.end().expect_output(
        130,
        &["attempt 1 ended before its first turn: killed by --kill-every: a disruption, not charged"],
    );
}

#[test]
fn a_run_that_crashes_without_progress_is_held_and_the_same_command_grants_a_fresh_budget() {
    let folder = tempfile::tempdir().unwrap();
    let fixed = folder.path().join("fixed");
    let context = TestContext::new(&json!({ "turns": 3, "crashAt": 2, "fixed": fixed }));
    let held = context.run_to_end(&[]).expect_output(
        1,
        &[
            "attempt 1 ended after turn 1: exit code 7: charged (1 of 20), 0 of 3 without progress; attempt 2 in",
            "attempt 2 resumes at turn 2",
            "attempt 4 ended after turn 1: exit code 7: charged (4 of 20), 3 of 3 without progress",
            "held: RecoveryLoop: ",
            "what to do: fix the agent",
        ],
    );
    assert_eq!(held.turns(), [1]);

    fs::write(fixed, "").unwrap();
    let ended = context
        .run_to_end(&[])
        .expect_output(0, &["the run continues at turn 2", "attempt 5 resumes at turn 2"]);
    assert_eq!(ended.turns(), [2, 3]);
}

#[test]
fn an_interrupted_run_continues_at_the_next_turn() {
    let context = TestContext::new(&json!({ "turns": 6, "seconds": 1 }));
    let mut dev = context.dev(&["--input", "input.json"]);
    dev.wait_for("turn 2");
    dev.signal(Signal::INT);
    let first = dev.end().expect_output(130, &["stopped; the same command continues at turn "]);
    let (turn, row) = (first.turns().len() as i32, context.rows().remove(0));
    assert_eq!(row.head.unwrap().turn, turn);
    assert_eq!(row.past[0].end.as_ref().unwrap().cause, Cause::Deleted);

    let second =
        context.run_to_end(&[]).expect_output(0, &[&format!("attempt 2 resumes at turn {}", turn + 1)]);
    assert_eq!([first.turns(), second.turns()].concat(), [1, 2, 3, 4, 5, 6]);
    assert_eq!(context.rows()[0].counters.recovery_attempts, 0);
}

#[test]
fn a_changed_program_continues_with_a_warning() {
    let context = TestContext::new(&json!({ "turns": 4, "seconds": 1 }));
    let mut dev = context.dev(&["--input", "input.json"]);
    dev.wait_for("turn 1");
    dev.signal(Signal::TERM);
    dev.end().expect_output(143, &["stopped"]);
    let agent = context.path().join("agent.py");
    let changed = fs::read_to_string(&agent).unwrap() + "# changed\n";
    fs::write(agent, changed).unwrap();

    let ended = context.run_to_end(&[]).expect_output(0, &["warning: the checkpoint of turn ", "is Allow"]);
    assert!(ended.lines.contains(&"warning VERSION_ALLOWED".to_owned()), "{ended:?}");
    let attempt = context.rows().remove(0).attempt;
    assert_eq!(attempt.identity.unwrap().verdict, Verdict::Allowed);
    assert!(context.command(&["dev", "--help"]).contains("`versionPolicy.onMismatch` is `Allow` here"));
}

#[test]
fn a_run_whose_worker_fails_fatally_is_held_at_once() {
    let context = TestContext::new(&json!({ "turns": 3, "fatalAt": 2 }));
    let held = context
        .run_to_end(&[])
        .expect_output(1, &["held: WorkerFatal: ", "the key is revoked", "what to do: "]);
    assert_eq!(held.turns(), [1]);
    assert!(!held.stderr.contains("attempt 2"), "{}", held.stderr);
    assert_eq!(context.rows()[0].past.len(), 1);
}
