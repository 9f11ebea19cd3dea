//! Processes: signals, orphans, programs that cannot be started.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::test_context::TestContext;

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
