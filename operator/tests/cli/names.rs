//! Several runs of one name, one after the other.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Stdio;

use dalsegno_model::RunId;

use crate::test_context::{RUN, TestContext, create_run};

/// Creates two runs of one name. The first is abandoned for the second, which is over.
async fn create_two_runs(context: &TestContext) -> [RunId; 2] {
    let store = context.store().await;
    [create_run(&*store, false).await, create_run(&*store, true).await]
}

#[tokio::test]
async fn show_lists_the_earlier_runs_of_a_name_and_shows_each_by_its_id() {
    let context = TestContext::new();
    let [first, second] = create_two_runs(&context).await;
    let (success, text) = context.run(&["show", RUN], true);
    assert!(success && text.contains(&format!("(id {second}, ")), "{text}");
    let line = text.lines().find(|line| line.contains(&first.to_string())).unwrap_or_default();
    assert!(line.starts_with("earlier ") && line.contains(", created 20"), "{text}");
    assert!(line.ends_with("abandoned for a later run of this name"), "{text}");

    let (success, text) = context.run(&["show", &first.to_string()], true);
    assert!(success && text.contains(&format!("run         default/agent  (id {first}, ")), "{text}");
    assert!(!text.contains("earlier ") && !text.contains(&second.to_string()), "{text}");
}

#[tokio::test]
async fn a_command_says_that_it_took_the_last_run_of_a_name_and_takes_another_by_its_id() {
    let context = TestContext::new();
    let ids = create_two_runs(&context).await;
    let note = format!("default/agent: of 2 runs of this name the last, with the id {}", ids[1]);
    let settle = ["settle", "RUN", "pay", "--outcome", "failed", "--reason", "seen"];
    for command in [&["verify", "RUN"][..], &["export", "RUN"], &settle] {
        let of = |run: &str| {
            let command: Vec<_> =
                command.iter().map(|word| if *word == "RUN" { run } else { word }).collect();
            context.run(&command, true).1
        };
        assert!(of(RUN).contains(&note), "{command:?}: {}", of(RUN));
        for id in ids.map(|id| id.to_string()) {
            assert!(
                !of(&id).contains("of this name") && !of(&id).contains("never had"),
                "{command:?}: {}",
                of(&id)
            );
        }
    }
    let bundle = context.run(&["export", &ids[0].to_string()], true).1;
    assert!(bundle.contains(&ids[0].to_string()) && !bundle.contains(&ids[1].to_string()), "{bundle}");
}

#[tokio::test]
async fn shred_rejects_a_name_of_several_runs_and_takes_an_id() {
    let context = TestContext::new();
    let [first, second] = create_two_runs(&context).await;
    let shred = |run: &str| context.run(&["keys", "shred", run, "--reason", "asked for"], true);
    let (success, text) = shred(RUN);
    assert!(!success && text.contains("by its id which one"), "{text}");
    for (id, state) in [(first, "abandoned for a later run"), (second, "Succeeded at 20")] {
        let line = text.lines().find(|line| line.starts_with(&format!("{id}, created 20")));
        assert!(line.is_some_and(|line| line.contains(state)), "{text}");
    }
    let (success, text) = shred(&first.to_string());
    assert!(success && text.contains(&format!("run default/agent (id {first}) is deleted")), "{text}");
    let show = |id: RunId| context.run(&["show", &id.to_string()], true).1;
    assert!(show(first).contains("\nshredded "), "{}", show(first));
    assert!(!show(second).contains("\nshredded "), "{}", show(second));
}

#[tokio::test]
async fn show_follow_does_not_continue_with_the_next_run_of_the_name() {
    let context = TestContext::new();
    let store = context.store().await;
    let first = create_run(&*store, false).await;
    let mut follow = context.command(&["show", RUN, "--follow"], true);
    let mut follower = follow.stdout(Stdio::piped()).spawn().unwrap();
    let (mut output, mut text) = (BufReader::new(follower.stdout.take().unwrap()), String::new());
    output.read_line(&mut text).unwrap();
    assert!(text.contains(&format!("(id {first}, ")), "{text}");
    create_run(&*store, true).await;
    output.read_to_string(&mut text).unwrap();
    assert!(follower.wait().unwrap().success());
    assert!(text.ends_with("abandoned for a later run of this name\n"), "{text}");
}

#[tokio::test]
async fn an_unknown_run_is_an_error() {
    let context = TestContext::new();
    context.store().await;
    let id = RunId::nil().to_string();
    for (run, expected) in
        [(RUN, "never had a run default/agent"), (&*id, "never had a run with the id 0000")]
    {
        let (success, text) = context.run(&["show", run], true);
        assert!(!success && text.contains(expected), "{text}");
    }
    let (success, text) = context.run(&["show", "agent"], true);
    assert!(!success && text.contains("NAMESPACE/NAME, or by its id"), "{text}");
}
