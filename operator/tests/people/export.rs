//! `dalsegno export`: the file that it leaves.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use crate::place::{Place, RUN, run};

#[tokio::test]
async fn a_bundle_holds_keys_and_arguments_and_is_its_owners_alone() {
    let place = Place::new();
    run(&*place.store().await, false).await;
    let bundle = place.path("run.jsonl");
    assert!(place.dalsegno(&["export", RUN, "--output", &bundle], true).0);
    assert_eq!(fs::metadata(&bundle).unwrap().permissions().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn of_an_export_that_breaks_off_no_file_is_left_in_the_way_of_the_next_try() {
    let place = Place::new();
    run(&*place.store().await, false).await;
    let bundle = place.path("run.jsonl");
    let export = ["export", RUN, "--output", &bundle];
    // The bundle is begun before the first payload is opened, which takes the keys.
    let (done, told) = place.dalsegno(&export, false);
    assert!(!done && told.contains("exporting the run") && !told.contains("creating"), "{told}");
    assert!(!fs::exists(&bundle).unwrap(), "{told}");
    let (done, told) = place.dalsegno(&export, true);
    assert!(done, "{told}");
    // What somebody else has written there stays.
    let (done, told) = place.dalsegno(&export, true);
    assert!(!done && told.contains("creating") && fs::exists(&bundle).unwrap(), "{told}");
}

#[test]
fn a_flag_that_only_a_bundle_has_is_refused_of_a_run_in_the_store() {
    let place = Place::new();
    let key = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    for flag in [["--turn", "1"], ["--public-key", key]] {
        let (done, told) = place.dalsegno(&[&["verify", RUN][..], &flag].concat(), false);
        assert!(!done && told.contains(flag[0]) && told.contains("dalsegno export"), "{told}");
    }
}

#[test]
fn a_program_that_cannot_tell_what_to_log_says_so_and_does_not_begin() {
    let place = Place::new();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_dalsegno"));
    command.args(["migrate", "--database-url", &place.url]).env_clear();
    let output = command.env("DALSEGNO_LOG", "info,dalsegno=loud").output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && told.contains("DALSEGNO_LOG: \"loud\" is no level"), "{told}");
    assert!(!fs::exists(place.path("runs.db")).unwrap());
    assert!(command.env("DALSEGNO_LOG", "info,dalsegno=debug").status().unwrap().success());
}
