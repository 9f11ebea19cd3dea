//! The verbs of a person on a store whose runs are encrypted.

use std::path::Path;

use dalsegno_store::{Commit, Committed, open_beside};

use crate::place::{Place, RUN, finish, run, turn};

#[tokio::test]
async fn an_encrypted_run_is_shown_with_its_keys_and_without_them_a_person_learns_what_to_do() {
    let place = Place::new();
    run(&*place.store().await, false).await;
    let (shown, text) = place.dalsegno(&["show", RUN, "--turn", "1"], true);
    assert!(shown && text.contains("a secret") && text.contains("an event"), "{text}");
    for verb in [&["show", RUN][..], &["verify", RUN], &["audit", "verify"], &["export", RUN]] {
        let (done, text) = place.dalsegno(verb, false);
        assert!(!done && text.contains("--encryption-keys"), "{verb:?}: {text}");
    }
    let (done, text) = place.dalsegno(&["show", RUN, "--encryption-keys", "/nowhere"], false);
    assert!(!done && text.contains("/nowhere"), "{text}");
    let bytes = std::fs::read(place.path("runs.db")).unwrap();
    assert!(!bytes.windows(8).any(|bytes| bytes == b"a secret"));
}

#[tokio::test]
async fn a_store_of_which_a_key_is_missing_is_not_said_to_be_damaged_and_one_that_is_damaged_too_is() {
    let place = Place::new();
    run(&*place.store().await, false).await;
    std::fs::remove_file(place.path("keys/k1")).unwrap();
    place.key("k2", "QW5vdGhlciBrZXkgb2YgdGhlc2UgdGVzdHMsIGhlcmU=");
    let (done, text) = place.dalsegno(&["audit", "verify"], true);
    assert!(!done && text.contains("1 problems") && text.contains("\"k1\""), "{text}");
    let told =
        "keys are missing, or the rows of data keys were changed: of 1 runs only the chains are proved";
    assert!(text.contains(told), "{text}");
    place.edit("UPDATE boundaries SET position = 7").await;
    let (done, text) = place.dalsegno(&["audit", "verify"], true);
    assert!(!done && text.contains("the store is not as it was written"), "{text}");
}

#[tokio::test]
async fn keys_are_rotated_and_the_old_one_can_go() {
    let place = Place::new();
    run(&*place.store().await, false).await;
    place.key("k2", "QW5vdGhlciBrZXkgb2YgdGhlc2UgdGVzdHMsIGhlcmU=");
    let (done, text) = place.dalsegno(&["keys", "rewrap"], true);
    assert!(!done && text.contains("\"current\""), "{text}");
    place.key("current", "k2");
    let (done, text) = place.dalsegno(&["keys", "rewrap"], true);
    assert!(done && text.contains("another one did before: 1"), "{text}");
    std::fs::remove_file(Path::new(&place.path("keys")).join("k1")).unwrap();
    let (done, text) = place.dalsegno(&["verify", RUN], true);
    assert!(done && text.contains("0 problems"), "{text}");
    let (done, text) = place.dalsegno(&["keys", "rewrap"], false);
    assert!(!done && text.contains("--encryption-keys"), "{text}");
}

#[tokio::test]
async fn a_data_key_that_is_damaged_is_told_and_the_others_are_rotated() {
    let place = Place::new();
    let store = place.store().await;
    run(&*store, true).await;
    run(&*store, true).await;
    place.edit("UPDATE data_keys SET wrapped = x'00' WHERE run = (SELECT min(run) FROM data_keys)").await;
    place.key("k2", "QW5vdGhlciBrZXkgb2YgdGhlc2UgdGVzdHMsIGhlcmU=");
    place.key("current", "k2");
    let (done, text) = place.dalsegno(&["keys", "rewrap"], true);
    assert!(!done && text.contains("another one did before: 1"), "{text}");
    assert!(text.contains("run default/agent (id ") && text.contains("as they were: 1"), "{text}");
}

