//! The input of a run, and the other files in the folder.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use rustix::process::Signal;
use serde_json::json;

use crate::test_context::TestContext;

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
