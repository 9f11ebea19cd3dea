//! Boundaries that hold several steps.

use dalsegno_sdk::{Boundary, Commit, Trigger, Usage, succeeded};
use serde_json::{Value, json};

use crate::gateway::{Gateway, attached, child_run, committed, exit_code, flags, problem};

fn bodies(gateway: &Gateway, path: &str) -> Vec<Value> {
    gateway.bodies(path).iter().map(|body| serde_json::from_str(body).unwrap()).collect()
}

#[test]
fn every_third_step_is_committed_with_the_state_of_the_last() {
    let gateway = Gateway::new()
        .on("turns/1", [committed(1, "result")])
        .on("turns/2", [committed(2, "result")])
        .on("finish", [flags(json!({"result": "ok"}))]);
    let mut run = gateway.attach();
    let mut steps = run.every(3);
    let mut answers = Vec::new();
    for step in 1..=5 {
        let usage = Usage { tokens_in: step, ..Usage::default() };
        let commit = Commit::new(steps.run().turn()).state(&step).unwrap().event(&step).unwrap().usage(usage);
        let commit = commit.trigger(&Trigger::own(&format!("step-{step}")).unwrap());
        answers.push((steps.step(commit).unwrap().is_some(), steps.kept()));
    }
    assert_eq!(answers, [(false, 1), (false, 2), (true, 0), (false, 1), (false, 2)]);
    steps.finish(succeeded()).unwrap();
    let first = &bodies(&gateway, "turns/1")[0];
    assert_eq!(
        (&first["state"], &first["events"], &first["trigger"]),
        (&json!(3), &json!([1, 2, 3]), &json!("step-3"))
    );
    assert_eq!(first["usage"]["tokensIn"], json!(6));
    let second = &bodies(&gateway, "turns/2")[0];
    assert_eq!(
        (&second["state"], &second["events"]),
        (&json!(5), &json!([4, 5])),
        "a finish commits what is kept"
    );
    assert_eq!(gateway.bodies("finish").len(), 1);
}

#[test]
fn changes_of_channels_are_put_together_in_their_order() {
    let gateway =
        Gateway::new().on("turns/1", [committed(1, "result")]).on("turns/2", [committed(2, "result")]);
    let mut run = gateway.attach();
    let mut steps = run.every(10);
    let list = |commit: Commit, item: i32| commit.append("log", &item).unwrap();
    steps.step(list(Commit::new(1), 1).set("n", &1).unwrap().set("gone", &1).unwrap()).unwrap();
    steps.step(list(Commit::new(1), 2).set("n", &2).unwrap().remove("gone")).unwrap();
    assert_eq!(steps.kept(), 2);
    // A channel that a kept step has touched cannot be cut: what is kept is committed first.
    assert!(steps.step(list(Commit::new(1), 3).truncate("log", 1)).unwrap().is_some());
    assert_eq!(steps.kept(), 1);
    steps.commit().unwrap();
    let log = |items: &[i32]| json!(items.iter().map(|item| json!({"json": item})).collect::<Vec<_>>());
    let first = &bodies(&gateway, "turns/1")[0]["channels"];
    assert_eq!(
        *first,
        json!({"remove": ["gone"], "set": {"n": {"json": 2}}, "append": {"log": log(&[1, 2])}})
    );
    let second = &bodies(&gateway, "turns/2")[0]["channels"];
    assert_eq!(*second, json!({"truncate": {"log": 1}, "append": {"log": log(&[3])}}));
}

#[test]
fn a_plan_is_committed_at_once_and_after_what_is_kept() {
    let gateway =
        Gateway::new().on("turns/1", [committed(1, "result")]).on("turns/2/plan", [committed(2, "plan")]);
    let mut run = gateway.attach();
    let mut steps = run.every(3);
    steps.step(Commit::new(1).state(&1).unwrap()).unwrap();
    let planned = steps.step(Commit::plan(1).state(&2).unwrap()).unwrap().unwrap();
    let head = planned.head.unwrap();
    assert_eq!((head.turn, head.boundary, steps.kept()), (2, Boundary::Plan, 0));
    assert_eq!(gateway.bodies("turns/1").len(), 1);
}

/// The test runs itself in another process, which parks.
#[test]
fn a_check_commits_what_is_kept_before_it_parks() {
    if let Some(mut run) = child_run() {
        let mut steps = run.every(10);
        steps.step(Commit::new(1).state(&"kept").unwrap()).unwrap();
        steps.check().unwrap();
        panic!("the process goes on");
    }
    let gateway = Gateway::new()
        .on("attach", [attached(json!({"suspend": true}))])
        .on(
            "turns/1",
            [flags(json!({"result": "ok", "suspend": true, "head": crate::gateway::head(1, "result")}))],
        )
        .on("park", [Some((200, json!({"result": "parked"})))]);
    let code = exit_code("steps::a_check_commits_what_is_kept_before_it_parks", &gateway);
    assert_eq!((code, gateway.bodies("park").len()), (Some(0), 1));
    assert_eq!(bodies(&gateway, "turns/1")[0]["state"], json!("kept"));
}

#[test]
fn a_commit_that_is_refused_keeps_the_steps() {
    let gateway = Gateway::new().on("turns/1", [problem(409, "UNSETTLED_CALLS"), committed(1, "result")]);
    let mut run = gateway.attach();
    let mut steps = run.every(3);
    steps.step(Commit::new(1).state(&"kept").unwrap()).unwrap();
    steps.commit().unwrap_err();
    assert_eq!(steps.kept(), 1);
    steps.commit().unwrap();
    let sent = bodies(&gateway, "turns/1");
    assert_eq!((steps.kept(), &sent[0]["state"], &sent[0]), (0, &json!("kept"), &sent[1]));
}
