//! `dalsegno dev` with real processes and a real store. That no process is left behind is seen in every test: the
//! agent's helper holds the output open, and the output must end.

#![allow(clippy::unwrap_used, reason = "a case that cannot go on has failed")]

mod ledger;
mod world;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::Duration;

use dalsegno_store::{Cause, Lifecycle, Verdict};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use ledger::Ledger;
use world::{Laptop, built, here};

#[test]
fn a_run_goes_to_its_end_and_a_finished_one_only_begins_anew_when_told() {
    let laptop = Laptop::new(&json!({ "turns": 3, "word": "käse" }));
    let ended = laptop.run(&[]).told(0, &["attempt 1 begins at turn 1", "Succeeded", "käse"]);
    assert_eq!(ended.lines, ["dev/agent 1 attached", "turn 1", "turn 2", "turn 3"]);

    // The line that it told works as it stands.
    let line = ended.told.lines().find_map(|it| it.strip_prefix("dalsegno: dalsegno ")).unwrap();
    let shown = laptop.ask(&line.split(' ').collect::<Vec<_>>());
    assert!(shown.contains("Succeeded") && shown.contains("[1, 2, 3]"), "{shown}");
    assert!(shown.contains(" on laptop: ended with the run\n"), "{shown}");

    let again = laptop.run(&[]).told(0, &["Succeeded", "--fresh"]);
    assert!(again.lines.is_empty(), "{again:?}");

    let fresh = laptop.run(&["--fresh"]).told(0, &["attempt 1 begins at turn 1"]);
    assert_eq!(fresh.turns(), [1, 2, 3]);
    let rows: Vec<_> = laptop.rows().iter().map(|it| it.lifecycle).collect();
    assert_eq!(rows, [Lifecycle::Finished, Lifecycle::Abandoned]);
}

