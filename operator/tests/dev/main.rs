//! `dalsegno dev` with real processes and a real store. Every test also proves that no process is left behind: the agent's
//! helper holds the output open, and the output must end.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod ledger;
mod test_context;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::Duration;

use dalsegno_store::{Lifecycle, Verdict};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use ledger::Ledger;
use test_context::{TestContext, built, here};

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
fn an_exported_run_is_verified_by_the_file_alone() {
    let context = TestContext::new(&json!({ "turns": 3 }));
    context.run_to_end(&[]).expect_output(0, &["Succeeded"]);
    let url = context.url();
    let verified = context.command(&["verify", "--database-url", &url, "dev/agent"]);
    assert!(verified.contains(": 0 problems\nthe state can be rebuilt up to turn 3 (result)"), "{verified}");

    let shown =
        context.command(&["show", "--database-url", &url, "dev/agent", "--turn", "3", "--since", "1"]);
    assert!(shown.contains(r#"from turn 1 to turn 3: {"added":{},"updated":{"#), "{shown}");

    context.command(&["export", "--database-url", &url, "dev/agent", "--output", "run.jsonl"]);
    let verified = context.command(&["verify", "run.jsonl"]);
    assert!(
        verified.contains("run dev/agent: 3 boundaries, ") && verified.contains(": 0 problems"),
        "{verified}"
    );
    let key = verified.lines().find_map(|it| it.strip_prefix("public key ")?.split(' ').next()).unwrap();
    let replayed = context.command(&["verify", "run.jsonl", "--public-key", key, "--turn", "2"]);
    assert!(replayed.contains("state after turn 2") && replayed.contains("[1, 2]"), "{replayed}");

    let bundle = fs::read_to_string(context.path().join("run.jsonl")).unwrap();
    fs::write(context.path().join("changed.jsonl"), bundle.replacen("[1, 2]", "[1, 3]", 1)).unwrap();
    let changed = context.failing_command(&["verify", "changed.jsonl"]);
    assert!(changed.contains("turn 2 (result): it has another payload than was committed"), "{changed}");
    let twice =
        context.failing_command(&["export", "--database-url", &url, "dev/agent", "--output", "run.jsonl"]);
    assert!(twice.contains("creating run.jsonl"), "{twice}");
    assert!(context.failing_command(&["verify", "no.jsonl"]).contains("there is no file no.jsonl"));
}

#[test]
fn a_command_whose_output_nobody_reads_exits_silently() {
    let context = TestContext::new(&json!({ "turns": 3 }));
    context.run_to_end(&[]).expect_output(0, &["Succeeded"]);
    let url = context.url();
    for verb in ["show", "verify", "export"] {
        assert_eq!(
            context.unread_command(&[verb, "--database-url", &url, "dev/agent"]),
            (Some(141), String::new())
        );
    }
    assert_eq!(context.unread_command(&["crds"]), (Some(141), String::new()));
}

#[test]
fn a_worker_that_is_killed_repeatedly_loses_and_repeats_nothing() {
    let context = TestContext::new(&json!({ "turns": 10, "seconds": 0.5 }));
    let ended = context
        .run_to_end(&["--kill-every", "2500ms"])
        .expect_output(0, &["a disruption, not charged", "resumes at turn"]);
    assert_eq!(*ended.turns().last().unwrap(), 10);
    let run = context.rows().remove(0);
    assert_eq!(run.finish.unwrap().output.unwrap(), "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]");
    assert!(run.counters.disruptions >= 1, "{:?}", run.counters);
    assert_eq!(run.counters.recovery_attempts, 0);
    let first = run.past.last().unwrap().end.clone().unwrap();
    assert_eq!((first.cause.as_str(), first.exit_code), ("Evicted", Some(137)));
}

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
    let input =
        json!({ "goal": "Write a field guide.", "turns": 6, "turnSeconds": 0.5, "ledger": ledger.url });
    let context = TestContext::new(&input);
    let flags = ["--input", "input.json", "--kill-every", "2500ms"];
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
fn a_run_whose_store_cannot_be_written_says_so_once_and_continues_later() {
    let folder = tempfile::tempdir().unwrap();
    let fixed = folder.path().join("fixed");
    let context = TestContext::new(&json!({ "turns": 4, "seconds": 1, "crashAt": 3, "fixed": fixed }));
    let mut dev = context.dev(&["--input", "input.json"]);
    dev.wait_for("turn 1");
    context.fill_disk();
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

#[test]
fn an_interrupted_run_continues_at_the_next_turn() {
    let context = TestContext::new(&json!({ "turns": 6, "seconds": 1 }));
    let mut dev = context.dev(&["--input", "input.json"]);
    dev.wait_for("turn 2");
    dev.signal(Signal::INT);
    let first = dev.end().expect_output(130, &["stopped; the same command continues at turn "]);
    let (turn, row) = (first.turns().len() as i32, context.rows().remove(0));
    assert_eq!(row.head.unwrap().turn, turn);
    assert_eq!(row.past[0].end.as_ref().unwrap().cause, "Deleted");

    let second =
        context.run_to_end(&[]).expect_output(0, &[&format!("attempt 2 resumes at turn {}", turn + 1)]);
    assert_eq!([first.turns(), second.turns()].concat(), [1, 2, 3, 4, 5, 6]);
    assert_eq!(context.rows()[0].counters.recovery_attempts, 0);
}

#[test]
fn a_closed_terminal_stops_the_program_unless_it_was_started_with_nohup() {
    // The test runner itself may ignore the signal, as under nohup. The first run has more turns than time.
    let default: &[_] = &["env", "--default-signal=HUP"];
    let ignoring: &[_] = &["sh", "-c", "trap '' HUP; exec \"$@\"", "sh"];
    for (start, turns, code) in [(default, 100, 129), (ignoring, 4, 0)] {
        let context = TestContext::new(&json!({ "turns": turns, "seconds": 0.5 }));
        let mut dev = context.dev_under(start, &["--input", "input.json"]);
        dev.wait_for("turn 1");
        dev.signal(Signal::HUP);
        let ended = dev.end();
        assert_eq!((ended.code, ended.turns() == [1, 2, 3, 4]), (Some(code), code == 0), "{ended:?}");
    }
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
fn a_second_program_in_the_same_folder_is_rejected_and_harms_nothing() {
    let context = TestContext::new(&json!({ "turns": 4, "seconds": 2 }));
    let mut dev = context.dev(&["--input", "input.json"]);
    dev.wait_for("turn 1");
    let rejected = context
        .run_to_end(&["--name", "other"])
        .expect_output(1, &["another process holds", "`dalsegno dev`"]);
    assert!(rejected.lines.is_empty(), "{rejected:?}");
    assert_eq!(dev.end().expect_output(0, &[]).turns(), [1, 2, 3, 4]);
}

#[test]
fn the_input_of_a_run_never_changes_and_is_saved() {
    let context = TestContext::new(&json!({ "turns": 3, "seconds": 1, "message": "first" }));
    let mut dev = context.dev(&["--input", "input.json"]);
    dev.wait_for("turn 1");
    dev.signal(Signal::INT);
    dev.end().expect_output(130, &[]);
    fs::write(context.path().join("input.json"), r#"{ "turns": 9 }"#).unwrap();
    context.run_to_end(&[]).expect_output(1, &["was started with another input", "--fresh"]);
    context.dev(&[]).end().expect_output(0, &["Succeeded", "first"]);
}

#[test]
fn a_worker_reads_the_saved_input_even_if_an_equal_input_is_formatted_differently() {
    let context = TestContext::new(&json!({}));
    let (given, copy) = (context.path().join("input.json"), context.path().join("copy"));
    let written = format!(
        r#"{{ "turns": 4, "seconds": 0.5, "big": 12345678901234567890123, "a": 1.10, "copy": {copy:?} }}"#
    );
    fs::write(&given, &written).unwrap();
    let mut dev = context.dev(&["--input", "input.json"]);
    dev.wait_for("turn 1");
    dev.signal(Signal::INT);
    dev.end().expect_output(130, &[]);
    assert_eq!(fs::read_to_string(&copy).unwrap(), written);

    fs::remove_file(&copy).unwrap();
    fs::write(&given, written.replace("123,", "124,")).unwrap();
    context.run_to_end(&[]).expect_output(1, &["was started with another input"]);
    fs::write(&given, written.replace("1.10", "1.1")).unwrap();
    context.run_to_end(&[]).expect_output(0, &["Succeeded"]);
    assert_eq!(fs::read_to_string(&copy).unwrap(), written);
}

#[test]
fn a_new_run_that_fails_to_start_does_not_change_the_input_of_the_old_one() {
    let context = TestContext::new(&json!({ "turns": 3, "seconds": 1, "message": "first" }));
    let mut dev = context.dev(&["--input", "input.json"]);
    dev.wait_for("turn 1");
    dev.signal(Signal::INT);
    dev.end().expect_output(130, &[]);

    let attempts = context.path().join(".dalsegno/attempts");
    fs::remove_dir(&attempts).unwrap();
    fs::write(&attempts, "in the way").unwrap();
    fs::write(context.path().join("input.json"), r#"{ "turns": 9 }"#).unwrap();
    for flags in [&["--fresh", "--input", "input.json"][..], &["--fresh"]] {
        context.dev(flags).end().expect_output(1, &["cleaning up after an earlier"]);
    }
    fs::remove_file(&attempts).unwrap();
    context.dev(&[]).end().expect_output(0, &["the run continues at turn", "Succeeded", "first"]);
}

#[test]
fn a_worker_of_a_killed_program_is_killed_by_the_next_one() {
    let context = TestContext::new(&json!({ "turns": 4, "seconds": 0.5 }));
    let mut dev = context.dev(&["--input", "input.json"]);
    dev.wait_for("turn 1");
    dev.kill();
    let next = context
        .run_to_end(&[])
        .expect_output(0, &["was still running and was killed", "attempt 2 resumes at turn"]);
    dev.wait_until_closed();
    assert_eq!(*next.turns().last().unwrap(), 4);
    assert_eq!(context.rows()[0].finish.as_ref().unwrap().output.as_deref(), Some("[1, 2, 3, 4]"));
}

#[test]
fn a_process_that_left_the_group_of_an_orphaned_worker_is_reported_once_and_blocks_nothing() {
    let context = TestContext::new(&json!({}));
    let file = context.path().join("daemon");
    let script = json!({ "turns": 4, "seconds": 0.5, "daemon": file });
    fs::write(context.path().join("input.json"), script.to_string()).unwrap();
    let mut dev = context.dev(&["--input", "input.json"]);
    dev.wait_for("turn 1");
    dev.kill();
    let pid: i32 = fs::read_to_string(&file).unwrap().parse().unwrap();
    let messages = [
        "was still running and was killed",
        "is still running, and is not killed",
        "attempt 2 resumes at turn",
    ];
    let next = context.run_to_end(&[]).expect_output(0, &messages);
    dev.wait_until_closed();
    let again = context.run_to_end(&[]).expect_output(0, &["Succeeded"]);

    // The daemon was running all the time; only the test kills it.
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    assert!(
        !cfg!(target_os = "linux") || next.stderr.contains(&format!(": process {pid}\n")),
        "{}",
        next.stderr
    );
    assert!(!again.stderr.contains("still"), "{}", again.stderr);
}

#[test]
fn a_call_with_an_unknown_outcome_is_settled_by_the_printed_command() {
    let context = TestContext::new(&json!({ "turns": 2, "askAt": 2 }));
    let held = context.run_to_end(&[]).expect_output(1, &["held: EffectUnknown", "dalsegno settle"]);
    assert_eq!(held.turns(), [1]);
    let url = held.stderr.split_whitespace().find(|it| it.starts_with("sqlite://")).unwrap();
    let outcome = ["--outcome", "completed", "--reason", "it is in the books"];
    context.command(&[&["settle", "--database-url", url, "dev/agent", "pay"][..], &outcome].concat());
    assert_eq!(context.run_to_end(&[]).expect_output(0, &["Succeeded"]).turns(), [2]);
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

#[test]
fn only_the_owner_can_read_the_files_even_in_an_open_folder() {
    let context = TestContext::new(&json!({}));
    let folder = context.path().join(".dalsegno");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    context.run_to_end(&[]).expect_output(0, &["Succeeded"]);
    let files = fs::read_dir(folder).unwrap().map(|it| it.unwrap());
    let open: Vec<_> = files
        .filter(|it| it.metadata().is_ok_and(|it| it.len() > 0 && it.permissions().mode() & 0o077 != 0))
        .collect();
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn a_program_that_cannot_be_started_is_a_crash_with_the_reason() {
    let context = TestContext::new(&json!({}));
    let program = context.path().join("agent");
    fs::write(&program, "#!/no/such/interpreter").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let crash = context
        .dev_on(&[], &["./agent"])
        .end()
        .expect_output(1, &["charged (3 of 20), 3 of 3", "held: RecoveryLoop"]);
    assert!(
        crash.stderr.contains("exit code 127 before it attached: ./agent cannot be started"),
        "{}",
        crash.stderr
    );
}

#[test]
fn a_missing_program_is_rejected_before_anything_is_created() {
    let context = TestContext::new(&json!({}));
    let rejected = std::process::Command::new(env!("CARGO_BIN_EXE_dalsegno"))
        .current_dir(context.path())
        .args(["dev", "--", "no-such-agent"])
        .output()
        .unwrap();
    assert_eq!(rejected.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&rejected.stderr).contains("no-such-agent"));
    assert!(!context.path().join(".dalsegno").exists());
}

#[test]
fn each_message_is_one_write() {
    let context = TestContext::new(&json!({ "turns": 2 }));
    let writes = context.stderr_writes(&["--input", "input.json"]);
    assert!(writes.len() > 3, "{writes:?}");
    for line in writes {
        assert!(line.starts_with("dalsegno: ") && line.ends_with('\n'), "{line:?}");
    }
}
