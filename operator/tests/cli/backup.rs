//! `dalsegno backup`: a copy of the embedded store that is made while it is written to.

use std::os::unix::fs::PermissionsExt as _;

use dalsegno_model::Committed;

use crate::test_context::{RUN, TestContext, create_run, turn};

/// Turns that are committed around the copy.
const TURNS: i32 = 1_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_made_during_a_thousand_commits_restores_and_verifies() {
    let context = TestContext::new();
    let store = context.store().await;
    let run = create_run(&*store, false).await;
    let copy = context.path("copy.db");
    let mut backup = context.command(&["backup", "--to", &copy], true);
    let mut child = None;
    let mut turn_at_start = 0;
    for number in 2..=TURNS {
        if number == 100 {
            turn_at_start = number - 1;
            child = Some(backup.spawn().unwrap());
        }
        let commit = turn(run, number, r#"{"set":{"state":{"json":"a longer secret of this turn"}}}"#);
        assert!(matches!(store.commit(&commit).await.unwrap(), Committed::Ok(_)), "turn {number}");
    }
    assert!(child.unwrap().wait().unwrap().success());
    assert_eq!(std::fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o600);

    let restored = TestContext::at(format!("sqlite://{copy}"));
    for command in [&["audit", "verify"][..], &["verify", RUN]] {
        let (success, text) = restored.run(command, true);
        assert!(success && text.contains("0 problems"), "{command:?}: {text}");
    }
    let head = restored.migrated_store().await.get_run(run).await.unwrap().unwrap().head.unwrap();
    assert!((turn_at_start..=TURNS).contains(&head.turn), "{}", head.turn);
}

#[tokio::test]
async fn a_copy_never_overwrites_a_file_and_leaves_nothing_when_it_fails() {
    let context = TestContext::new();
    create_run(&*context.store().await, true).await;
    let existing = context.path("existing.db");
    std::fs::write(&existing, "precious").unwrap();
    let (success, text) = context.run(&["backup", "--to", &existing], true);
    assert!(!success && text.contains("never overwrites"), "{text}");
    assert_eq!(std::fs::read_to_string(&existing).unwrap(), "precious");

    let copy = context.path("copy.db");
    // The store is encrypted: without the keys nothing can be verified.
    let (success, text) = context.run(&["backup", "--to", &copy], false);
    assert!(!success && text.contains("--encryption-keys"), "{text}");
    context.execute("UPDATE boundaries SET tokens_in = 7").await;
    let (success, text) = context.run(&["backup", "--to", &copy], true);
    assert!(!success && text.contains("differs from what was written"), "{text}");
    for suffix in ["", ".incomplete", ".incomplete-wal", ".incomplete-shm"] {
        assert!(!std::path::Path::new(&format!("{copy}{suffix}")).exists(), "{suffix}");
    }
}

#[test]
fn a_copy_of_postgresql_is_refused_with_the_tools_that_make_one() {
    let context = TestContext::at("postgres://nobody@127.0.0.1:1/dalsegno".into());
    let (success, text) = context.run(&["backup", "--to", &context.path("copy.db")], false);
    assert!(!success && text.contains("pg_dump") && text.contains("point-in-time recovery"), "{text}");
}
