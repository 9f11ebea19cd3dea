//! `dalsegno export`: the file that it writes.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use crate::test_context::{RUN, TestContext, create_run};

#[tokio::test]
async fn only_the_owner_can_read_a_bundle() {
    let context = TestContext::new();
    create_run(&*context.store().await, false).await;
    let bundle = context.path("run.jsonl");
    assert!(context.run(&["export", RUN, "--output", &bundle], true).0);
    assert_eq!(fs::metadata(&bundle).unwrap().permissions().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn a_failed_export_leaves_no_file() {
    let context = TestContext::new();
    create_run(&*context.store().await, false).await;
    let bundle = context.path("run.jsonl");
    let export = ["export", RUN, "--output", &bundle];
    // It fails after the file was created: the first encrypted payload needs the keys.
    let (success, text) = context.run(&export, false);
    assert!(!success && text.contains("exporting the run") && !text.contains("creating"), "{text}");
    assert!(!fs::exists(&bundle).unwrap(), "{text}");
    let (success, text) = context.run(&export, true);
    assert!(success, "{text}");
    // An existing file is not overwritten.
    let (success, text) = context.run(&export, true);
    assert!(!success && text.contains("creating") && fs::exists(&bundle).unwrap(), "{text}");
}

#[test]
fn a_flag_for_bundles_is_rejected_for_a_run_in_the_store() {
    let context = TestContext::new();
    let key = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    for flag in [["--turn", "1"], ["--public-key", key]] {
        let (success, text) = context.run(&[&["verify", RUN][..], &flag].concat(), false);
        assert!(!success && text.contains(flag[0]) && text.contains("dalsegno export"), "{text}");
    }
}

#[test]
fn an_invalid_log_filter_is_an_error_and_nothing_is_done() {
    let context = TestContext::new();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_dalsegno"));
    command.args(["migrate", "--database-url", &context.url]).env_clear();
    let output = command.env("DALSEGNO_LOG", "info,dalsegno=loud").output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && text.contains("DALSEGNO_LOG: \"loud\" is not a level"), "{text}");
    assert!(!fs::exists(context.path("runs.db")).unwrap());
    assert!(command.env("DALSEGNO_LOG", "info,dalsegno=debug").status().unwrap().success());
}
