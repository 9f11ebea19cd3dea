//! Commands on a store with encryption.

use std::path::Path;

use dalsegno_model::{Commit, Committed};
use dalsegno_store::open_beside;

use crate::test_context::{RUN, TestContext, create_run, finish, turn};

#[tokio::test]
async fn an_encrypted_run_is_shown_with_the_keys_and_without_them_the_error_names_the_flag() {
    let context = TestContext::new();
    create_run(&*context.store().await, false).await;
    let (success, text) = context.run(&["show", RUN, "--turn", "1"], true);
    assert!(success && text.contains("a secret") && text.contains("an event"), "{text}");
    for command in [&["show", RUN][..], &["verify", RUN], &["audit", "verify"], &["export", RUN]] {
        let (success, text) = context.run(command, false);
        assert!(!success && text.contains("--encryption-keys"), "{command:?}: {text}");
    }
    let (success, text) = context.run(&["show", RUN, "--encryption-keys", "/nowhere"], false);
    assert!(!success && text.contains("/nowhere"), "{text}");
    let bytes = std::fs::read(context.path("runs.db")).unwrap();
    assert!(!bytes.windows(8).any(|bytes| bytes == b"a secret"));
}

#[tokio::test]
async fn a_missing_key_is_not_reported_as_damage_and_real_damage_is() {
    let context = TestContext::new();
    create_run(&*context.store().await, false).await;
    std::fs::remove_file(context.path("keys/k1")).unwrap();
    context.key("k2", "QW5vdGhlciBrZXkgb2YgdGhlc2UgdGVzdHMsIGhlcmU=");
    let (success, text) = context.run(&["audit", "verify"], true);
    assert!(!success && text.contains("1 problem") && text.contains("\"k1\""), "{text}");
    let expected =
        "keys are missing, or the rows of data keys were changed: of 1 run only the chains could be verified";
    assert!(text.contains(expected), "{text}");
    context.execute("UPDATE boundaries SET position = 7").await;
    let (success, text) = context.run(&["audit", "verify"], true);
    assert!(!success && text.contains("the store differs from what was written"), "{text}");
}

#[tokio::test]
async fn keys_are_rotated_and_the_old_key_can_be_removed() {
    let context = TestContext::new();
    create_run(&*context.store().await, false).await;
    context.key("k2", "QW5vdGhlciBrZXkgb2YgdGhlc2UgdGVzdHMsIGhlcmU=");
    let (success, text) = context.run(&["keys", "rewrap"], true);
    assert!(!success && text.contains("\"current\""), "{text}");
    context.key("current", "k2");
    let (success, text) = context.run(&["keys", "rewrap"], true);
    assert!(success && text.contains("and now by the current one: 1"), "{text}");
    std::fs::remove_file(Path::new(&context.path("keys")).join("k1")).unwrap();
    let (success, text) = context.run(&["verify", RUN], true);
    assert!(success && text.contains("0 problems"), "{text}");
    let (success, text) = context.run(&["keys", "rewrap"], false);
    assert!(!success && text.contains("--encryption-keys"), "{text}");
}

#[tokio::test]
async fn a_damaged_data_key_is_reported_and_the_others_are_rotated() {
    let context = TestContext::new();
    let store = context.store().await;
    create_run(&*store, true).await;
    create_run(&*store, true).await;
    context
        .execute("UPDATE data_keys SET wrapped = x'00' WHERE run = (SELECT min(run) FROM data_keys)")
        .await;
    context.key("k2", "QW5vdGhlciBrZXkgb2YgdGhlc2UgdGVzdHMsIGhlcmU=");
    context.key("current", "k2");
    let (success, text) = context.run(&["keys", "rewrap"], true);
    assert!(!success && text.contains("and now by the current one: 1"), "{text}");
    assert!(text.contains("run default/agent (id ") && text.contains("left unchanged: 1"), "{text}");
}

#[tokio::test]
async fn a_run_can_be_shredded_once_it_is_over_and_every_command_shows_it() {
    let context = TestContext::new();
    let store = context.store().await;
    let id = create_run(&*store, false).await;
    let shred = ["keys", "shred", RUN, "--reason", "its user asked for it"];
    let (success, text) = context.run(&shred, true);
    assert!(!success && text.contains("the run is live") && text.contains("onPriorRun: Adopt"), "{text}");
    let last = Commit { finish: Some(finish()), ..turn(id, 2, r#"{"set":{"state":{"json":"an end"}}}"#) };
    assert!(matches!(store.commit(&last).await.unwrap(), Committed::Ok(_)));
    drop(store);
    let bundle = context.path("before.jsonl");
    assert!(context.run(&["export", RUN, "--output", &bundle], true).0);
    let (success, text) = context.run(&["show", RUN], true);
    assert!(success && !text.contains("shredded"), "{text}");
    let (success, text) = context.run(&shred, true);
    assert!(success && text.contains("a backup of the database"), "{text}");
    let (success, text) = context.run(&["keys", "shred", RUN, "--reason", "to be sure"], true);
    assert!(success && text.contains("was gone before") && !text.contains("deleted"), "{text}");

    let (success, text) = context.run(&["show", RUN], true);
    assert!(success && !text.contains("an event"), "{text}");
    assert!(!text.contains("never sealed"), "{text}");
    let line = text.lines().find(|line| line.starts_with("shredded ")).unwrap_or_default();
    assert!(line.ends_with("by ada: its user asked for it"), "{text}");
    let (success, text) = context.run(&["show", RUN, "--turn", "1"], true);
    assert!(!success && text.contains("shredded"), "{text}");
    for command in [&["verify", RUN][..], &["audit", "verify"]] {
        let (success, text) = context.run(command, true);
        assert!(success && text.contains("shredded"), "{command:?}: {text}");
    }
    let after = context.path("after.jsonl");
    assert!(context.run(&["export", RUN, "--output", &after], true).0);
    let (success, text) = context.run(&["verify", &after], false);
    assert!(success && text.contains("was shredded before it was exported"), "{text}");
    let (success, text) = context.run(&["verify", &bundle, "--turn", "1"], false);
    assert!(success && text.contains("a secret"), "an earlier bundle has the payloads: {text}");
}

#[tokio::test]
async fn a_run_that_was_never_sealed_is_not_shredded() {
    let context = TestContext::new();
    context.store().await;
    let plain = open_beside(&context.url, None).await.unwrap();
    create_run(&*plain, true).await;
    let shred = ["keys", "shred", RUN, "--reason", "its user asked for it"];
    let (success, text) = context.run(&shred, true);
    assert!(
        !success && text.contains("was never sealed") && text.contains("30 days after the end of the run"),
        "{text}"
    );
    let (success, text) = context.run(&["show", RUN, "--turn", "1"], true);
    assert!(success && text.contains("a secret") && !text.contains("shredded"), "{text}");

    // After encryption was switched on during a run, the payloads from before are counted.
    let id = create_run(&*plain, false).await;
    let sealed = context.migrated_store().await;
    let second = Commit { finish: Some(finish()), ..turn(id, 2, r#"{"set":{"state":{"json":"sealed"}}}"#) };
    assert!(matches!(sealed.commit(&second).await.unwrap(), Committed::Ok(_)));
    let shred = ["keys", "shred", &id.to_string(), "--reason", "its user asked for it"];
    let (success, text) = context.run(&shred, true);
    assert!(success && text.contains("never sealed: 1;"), "{text}");
    let (success, text) = context.run(&["show", RUN], true);
    assert!(success && text.contains("never sealed: 1;"), "{text}");
}
