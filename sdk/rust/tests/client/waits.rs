//! Waits: an agent that waits for a person, a time, a message or a rate limit holds no pod meanwhile.

use std::time::{Duration, UNIX_EPOCH};

use dalsegno_protocol::{Code, Policy};
use dalsegno_sdk::{Commit, Error, OnTimeout, ParkMode, Run, ToolCall, WaitFor, WaitOutcome};
use serde_json::{Value, json};

use crate::gateway::{
    Answer, Gateway, attached, call, child_run, committed, exit_code, head, merged, problem,
};

const AT: &str = "2026-11-26T12:00:00Z";

fn wait(kind: &str, more: Value) -> Value {
    merged(json!({"id": "w1", "kind": kind, "state": "open", "openedAt": AT}), more)
}

fn open(kind: &str) -> Answer {
    Some((200, wait(kind, json!({}))))
}

fn answered(kind: &str, answer: Value) -> Answer {
    Some((200, wait(kind, json!({"state": "answered", "answer": merged(json!({"at": AT}), answer)}))))
}

fn park(result: &str) -> Answer {
    Some((200, json!({"result": result})))
}

fn approved() -> Answer {
    answered("approval", json!({"outcome": "approved", "by": "ann", "reason": "it is cheap"}))
}

fn purchase() -> WaitFor {
    let wait = WaitFor::approval("Buy it?", &json!({"cents": 500})).unwrap();
    wait.summary("It is cheap").deadline(Duration::from_millis(60_500), OnTimeout::Hold)
}

fn refused<T: std::fmt::Debug>(result: Result<T, Error>, code: Code) {
    assert!(matches!(&result, Err(Error::Refused { problem, .. }) if problem.code == code), "{result:?}");
}

#[test]
fn nothing_newer_than_the_oldest_gateway_is_sent() {
    // A gateway of the version before does not say its version.
    let (status, mut old) = attached(json!({})).unwrap();
    old.as_object_mut().unwrap().remove("contract");
    let old = Some((status, old));
    let attaches = [old.clone(), old, attached(json!({"contract": 1})), attached(json!({}))];
    let gateway = Gateway::new().on("attach", attaches).on("waits/w1", [approved()]);
    gateway.attach().wait_for("w1", &purchase()).unwrap();
    let script = gateway.script.lock().unwrap();
    let paths: Vec<_> = script.requests.iter().map(|(path, ..)| path.as_str()).collect();
    assert_eq!(paths, ["attach", "attach", "attach", "attach", "waits/w1"]);
    assert!(
        script.requests[..4].iter().all(|it| it.1 == script.requests[0].1 && it.2 == script.requests[0].2)
    );
}

#[test]
fn an_approval_that_is_open_parks_the_process_and_exits_with_0() {
    if let Some(run) = child_run() {
        run.wait_for("w1", &purchase()).unwrap();
        panic!("the process goes on");
    }
    let gateway = Gateway::new().on("waits/w1", [None, open("approval")]).on("park", [park("parked")]);
    let code = exit_code("waits::an_approval_that_is_open_parks_the_process_and_exits_with_0", &gateway);
    assert_eq!(code, Some(0));
    let asked = gateway.bodies("waits/w1");
    assert_eq!(asked[0], asked[1]);
    assert_eq!(
        gateway.body("waits/w1"),
        json!({"kind": "approval", "title": "Buy it?", "summary": "It is cheap", "proposal": {"cents": 500},
            "deadlineSeconds": 61, "onTimeout": "Hold"})
    );
    let parked = gateway.body("park");
    assert_eq!((&parked["on"], &parked["mode"]), (&json!(["w1"]), &Value::Null), "all is the default");
}

#[test]
fn an_approval_that_is_answered_returns_its_answer() {
    let gateway = Gateway::new().on("waits/w1", [approved()]);
    let answer = gateway.attach().wait_for("w1", &purchase()).unwrap();
    assert_eq!((answer.outcome, answer.by.as_deref()), (WaitOutcome::Approved, Some("ann")));
    assert!(answer.outcome.is_approval());
}

