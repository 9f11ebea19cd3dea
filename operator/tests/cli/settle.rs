//! `dalsegno settle`: which results and reasons it accepts. There is no store: both are checked before it is opened.

use crate::test_context::{RUN, TestContext};

/// The output of the command with this result.
fn settle(result: &str) -> String {
    let context = TestContext::new();
    let file = context.path("result.json");
    std::fs::write(&file, result).unwrap();
    let command = ["settle", RUN, "pay", "--outcome", "completed", "--reason", "seen", "--result", &file];
    context.run(&command, false).1
}

#[test]
fn a_result_that_no_worker_could_send_is_rejected_before_the_store_is_opened() {
    let nested = |levels| "[".repeat(levels) + &"]".repeat(levels);
    let long = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 2));
    for (result, expected) in [
        (long((16 << 20) + 1), "the result has 16777217 bytes, the limit is 16777216"),
        (nested(128), "the result is nested deeper than 127 levels"),
        (nested(100_000), "the result is nested deeper than 127 levels"),
        ("{".to_owned(), "the result is not JSON"),
        (long(16 << 20), "opening the store"),
        (nested(127), "opening the store"),
    ] {
        let text = settle(&result);
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

#[test]
fn a_reason_has_1_to_512_characters() {
    let context = TestContext::new();
    let output = |args: &[&str], reason: &str| context.run(&[args, &["--reason", reason]].concat(), false).1;
    let prune = ["audit", "prune", "--before", "2026-05-01", "--anchors", "-"];
    for command in [
        &["settle", RUN, "pay", "--outcome", "failed"][..],
        &["keys", "shred", RUN],
        &["adopt-namespace", "a", "b"],
        &prune,
    ] {
        for reason in ["", " \n", &"é".repeat(513)] {
            let text = output(command, reason);
            assert!(text.contains("say why, in 1 to 512 characters"), "{command:?}: {text}");
        }
        let text = output(command, &"é".repeat(512));
        assert!(text.contains("opening the store"), "{command:?}: {text}");
    }
}