#[test]
fn a_run_is_carried_out_of_its_store_and_proved_by_the_file_alone() {
    let laptop = Laptop::new(&json!({ "turns": 3 }));
    laptop.run(&[]).told(0, &["Succeeded"]);
    let url = laptop.url();
    let proved = laptop.ask(&["verify", "--database-url", &url, "dev/agent"]);
    assert!(proved.contains(": 0 problems\nits state can be rebuilt up to turn 3 (result)"), "{proved}");

    let shown = laptop.ask(&["show", "--database-url", &url, "dev/agent", "--turn", "3", "--since", "1"]);
    assert!(shown.contains(r#"from turn 1 to turn 3: {"added":{},"updated":{"#), "{shown}");

    laptop.ask(&["export", "--database-url", &url, "dev/agent", "--output", "run.jsonl"]);
    let proved = laptop.ask(&["verify", "run.jsonl"]);
    assert!(proved.contains("run dev/agent: 3 boundaries, ") && proved.contains(": 0 problems"), "{proved}");
    let key = proved.lines().find_map(|it| it.strip_prefix("public key ")?.split(' ').next()).unwrap();
    let replayed = laptop.ask(&["verify", "run.jsonl", "--public-key", key, "--turn", "2"]);
    assert!(replayed.contains("state after turn 2") && replayed.contains("[1, 2]"), "{replayed}");

    let bundle = fs::read_to_string(laptop.path().join("run.jsonl")).unwrap();
    fs::write(laptop.path().join("bent.jsonl"), bundle.replacen("[1, 2]", "[1, 3]", 1)).unwrap();
    let bent = laptop.refused(&["verify", "bent.jsonl"]);
    assert!(bent.contains("turn 2 (result): it has another payload than was committed"), "{bent}");
    let twice = laptop.refused(&["export", "--database-url", &url, "dev/agent", "--output", "run.jsonl"]);
    assert!(twice.contains("creating run.jsonl"), "{twice}");
    assert!(laptop.refused(&["verify", "no.jsonl"]).contains("there is no file no.jsonl"));
}

#[test]
fn a_verb_whose_output_nobody_reads_on_ends_without_a_word() {
    let laptop = Laptop::new(&json!({ "turns": 3 }));
    laptop.run(&[]).told(0, &["Succeeded"]);
    let url = laptop.url();
    for verb in ["show", "verify", "export"] {
        assert_eq!(
            laptop.ask_unread(&[verb, "--database-url", &url, "dev/agent"]),
            (Some(141), String::new())
        );
    }
    assert_eq!(laptop.ask_unread(&["crds"]), (Some(141), String::new()));
}

#[test]
fn a_worker_that_is_killed_again_and_again_loses_and_repeats_nothing() {
    let laptop = Laptop::new(&json!({ "turns": 10, "seconds": 0.5 }));
    let ended =
        laptop.run(&["--kill-every", "2500ms"]).told(0, &["a disruption, not charged", "resumes at turn"]);
    assert_eq!(*ended.turns().last().unwrap(), 10);
    let run = laptop.rows().remove(0);
    assert_eq!(run.finish.unwrap().output.unwrap(), "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]");
    assert!(run.counters.disruptions >= 1, "{:?}", run.counters);
    assert_eq!(run.counters.recovery_attempts, 0);
    let first = run.past.last().unwrap().end.clone().unwrap();
    assert_eq!((first.cause.as_str(), first.exit_code), ("Evicted", Some(137)));
}

#[test]
fn the_example_agent_in_python_of_the_readme_runs_unchanged_and_writes_each_note_once() {
    let command = example("python3 deploy/examples/python-agent/agent.py");
    let (python, agent) = command.split_once(' ').unwrap();
    let agent = here("..").join(agent).canonicalize().unwrap();
    runs_unchanged(&[python, agent.to_str().unwrap()], r#"{"notes": 6}"#);
}

#[test]
fn the_example_agent_in_rust_of_the_readme_runs_unchanged_and_writes_each_note_once() {
    let agent = built(&example("agent"));
    runs_unchanged(&[agent.to_str().unwrap()], r#"{"notes":6}"#);
}

/// The command that the README runs on a laptop, as it stands there.
fn example(command: &str) -> String {
    let readme = fs::read_to_string(here("../README.md")).unwrap();
    let mut lines = readme.lines().filter_map(|line| line.strip_prefix("dalsegno dev ")?.split_once(" -- "));
    let (flags, command) = lines.find(|(_, it)| *it == command).unwrap();
    assert!(flags.contains("--input") && flags.contains("--kill-every"), "{flags}");
    command.to_owned()
}

/// It is killed, and goes on; and what it writes stands in the ledger once.
fn runs_unchanged(command: &[&str], output: &str) {
    let ledger = Ledger::new();
    let input =
        json!({ "goal": "Write a field guide.", "turns": 6, "turnSeconds": 0.5, "ledger": ledger.url });
    let laptop = Laptop::new(&input);
    let flags = ["--input", "input.json", "--kill-every", "2500ms"];
    let ended = laptop.dev_on(&flags, command).end();
    ended.told(0, &["a disruption, not charged", "resumes at turn", "GoalReached: 6 notes are written"]);
    assert_eq!(ledger.turns(), [1, 2, 3, 4, 5, 6]);
    let run = laptop.rows().remove(0);
    assert_eq!(run.finish.unwrap().output.unwrap(), output);
    assert!(run.counters.disruptions >= 1 && run.counters.recovery_attempts == 0, "{:?}", run.counters);
}

#[test]
fn crashes_that_gain_nothing_are_held_and_the_same_command_grants_a_fresh_budget() {
    let folder = tempfile::tempdir().unwrap();
    let mended = folder.path().join("mended");
    let laptop = Laptop::new(&json!({ "turns": 3, "crashAt": 2, "mended": mended }));
    let held = laptop.run(&[]).told(
        1,
        &[
            "attempt 1 ended after turn 1: exit code 7: charged (1 of 20), 0 of 3 without progress; attempt 2 in",
            "attempt 2 resumes at turn 2",
            "attempt 4 ended after turn 1: exit code 7: charged (4 of 20), 3 of 3 without progress",
            "held: RecoveryLoop: ",
            "way out: mend the agent",
        ],
    );
    assert_eq!(held.turns(), [1]);

    fs::write(mended, "").unwrap();
    let ended = laptop.run(&[]).told(0, &["the run goes on at turn 2", "attempt 5 resumes at turn 2"]);
    assert_eq!(ended.turns(), [2, 3]);
}

#[test]
fn a_run_whose_store_takes_no_writes_waits_says_so_once_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let mended = folder.path().join("mended");
    let laptop = Laptop::new(&json!({ "turns": 4, "seconds": 1, "crashAt": 3, "mended": mended }));
    let mut dev = laptop.dev(&["--input", "input.json"]);
    dev.wait_for("turn 1");
    laptop.fill_disk();
    dev.wait_until_told("waiting: the store failed while ending the attempt: ");
    // It is looked at once a second.
    thread::sleep(Duration::from_millis(2_500));
    fs::write(mended, "").unwrap();
    laptop.make_room();
    let ended = dev
        .end()
        .told(0, &["refused a row", "exit code 7: charged (1 of 20)", "attempt 2 resumes at turn 3"]);
    assert_eq!(ended.turns(), [1, 2, 3, 4]);
    assert_eq!(ended.told.matches("waiting: ").count(), 1, "{}", ended.told);
    assert_eq!(laptop.rows()[0].counters.recovery_attempts, 1);
}

#[test]
fn a_run_whose_worker_has_no_room_to_begin_waits_says_so_once_and_goes_on() {
    let laptop = Laptop::new(&json!({ "turns": 6, "seconds": 1 }));
    let (attempts, away) = (laptop.path().join(".dalsegno/attempts"), laptop.path().join("away"));
    let mut dev = laptop.dev(&["--input", "input.json", "--kill-every", "4s"]);
    dev.wait_for("turn 1");
    fs::rename(&attempts, &away).unwrap();
    fs::write(&attempts, "no folder").unwrap();
    dev.wait_until_told("waiting: this machine failed while beginning a process: ");
    thread::sleep(Duration::from_millis(2_500));
    fs::remove_file(&attempts).unwrap();
    fs::rename(&away, &attempts).unwrap();
    let ended = dev.end().told(0, &["the run is over after turn 6"]);
    assert_eq!(ended.turns(), [1, 2, 3, 4, 5, 6]);
    assert_eq!(ended.told.matches("waiting: ").count(), 1, "{}", ended.told);
    assert_eq!(laptop.rows()[0].counters.recovery_attempts, 0);
}

#[test]
fn a_run_that_was_interrupted_goes_on_at_the_next_turn() {
    let laptop = Laptop::new(&json!({ "turns": 6, "seconds": 1 }));
    let mut dev = laptop.dev(&["--input", "input.json"]);
    dev.wait_for("turn 2");
    dev.signal(Signal::INT);
    let first = dev.end().told(130, &["stopped; the same command goes on at turn "]);
    let (turn, row) = (first.turns().len() as i32, laptop.rows().remove(0));
    assert_eq!(row.head.unwrap().turn, turn);
    assert_eq!(row.past[0].end.as_ref().unwrap().cause, Cause::Deleted);

    let second = laptop.run(&[]).told(0, &[&format!("attempt 2 resumes at turn {}", turn + 1)]);
    assert_eq!([first.turns(), second.turns()].concat(), [1, 2, 3, 4, 5, 6]);
    assert_eq!(laptop.rows()[0].counters.recovery_attempts, 0);
}

#[test]
fn the_end_of_a_terminal_ends_it_unless_it_was_started_to_outlive_that() {
    // Whoever started the tests may have had the signal ignored, as nohup does. The first has more turns than it is left.
    let told: &[_] = &["env", "--default-signal=HUP"];
    let deaf: &[_] = &["sh", "-c", "trap '' HUP; exec \"$@\"", "sh"];
    for (start, turns, code) in [(told, 100, 129), (deaf, 4, 0)] {
        let laptop = Laptop::new(&json!({ "turns": turns, "seconds": 0.5 }));
        let mut dev = laptop.dev_under(start, &["--input", "input.json"]);
        dev.wait_for("turn 1");
        dev.signal(Signal::HUP);
        let ended = dev.end();
        assert_eq!((ended.code, ended.turns() == [1, 2, 3, 4]), (Some(code), code == 0), "{ended:?}");
    }
}

#[test]
fn a_program_that_was_changed_goes_on_with_a_warning() {
    let laptop = Laptop::new(&json!({ "turns": 4, "seconds": 1 }));
    let mut dev = laptop.dev(&["--input", "input.json"]);
    dev.wait_for("turn 1");
    dev.signal(Signal::TERM);
    dev.end().told(143, &["stopped"]);
    let agent = laptop.path().join("agent.py");
    let changed = fs::read_to_string(&agent).unwrap() + "# changed\n";
    fs::write(agent, changed).unwrap();

    let ended = laptop.run(&[]).told(0, &["warning: the checkpoint of turn ", "is Allow"]);
    assert!(ended.lines.contains(&"warning VERSION_ALLOWED".to_owned()), "{ended:?}");
    let attempt = laptop.rows().remove(0).attempt;
    assert_eq!(attempt.identity.unwrap().verdict, Verdict::Allowed);
    assert!(laptop.ask(&["dev", "--help"]).contains("`versionPolicy.onMismatch` is `Allow` here"));
}

#[test]
fn a_second_one_in_the_same_folder_is_refused_and_harms_nothing() {
    let laptop = Laptop::new(&json!({ "turns": 4, "seconds": 2 }));
    let mut dev = laptop.dev(&["--input", "input.json"]);
    dev.wait_for("turn 1");
    let refused = laptop.run(&["--name", "other"]).told(1, &["another process holds", "`dalsegno dev`"]);
    assert!(refused.lines.is_empty(), "{refused:?}");
    assert_eq!(dev.end().told(0, &[]).turns(), [1, 2, 3, 4]);
}

#[test]
fn an_input_never_changes_and_is_kept_for_a_run_that_goes_on() {
    let laptop = Laptop::new(&json!({ "turns": 3, "seconds": 1, "word": "first" }));
    let mut dev = laptop.dev(&["--input", "input.json"]);
    dev.wait_for("turn 1");
    dev.signal(Signal::INT);
    dev.end().told(130, &[]);
    fs::write(laptop.path().join("input.json"), r#"{ "turns": 9 }"#).unwrap();
    laptop.run(&[]).told(1, &["was begun with another input", "--fresh"]);
    laptop.dev(&[]).end().told(0, &["Succeeded", "first"]);
}

#[test]
fn a_worker_reads_its_input_as_it_was_written_however_its_values_are_spelled_later() {
    let laptop = Laptop::new(&json!({}));
    let (given, copy) = (laptop.path().join("input.json"), laptop.path().join("copy"));
    let written = format!(
        r#"{{ "turns": 4, "seconds": 0.5, "big": 12345678901234567890123, "a": 1.10, "copy": {copy:?} }}"#
    );
    fs::write(&given, &written).unwrap();
    let mut dev = laptop.dev(&["--input", "input.json"]);
    dev.wait_for("turn 1");
    dev.signal(Signal::INT);
    dev.end().told(130, &[]);
    assert_eq!(fs::read_to_string(&copy).unwrap(), written);

    fs::remove_file(&copy).unwrap();
    fs::write(&given, written.replace("123,", "124,")).unwrap();
    laptop.run(&[]).told(1, &["was begun with another input"]);
    fs::write(&given, written.replace("1.10", "1.1")).unwrap();
    laptop.run(&[]).told(0, &["Succeeded"]);
    assert_eq!(fs::read_to_string(&copy).unwrap(), written);
}

#[test]
fn a_new_run_that_does_not_begin_leaves_the_input_of_the_old_one_as_it_is() {
    let laptop = Laptop::new(&json!({ "turns": 3, "seconds": 1, "word": "first" }));
    let mut dev = laptop.dev(&["--input", "input.json"]);
    dev.wait_for("turn 1");
    dev.signal(Signal::INT);
    dev.end().told(130, &[]);

    let attempts = laptop.path().join(".dalsegno/attempts");
    fs::remove_dir(&attempts).unwrap();
    fs::write(&attempts, "in the way").unwrap();
    fs::write(laptop.path().join("input.json"), r#"{ "turns": 9 }"#).unwrap();
    for flags in [&["--fresh", "--input", "input.json"][..], &["--fresh"]] {
        laptop.dev(flags).end().told(1, &["clearing what an earlier"]);
    }
    fs::remove_file(&attempts).unwrap();
    laptop.dev(&[]).end().told(0, &["the run goes on at turn", "Succeeded", "first"]);
}

#[test]
fn a_worker_that_outlived_a_killed_dev_is_ended_by_the_next_one() {
    let laptop = Laptop::new(&json!({ "turns": 4, "seconds": 0.5 }));
    let mut dev = laptop.dev(&["--input", "input.json"]);
    dev.wait_for("turn 1");
    dev.die();
    let next = laptop.run(&[]).told(0, &["was still there; it is killed", "attempt 2 resumes at turn"]);
    dev.wait_until_closed();
    assert_eq!(*next.turns().last().unwrap(), 4);
    assert_eq!(laptop.rows()[0].finish.as_ref().unwrap().output.as_deref(), Some("[1, 2, 3, 4]"));
}

#[test]
fn a_process_that_left_the_group_of_an_orphaned_worker_is_warned_of_once_and_stands_in_nobodys_way() {
    let laptop = Laptop::new(&json!({}));
    let file = laptop.path().join("daemon");
    let script = json!({ "turns": 4, "seconds": 0.5, "daemon": file });
    fs::write(laptop.path().join("input.json"), script.to_string()).unwrap();
    let mut dev = laptop.dev(&["--input", "input.json"]);
    dev.wait_for("turn 1");
    dev.die();
    let number: i32 = fs::read_to_string(&file).unwrap().parse().unwrap();
    let words =
        ["was still there; it is killed", "still runs, and is left alone", "attempt 2 resumes at turn"];
    let next = laptop.run(&[]).told(0, &words);
    dev.wait_until_closed();
    let again = laptop.run(&[]).told(0, &["Succeeded"]);

    // The daemon is nobody's but ours to end, and it was there all the time.
    kill_process(Pid::from_raw(number).unwrap(), Signal::KILL).unwrap();
    assert!(
        !cfg!(target_os = "linux") || next.told.contains(&format!(": process {number}\n")),
        "{}",
        next.told
    );
    assert!(!again.told.contains("still"), "{}", again.told);
}

#[test]
fn a_call_that_nobody_knows_the_outcome_of_is_settled_by_the_line_that_is_told() {
    let laptop = Laptop::new(&json!({ "turns": 2, "askAt": 2 }));
    let held = laptop.run(&[]).told(1, &["held: EffectUnknown", "dalsegno settle"]);
    assert_eq!(held.turns(), [1]);
    let url = held.told.split_whitespace().find(|it| it.starts_with("sqlite://")).unwrap();
    let word = ["--outcome", "completed", "--reason", "it is in the books"];
    laptop.ask(&[&["settle", "--database-url", url, "dev/agent", "pay"][..], &word].concat());
    assert_eq!(laptop.run(&[]).told(0, &["Succeeded"]).turns(), [2]);
}

#[test]
fn a_worker_that_says_no_further_attempt_helps_is_held_at_once() {
    let laptop = Laptop::new(&json!({ "turns": 3, "fatalAt": 2 }));
    let held = laptop.run(&[]).told(1, &["held: WorkerFatal: ", "the key is revoked", "way out: "]);
    assert_eq!(held.turns(), [1]);
    assert!(!held.told.contains("attempt 2"), "{}", held.told);
    assert_eq!(laptop.rows()[0].past.len(), 1);
}

#[test]
fn what_is_kept_is_its_owners_alone_even_in_a_folder_that_is_not() {
    let laptop = Laptop::new(&json!({}));
    let folder = laptop.path().join(".dalsegno");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    laptop.run(&[]).told(0, &["Succeeded"]);
    let files = fs::read_dir(folder).unwrap().map(|it| it.unwrap());
    let open: Vec<_> = files
        .filter(|it| it.metadata().is_ok_and(|it| it.len() > 0 && it.permissions().mode() & 0o077 != 0))
        .collect();
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn a_program_that_cannot_be_started_is_a_crash_that_says_so() {
    let laptop = Laptop::new(&json!({}));
    let program = laptop.path().join("agent");
    fs::write(&program, "#!/no/such/interpreter").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let told =
        laptop.dev_on(&[], &["./agent"]).end().told(1, &["charged (3 of 20), 3 of 3", "held: RecoveryLoop"]);
    assert!(
        told.told.contains("exit code 127 before it attached: ./agent cannot be started"),
        "{}",
        told.told
    );
}

#[test]
fn a_program_that_is_not_there_is_refused_before_anything_is_begun() {
    let laptop = Laptop::new(&json!({}));
    let refused = std::process::Command::new(env!("CARGO_BIN_EXE_dalsegno"))
        .current_dir(laptop.path())
        .args(["dev", "--", "no-such-agent"])
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("no-such-agent"));
    assert!(!laptop.path().join(".dalsegno").exists());
}

#[test]
fn each_line_that_is_told_is_one_write() {
    let laptop = Laptop::new(&json!({ "turns": 2 }));
    let writes = laptop.writes_on_standard_error(&["--input", "input.json"]);
    assert!(writes.len() > 3, "{writes:?}");
    for line in writes {
        assert!(line.starts_with("dalsegno: ") && line.ends_with('\n'), "{line:?}");
    }
}
