//! `dalsegno settle`: what it takes as a tool's answer, and as a reason. No store is there: it is not asked before.

use crate::place::{Place, RUN};

/// What is told of this answer.
fn settle(answer: &str) -> String {
    let place = Place::new();
    let file = place.path("answer.json");
    std::fs::write(&file, answer).unwrap();
    let verb = ["settle", RUN, "pay", "--outcome", "completed", "--reason", "seen", "--result", &file];
    place.dalsegno(&verb, false).1
}

#[test]
fn an_answer_that_no_worker_could_give_is_refused_before_the_store_is_opened() {
    let nested = |levels| "[".repeat(levels) + &"]".repeat(levels);
    let long = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 2));
    for (answer, why) in [
        (long((16 << 20) + 1), "the result has 16777217 bytes, the limit is 16777216"),
        (nested(128), "the result is nested deeper than 127 levels"),
        (nested(100_000), "the result is nested deeper than 127 levels"),
        ("{".to_owned(), "the result is not JSON"),
        (long(16 << 20), "opening the store"),
        (nested(127), "opening the store"),
    ] {
        let told = settle(&answer);
        assert!(told.contains(why), "{why}: {told}");
    }
}

#[test]
fn a_reason_is_not_empty_and_not_longer_than_an_annotations() {
    let place = Place::new();
    let told = |verb: &[&str], reason: &str| place.dalsegno(&[verb, &["--reason", reason]].concat(), false).1;
    let prune = ["audit", "prune", "--before", "2026-05-01", "--anchors", "-"];
    for verb in [
        &["settle", RUN, "pay", "--outcome", "failed"][..],
        &["keys", "shred", RUN],
        &["adopt-namespace", "a", "b"],
        &prune,
    ] {
        for reason in ["", " \n", &"é".repeat(513)] {
            let told = told(verb, reason);
            assert!(told.contains("say why, in 1 to 512 characters"), "{verb:?}: {told}");
        }
        let told = told(verb, &"é".repeat(512));
        assert!(told.contains("opening the store"), "{verb:?}: {told}");
    }
}