#[tokio::test]
async fn a_run_is_shredded_once_it_is_over_and_everybody_says_so() {
    let place = Place::new();
    let store = place.store().await;
    let id = run(&*store, false).await;
    let shred = ["keys", "shred", RUN, "--reason", "its user asked for it"];
    let (done, text) = place.dalsegno(&shred, true);
    assert!(!done && text.contains("the run lives") && text.contains("onPriorRun: Adopt"), "{text}");
    let last = Commit { finish: Some(finish()), ..turn(id, 2, r#"{"set":{"state":{"json":"an end"}}}"#) };
    assert!(matches!(store.commit(&last).await.unwrap(), Committed::Ok(_)));
    drop(store);
    let bundle = place.path("before.jsonl");
    assert!(place.dalsegno(&["export", RUN, "--output", &bundle], true).0);
    let (shown, text) = place.dalsegno(&["show", RUN], true);
    assert!(shown && !text.contains("shredded"), "{text}");
    let (done, text) = place.dalsegno(&shred, true);
    assert!(done && text.contains("a backup of the database"), "{text}");
    let (done, text) = place.dalsegno(&["keys", "shred", RUN, "--reason", "to be sure"], true);
    assert!(done && text.contains("was gone before") && !text.contains("deleted"), "{text}");

    let (shown, text) = place.dalsegno(&["show", RUN], true);
    assert!(shown && !text.contains("an event"), "{text}");
    assert!(!text.contains("never sealed"), "{text}");
    let line = text.lines().find(|line| line.starts_with("shredded ")).unwrap_or_default();
    assert!(line.ends_with("by ada: its user asked for it"), "{text}");
    let (shown, text) = place.dalsegno(&["show", RUN, "--turn", "1"], true);
    assert!(!shown && text.contains("shredded"), "{text}");
    for verb in [&["verify", RUN][..], &["audit", "verify"]] {
        let (done, text) = place.dalsegno(verb, true);
        assert!(done && text.contains("shredded"), "{verb:?}: {text}");
    }
    let after = place.path("after.jsonl");
    assert!(place.dalsegno(&["export", RUN, "--output", &after], true).0);
    let (done, text) = place.dalsegno(&["verify", &after], false);
    assert!(done && text.contains("was shredded before it was exported"), "{text}");
    let (done, text) = place.dalsegno(&["verify", &bundle, "--turn", "1"], false);
    assert!(done && text.contains("a secret"), "a bundle from before holds the contents: {text}");
}

#[tokio::test]
async fn what_was_never_sealed_is_not_said_to_be_shredded() {
    let place = Place::new();
    place.store().await;
    let plain = open_beside(&place.url, None).await.unwrap();
    run(&*plain, true).await;
    let shred = ["keys", "shred", RUN, "--reason", "its user asked for it"];
    let (done, text) = place.dalsegno(&shred, true);
    assert!(!done && text.contains("was never sealed") && text.contains("30 days after its end"), "{text}");
    let (shown, text) = place.dalsegno(&["show", RUN, "--turn", "1"], true);
    assert!(shown && text.contains("a secret") && !text.contains("shredded"), "{text}");

    // And of one on which encryption was switched on, what is left of it.
    let id = run(&*plain, false).await;
    let sealed = place.store_as_it_is().await;
    let second = Commit { finish: Some(finish()), ..turn(id, 2, r#"{"set":{"state":{"json":"sealed"}}}"#) };
    assert!(matches!(sealed.commit(&second).await.unwrap(), Committed::Ok(_)));
    let shred = ["keys", "shred", &id.to_string(), "--reason", "its user asked for it"];
    let (done, text) = place.dalsegno(&shred, true);
    assert!(done && text.contains("never sealed: 1;"), "{text}");
    let (shown, text) = place.dalsegno(&["show", RUN], true);
    assert!(shown && text.contains("never sealed: 1;"), "{text}");
}
