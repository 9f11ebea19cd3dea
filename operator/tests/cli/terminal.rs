//! A worker cannot send control sequences to the terminal of a user.

use dalsegno_model::{Commit, Committed, NewFinish};
use dalsegno_protocol::RawValue;

use crate::test_context::{RUN, TestContext, create_run, finish, turn};

/// Clears a terminal, by 7-bit and by 8-bit control characters. JSON does not escape the latter.
const WIPE: &str = "\u{1b}[2J";
const WIPE_8: &str = "\u{9b}2J";

#[tokio::test]
async fn no_command_prints_control_characters_of_a_worker() {
    let context = TestContext::new();
    let store = context.store().await;
    let id = create_run(&*store, false).await;
    let json = RawValue::from_string(format!("\"event {WIPE_8}\"")).unwrap();
    let last = NewFinish {
        message: format!("gone{WIPE}\nand a second line"),
        output: Some(format!("\"output {WIPE_8}\"")),
        ..finish()
    };
    let commit = Commit {
        events: vec![json],
        finish: Some(last),
        ..turn(id, 2, &format!(r#"{{"set":{{"state":{{"json":"state {WIPE_8}"}}}}}}"#))
    };
    assert!(matches!(store.commit(&commit).await.unwrap(), Committed::Ok(_)));
    drop(store);

    let bundle = context.path("run.jsonl");
    assert!(context.run(&["export", RUN, "--output", &bundle], true).0);
    let forged =
        std::fs::read_to_string(&bundle).unwrap().replace(r#""name":"agent""#, r#""name":"\u001b[2J""#);
    let other = context.path("forged.jsonl");
    std::fs::write(&other, forged).unwrap();
    for (command, says) in [
        (&["show", RUN, "--turn", "2", "--since", "1", "--calls"][..], "gone [2J\nand a second line"),
        (&["show", RUN, "--turn", "2"], "event  2J"),
        (&["show", RUN, "--turn", "2"], "output  2J"),
        (&["show", RUN, "--turn", "2"], "state  2J"),
        (&["verify", &bundle, "--turn", "2"], "state  2J"),
        (&["verify", &other], "run default/ [2J: "),
        (&["show", &format!("default/{WIPE}")], "never had a run default/ [2J"),
    ] {
        let (_, text) = context.run(command, true);
        assert!(text.contains(says), "{command:?}: {text:?}");
        let is_control = |it: char| it.is_control() && it != '\n';
        assert!(!text.contains(is_control), "{command:?}: {text:?}");
    }
    let (success, text) = context.run(&["export", RUN], true);
    assert!(
        success && text.contains(&format!("event {WIPE_8}")),
        "a bundle is printed as it was signed: {text:?}"
    );
}