#[test]
fn an_answer_that_comes_while_the_process_parks_is_read_and_returned() {
    let gateway = Gateway::new()
        .on("waits/w1", [open("approval")])
        .on("park", [park("ready")])
        .on("waits/w1?seconds=0", [approved()]);
    assert_eq!(gateway.attach().wait_for("w1", &purchase()).unwrap().reason.unwrap(), "it is cheap");
}

#[test]
fn a_process_that_holds_its_pod_waits_for_the_answer_before_it_parks() {
    let gateway = Gateway::new()
        .on("waits/w1", [open("approval")])
        .on("waits/w1?seconds=20", [open("approval"), approved()]);
    gateway.attach().wait_for("w1", &purchase().hold_pod(Duration::from_secs(60))).unwrap();
    assert_eq!(gateway.bodies("waits/w1?seconds=20").len(), 2);
}

#[test]
fn a_process_that_is_asked_to_leave_while_it_holds_its_pod_parks_at_once() {
    let gateway = Gateway::new()
        .on("attach", [attached(json!({"suspend": true}))])
        .on("waits/w1", [open("approval")])
        .on("park", [park("ready")])
        .on("waits/w1?seconds=0", [approved()]);
    let run = gateway.attach();
    run.wait_for("w1", &purchase().hold_pod(Duration::from_secs(60))).unwrap();
    assert!(run.suspending(), "an answer that came first leaves the suspend to be parked");
}

#[test]
fn a_wait_that_was_opened_with_another_proposal_is_refused() {
    let gateway = Gateway::new().on("waits/w1", [problem(400, "INVALID")]);
    refused(gateway.attach().wait("w1", &purchase()), Code::Invalid);
}

#[test]
fn the_time_that_was_given_first_stays() {
    let gateway = Gateway::new()
        .on("waits/w1", [problem(400, "INVALID")])
        .on("waits/w1?seconds=0", [answered("until", json!({"outcome": "elapsed"}))]);
    let noon = UNIX_EPOCH + Duration::from_secs(1_795_694_400);
    let answer = gateway.attach().wait_for("w1", &WaitFor::until(noon)).unwrap();
    assert_eq!(answer.outcome, WaitOutcome::Elapsed);
    assert_eq!(
        gateway.body("waits/w1"),
        json!({"kind": "until", "time": "2026-11-26T12:00:00.000Z", "onTimeout": "Answer"})
    );
}

#[test]
fn a_wait_of_another_kind_is_not_taken_for_a_time() {
    for first in [approved(), problem(404, "NO_SUCH_WAIT")] {
        let gateway =
            Gateway::new().on("waits/w1", [problem(400, "INVALID")]).on("waits/w1?seconds=0", [first]);
        let wait = WaitFor::rate_limit("anthropic").reset_time(UNIX_EPOCH);
        refused(gateway.attach().wait("w1", &wait), Code::Invalid);
    }
}

#[test]
fn a_process_may_park_on_any_of_several_waits() {
    let gateway = Gateway::new().on("park", [park("ready"), park("parked")]);
    let run = gateway.attach();
    assert!(!run.park_on(&["w1", "w2"], ParkMode::Any).unwrap());
    assert!(run.park_on(&["w1", "w2"], ParkMode::All).unwrap());
    let parks: Vec<Value> =
        gateway.bodies("park").iter().map(|body| serde_json::from_str(body).unwrap()).collect();
    assert_eq!((&parks[0]["on"], &parks[0]["mode"]), (&json!(["w1", "w2"]), &json!("any")));
    assert_eq!(
        (&parks[1]["on"], &parks[1]["mode"]),
        (&json!(["w1", "w2"]), &Value::Null),
        "all is the default"
    );
}

fn asks_and_parks(mut run: Run) {
    let commit = Commit::new(1).state(&"asked").unwrap().park(&["w1", "w2"], ParkMode::Any);
    let _ = run.commit(commit);
    panic!("the process goes on");
}

