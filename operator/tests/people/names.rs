//! Runs that had the same name one after the other, and each by its id.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Stdio;

use dalsegno_store::RunId;

use crate::place::{Place, RUN, run};

/// Two runs of one name: the first was abandoned for the second, which is over.
async fn two(place: &Place) -> [RunId; 2] {
    let store = place.store().await;
    [run(&*store, false).await, run(&*store, true).await]
}

#[tokio::test]
async fn show_of_a_name_tells_of_the_earlier_runs_by_whose_id_each_is_shown() {
    let place = Place::new();
    let [first, second] = two(&place).await;
    let (shown, text) = place.dalsegno(&["show", RUN], true);
    assert!(shown && text.contains(&format!("(id {second}, ")), "{text}");
    let line = text.lines().find(|line| line.contains(&first.to_string())).unwrap_or_default();
    assert!(line.starts_with("earlier ") && line.contains(", begun 20"), "{text}");
    assert!(line.ends_with("abandoned for a later run of this name"), "{text}");

    let (shown, text) = place.dalsegno(&["show", &first.to_string()], true);
    assert!(shown && text.contains(&format!("run         default/agent  (id {first}, ")), "{text}");
    assert!(!text.contains("earlier ") && !text.contains(&second.to_string()), "{text}");
}

#[tokio::test]
async fn a_verb_that_takes_the_last_run_of_a_name_says_so_and_takes_another_by_its_id() {
    let place = Place::new();
    let ids = two(&place).await;
    let said = format!("default/agent: of 2 runs of this name the last, with the id {}", ids[1]);
    let settle = ["settle", "RUN", "pay", "--outcome", "failed", "--reason", "seen"];
    for verb in [&["verify", "RUN"][..], &["export", "RUN"], &settle] {
        let of = |run: &str| {
            let verb: Vec<_> = verb.iter().map(|word| if *word == "RUN" { run } else { word }).collect();
            place.dalsegno(&verb, true).1
        };
        assert!(of(RUN).contains(&said), "{verb:?}: {}", of(RUN));
        for id in ids.map(|id| id.to_string()) {
            assert!(
                !of(&id).contains("of this name") && !of(&id).contains("never had"),
                "{verb:?}: {}",
                of(&id)
            );
        }
    }
    let bundle = place.dalsegno(&["export", &ids[0].to_string()], true).1;
    assert!(bundle.contains(&ids[0].to_string()) && !bundle.contains(&ids[1].to_string()), "{bundle}");
}

#[tokio::test]
async fn a_name_that_several_runs_have_had_shreds_none_and_an_id_shreds_that_one() {
    let place = Place::new();
    let [first, second] = two(&place).await;
    let shred = |run: &str| place.dalsegno(&["keys", "shred", run, "--reason", "asked for"], true);
    let (done, text) = shred(RUN);
    assert!(!done && text.contains("by its id which one"), "{text}");
    for (id, state) in [(first, "abandoned for a later run"), (second, "Succeeded at 20")] {
        let line = text.lines().find(|line| line.starts_with(&format!("{id}, begun 20")));
        assert!(line.is_some_and(|line| line.contains(state)), "{text}");
    }
    let (done, text) = shred(&first.to_string());
    assert!(done && text.contains(&format!("run default/agent (id {first}) is deleted")), "{text}");
    let shown = |id: RunId| place.dalsegno(&["show", &id.to_string()], true).1;
    assert!(shown(first).contains("\nshredded "), "{}", shown(first));
    assert!(!shown(second).contains("\nshredded "), "{}", shown(second));
}

#[tokio::test]
async fn who_follows_a_run_is_not_led_to_the_next_one_of_its_name() {
    let place = Place::new();
    let store = place.store().await;
    let first = run(&*store, false).await;
    let mut follow = place.command(&["show", RUN, "--follow"], true);
    let mut follower = follow.stdout(Stdio::piped()).spawn().unwrap();
    let (mut told, mut text) = (BufReader::new(follower.stdout.take().unwrap()), String::new());
    told.read_line(&mut text).unwrap();
    assert!(text.contains(&format!("(id {first}, ")), "{text}");
    run(&*store, true).await;
    told.read_to_string(&mut text).unwrap();
    assert!(follower.wait().unwrap().success());
    assert!(text.ends_with("abandoned for a later run of this name\n"), "{text}");
}

#[tokio::test]
async fn a_run_that_never_was_is_said_to_be_none() {
    let place = Place::new();
    place.store().await;
    let id = RunId::nil().to_string();
    for (run, said) in [(RUN, "never had a run default/agent"), (&*id, "never had a run with the id 0000")] {
        let (done, text) = place.dalsegno(&["show", run], true);
        assert!(!done && text.contains(said), "{text}");
    }
    let (done, text) = place.dalsegno(&["show", "agent"], true);
    assert!(!done && text.contains("NAMESPACE/NAME, or by its id"), "{text}");
}
