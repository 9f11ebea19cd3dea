//! What a worker wrote, on the terminal of a person who looks at it.

use dalsegno_protocol::RawValue;
use dalsegno_store::{Commit, Committed, NewFinish};

use crate::place::{Place, RUN, finish, run, turn};

/// Wipes a terminal; then the same by the characters of 8 bits, which JSON does not escape.
const WIPE: &str = "\u{1b}[2J";
const WIPE_8: &str = "\u{9b}2J";

#[tokio::test]
async fn no_verb_lets_a_workers_words_steer_a_terminal() {
    let place = Place::new();
    let store = place.store().await;
    let id = run(&*store, false).await;
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

    let bundle = place.path("run.jsonl");
    assert!(place.dalsegno(&["export", RUN, "--output", &bundle], true).0);
    let forged =
        std::fs::read_to_string(&bundle).unwrap().replace(r#""name":"agent""#, r#""name":"\u001b[2J""#);
    let other = place.path("forged.jsonl");
    std::fs::write(&other, forged).unwrap();
    for (verb, says) in [
        (&["show", RUN, "--turn", "2", "--since", "1", "--calls"][..], "gone [2J\nand a second line"),
        (&["show", RUN, "--turn", "2"], "event  2J"),
        (&["show", RUN, "--turn", "2"], "output  2J"),
        (&["show", RUN, "--turn", "2"], "state  2J"),
        (&["verify", &bundle, "--turn", "2"], "state  2J"),
        (&["verify", &other], "run default/ [2J: "),
        (&["show", &format!("default/{WIPE}")], "never had a run default/ [2J"),
    ] {
        let (_, told) = place.dalsegno(verb, true);
        assert!(told.contains(says), "{verb:?}: {told:?}");
        let steers = |it: char| it.is_control() && it != '\n';
        assert!(!told.contains(steers), "{verb:?}: {told:?}");
    }
    let (done, told) = place.dalsegno(&["export", RUN], true);
    assert!(done && told.contains(&format!("event {WIPE_8}")), "a bundle is as it was signed: {told:?}");
}