#[test]
fn a_boundary_that_parks_exits_with_0() {
    if let Some(run) = child_run() {
        asks_and_parks(run);
    }
    let gateway = Gateway::new().on("turns/1", [committed(1, "result")]);
    assert_eq!(exit_code("waits::a_boundary_that_parks_exits_with_0", &gateway), Some(0));
    let parked = &gateway.body("turns/1")["outcome"]["park"];
    assert_eq!((&parked["on"], &parked["mode"]), (&json!(["w1", "w2"]), &json!("any")));
}

#[test]
fn a_boundary_that_parked_and_whose_answer_was_lost_exits_with_0() {
    if let Some(run) = child_run() {
        asks_and_parks(run);
    }
    let Some((status, fenced)) = problem(409, "FENCED") else { unreachable!() };
    let fenced = Some((status, merged(fenced, json!({"committed": true}))));
    let gateway = Gateway::new().on("turns/1", [None, fenced]);
    let code = exit_code("waits::a_boundary_that_parked_and_whose_answer_was_lost_exits_with_0", &gateway);
    assert_eq!((code, gateway.bodies("turns/1").len()), (Some(0), 2));
}

#[test]
fn a_boundary_that_did_not_park_is_fenced() {
    if let Some(run) = child_run() {
        asks_and_parks(run);
    }
    let gateway = Gateway::new().on("turns/1", [problem(409, "FENCED")]);
    assert_eq!(exit_code("waits::a_boundary_that_did_not_park_is_fenced", &gateway), Some(1));
}

#[test]
fn a_boundary_whose_park_is_refused_is_an_error_and_the_attempt_goes_on() {
    let gateway = Gateway::new().on("turns/1", [problem(409, "UNSETTLED_CALLS"), committed(1, "result")]);
    let mut run = gateway.attach();
    refused(run.commit(Commit::new(1).park(&["w1"], ParkMode::All)), Code::UnsettledCalls);
    run.commit(Commit::new(1)).unwrap();
    assert_eq!(run.turn(), 2);
}

#[test]
fn the_next_attempt_knows_its_waits_and_judges_again_before_it_goes_on() {
    let decided = wait("approval", json!({"state": "answered", "answer": {"outcome": "denied", "at": AT}}));
    let open = wait("message", json!({"id": "w2"}));
    let resumed = json!({"decision": "resume", "branch": 1, "head": head(1, "result"), "state": {}, "waits": [decided, open]});
    let gateway = Gateway::new().on("attach", [attached(resumed)]);
    let run = gateway.builder().on_resume(|run, answers| {
        assert_eq!((run.turn(), answers.len()), (2, 1));
        assert!(!answers["w1"].outcome.is_approval());
        Ok(())
    });
    let run = run.attach().unwrap();
    assert_eq!((run.branch(), run.waits().len(), &*run.waits()[1].id), (1, 2, "w2"));

    let forbidden = gateway.builder().on_resume(|_, _| Err(Error::NotAWorker("any"))).attach();
    assert!(matches!(forbidden, Err(Error::NotAWorker("any"))));
}

#[test]
fn a_fresh_run_has_nothing_to_judge_again() {
    let run = Gateway::new().builder().on_resume(|_, _| panic!("called")).attach().unwrap();
    assert!(run.waits().is_empty());
}

#[test]
fn a_call_names_the_approval_that_allows_it_and_may_be_made_later_if_it_is_refused() {
    for code in [Code::ApprovalNotGranted, Code::ApprovalSpent] {
        let done = call("done", "completed", json!({"result": 7}));
        let gateway = Gateway::new().on("calls/turn-1/claim", [problem(409, &code.to_string()), done]);
        let run = gateway.attach();
        let claim = |approval| {
            let tool = |_: &str, ()| -> Result<i32, _> { panic!("called") };
            run.call(ToolCall::new("turn-1", Policy::Ask).approval(approval), (), tool)
        };
        refused(claim("w1"), code);
        assert_eq!(claim("w2").unwrap(), 7);
        let claims = gateway.bodies("calls/turn-1/claim");
        assert!(claims[0].contains(r#""approval":"w1""#) && claims[1].contains(r#""approval":"w2""#));
    }
}
