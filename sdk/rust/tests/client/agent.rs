//! Agents: turns that are committed as a whole, and what a replay of a turn gets back.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use dalsegno_sdk::{
    Agent, Boundary, Code, Divergence, Error, Policy, RecordChanges, Run, ToolCall, ToolError, Usage,
    succeeded,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::gateway::{Answer, Gateway, attached, committed, flags, head, problem};

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct State {
    pages: Vec<String>,
}

fn agent(gateway: &Gateway) -> Agent<State> {
    Agent::new(gateway.attach()).unwrap()
}

/// An answer to a claim.
pub fn claimed(id: &str, verdict: &str, more: Value) -> Answer {
    let state = if verdict == "done" { "completed" } else { "started" };
    let call = json!({"id": id, "turn": 1, "policy": "readOnly", "key": "k1", "state": state});
    Some((200, json!({"verdict": verdict, "call": crate::gateway::merged(call, more)})))
}

pub fn ok() -> Answer {
    Some((200, json!({})))
}

/// A call of an earlier attempt in the answer to an attach.
pub fn earlier(id: &str, policy: &str, state: &str) -> Value {
    json!({"id": id, "turn": 1, "policy": policy, "key": format!("r1:{id}"), "state": state, "arguments": 7})
}

#[test]
fn a_turn_is_committed_with_its_state_and_one_that_is_dropped_stores_nothing() {
    let gateway = Gateway::new()
        .on("attach", [attached(json!({
            "head": head(1, "result"), "state": {"state": {"value": {"json": {"pages": ["one"], "of a later version": 1}}}},
        }))])
        .on("turns/2", [committed(2, "result")])
        .on("finish", [flags(json!({"result": "ok"}))]);
    let mut agent = agent(&gateway);
    let mut turn = agent.turn().unwrap();
    turn.state.pages.push("lost".into());
    turn.event(&"lost").unwrap();
    drop(turn);
    assert_eq!(agent.state().pages, ["one"]);

    let mut turn = agent.turn().unwrap();
    assert_eq!((turn.number(), &turn.state.pages[..]), (2, &["one".to_owned()][..]));
    turn.state.pages.push("two".into());
    turn.event(&"written").unwrap();
    turn.spent(Usage { tokens_in: 2, ..Usage::default() });
    turn.spent(Usage { tokens_in: 3, ..Usage::default() });
    turn.records(RecordChanges::new().put("notes", "a", &1).unwrap());
    assert_eq!(turn.commit().unwrap().head.unwrap().turn, 2);
    assert_eq!((agent.state().pages.len(), agent.next_turn()), (2, 3));
    agent.finish(succeeded()).unwrap();

    let sent = gateway.body("turns/2");
    assert_eq!((&sent["state"], &sent["events"]), (&json!({"pages": ["one", "two"]}), &json!(["written"])));
    assert_eq!((&sent["usage"]["tokensIn"], sent["records"].as_array().unwrap().len()), (&json!(5), 1));
    assert_eq!(gateway.bodies("finish").len(), 1);
}

#[test]
fn a_turn_whose_commit_is_refused_takes_its_state_back() {
    let gateway = Gateway::new().on("turns/1", [problem(409, "UNSETTLED_CALLS")]);
    let mut agent = agent(&gateway);
    let mut turn = agent.turn().unwrap();
    turn.state.pages.push("lost".into());
    let refused = turn.commit().unwrap_err();
    assert!(matches!(refused, Error::Refused { problem, .. } if problem.code == Code::UnsettledCalls));
    assert_eq!((agent.state(), agent.next_turn()), (&State::default(), 1));
}

#[test]
fn a_state_of_another_type_is_an_error_of_the_attach() {
    let stored = json!({"head": head(1, "result"), "state": {"state": {"value": {"json": [1]}}}});
    let run = Gateway::new().on("attach", [attached(stored)]).attach();
    let error = Agent::<State>::new(run).unwrap_err();
    assert!(matches!(error, Error::Json { operation: "read a channel" | "read the state", .. }), "{error:?}");
}

#[test]
fn a_step_is_taken_once_and_a_replay_gets_its_stored_answer() {
    let gateway = Gateway::new()
        .on("calls/1.draft.0/claim", [claimed("1.draft.0", "go", json!({}))])
        .on("calls/1.draft.0/complete", [ok()])
        .on("calls/1.draft.1/claim", [claimed("1.draft.1", "done", json!({"result": "stored"}))]);
    let mut agent = agent(&gateway);
    let turn = agent.turn().unwrap();
    let draft = |text: &'static str| move || Ok(text.to_owned());
    assert_eq!(turn.step("draft", draft("first")).unwrap(), "first");
    let stored = turn.step("draft", || -> Result<String, ToolError> { panic!("asked twice") });
    assert_eq!(stored.unwrap(), "stored");
    assert_eq!(gateway.body("calls/1.draft.0/claim")["policy"], "readOnly");
    assert_eq!(gateway.body("calls/1.draft.0/complete")["result"], "first");
}

#[test]
fn a_step_that_failed_is_taken_again_under_the_same_id_in_this_turn_and_in_the_next_try() {
    let gateway = Gateway::new()
        .on("calls/1.draft.0/claim", [claimed("1.draft.0", "go", json!({}))])
        .on("calls/1.draft.0/complete", [ok()]);
    let mut agent = agent(&gateway);
    let parse = |text: &'static str| move || Ok(text.parse::<i32>()?);
    let turn = agent.turn().unwrap();
    for _ in 0..2 {
        let failed = turn.step("draft", parse("x")).unwrap_err();
        assert_eq!(failed.to_string(), "step draft failed");
    }
    drop(turn);
    assert_eq!(agent.turn().unwrap().step("draft", parse("3")).unwrap(), 3);
    let claims = gateway.bodies("calls/1.draft.0/claim");
    assert_eq!((claims.len(), &claims[0], &claims[1]), (3, &claims[1], &claims[2]));
}

#[test]
fn after_a_rewind_a_step_is_taken_anew() {
    let gateway = Gateway::new()
        .on("attach", [attached(json!({"branch": 2}))])
        .on("calls/1.draft.0.b2/claim", [claimed("1.draft.0.b2", "go", json!({}))])
        .on("calls/1.draft.0.b2/complete", [ok()]);
    assert_eq!(agent(&gateway).turn().unwrap().step("draft", || Ok(1)).unwrap(), 1);
}

#[test]
fn a_plan_is_committed_with_the_state_so_far_and_the_turn_goes_on_from_it() {
    let gateway =
        Gateway::new().on("turns/1/plan", [committed(1, "plan")]).on("turns/1", [committed(1, "result")]);
    let mut agent = agent(&gateway);
    let mut turn = agent.turn().unwrap();
    assert!(!turn.planned());
    turn.state.pages.push("planned".into());
    turn.event(&"plan").unwrap();
    turn.plan().unwrap();
    turn.state.pages.push("lost".into());
    drop(turn);
    let turn = agent.turn().unwrap();
    assert!(turn.planned());
    assert_eq!((turn.number(), &turn.state.pages[..]), (1, &["planned".to_owned()][..]));
    assert_eq!(turn.commit().unwrap().head.unwrap().boundary, Boundary::Result);
    assert_eq!(gateway.body("turns/1/plan")["events"], json!(["plan"]));
    assert_eq!(gateway.body("turns/1").get("events"), None);
}

#[test]
fn a_replay_takes_the_messages_that_the_turn_took_before() {
    let message = |position: i64| {
        json!({
            "position": position, "id": format!("m{position}"), "author": "ada", "at": "2026-11-26T11:00:00Z", "value": "hi",
        })
    };
    let gateway = Gateway::new()
        .on("inbox?after=0", [Some((200, json!({"messages": [message(1), message(2)]})))])
        .on("calls/1.messages.0/claim", [claimed("1.messages.0", "done", json!({"result": [1]}))])
        .on("turns/1", [committed(1, "result")]);
    let mut agent = agent(&gateway);
    let mut turn = agent.turn().unwrap();
    let taken = turn.take_messages().unwrap();
    assert_eq!(taken.iter().map(|message| message.position).collect::<Vec<_>>(), [1]);
    turn.take(&taken);
    turn.commit().unwrap();
    assert_eq!(gateway.body("turns/1")["inbox"], json!([1]), "each once");
}

#[test]
fn a_turn_that_does_not_repeat_a_call_of_an_earlier_attempt_is_not_committed() {
    let calls = json!([
        earlier("1.pay.00.0", "retrySameKey", "completed"),
        earlier("1.draft.0", "readOnly", "completed")
    ]);
    let gateway = Gateway::new()
        .on("attach", [attached(json!({"completedCalls": calls}))])
        .on("turns/1", [committed(1, "result")]);
    let mut agent = agent(&gateway);
    let diverged = agent.turn().unwrap().commit().unwrap_err();
    let Error::Diverged { id, why: Divergence::NotRepeated } = &diverged else { panic!("{diverged:?}") };
    assert_eq!(id, "1.pay.00.0");
    assert!(diverged.to_string().contains("Turn::accept"), "{diverged}");
    assert_eq!(gateway.bodies("turns/1").len(), 0);
    let turn = agent.turn().unwrap();
    turn.accept("1.pay.00.0");
    turn.commit().unwrap();
}

#[test]
fn an_id_with_other_arguments_is_another_call() {
    let other = |why: &str| {
        let detail = format!("call \"pay\" has {why}; give another effect another id");
        Some((400, json!({"type": "about:blank", "status": 400, "code": "INVALID", "detail": detail})))
    };
    let diverges = |run: &Run, arguments: i32| {
        let call = ToolCall::new("pay", Policy::RetrySameKey);
        let made = run.call(call, arguments, |_, cents: i32| Ok::<i32, ToolError>(cents));
        assert!(
            matches!(&made, Err(Error::Diverged { id, why: Divergence::OtherCall }) if id == "pay"),
            "{made:?}"
        );
    };
    // The gateway knows of the call.
    for why in ["other arguments", "another key", "another policy: Ask"] {
        diverges(&Gateway::new().on("calls/pay/claim", [other(why)]).attach(), 8);
    }
    // An earlier attempt made it in the open turn.
    let known = json!({"unsettledCalls": [earlier("pay", "retrySameKey", "started")]});
    let gateway =
        Gateway::new().on("attach", [attached(known)]).on("calls/pay/claim", [problem(500, "UNAVAILABLE")]);
    diverges(&gateway.attach(), 8);
    assert_eq!(gateway.bodies("calls/pay/claim").len(), 0);
    // This process made it, and its outcome is unknown.
    let gateway = Gateway::new().on("calls/pay/claim", [claimed("pay", "go", json!({}))]);
    let run = gateway.attach();
    let call = ToolCall::new("pay", Policy::RetrySameKey);
    run.call(call, 7, |_, _: i32| Ok("x".parse::<i32>()?)).unwrap_err();
    diverges(&run, 8);
    assert_eq!(gateway.bodies("calls/pay/claim").len(), 1);
}

#[test]
fn the_order_of_members_makes_no_other_call() {
    let gateway = Gateway::new()
        .on("calls/pay/claim", [claimed("pay", "go", json!({}))])
        .on("calls/pay/complete", [ok()]);
    let run = gateway.attach();
    let made = AtomicUsize::new(0);
    for _ in 0..8 {
        // Each map has an order of its own.
        let arguments: HashMap<_, _> = (0..32).map(|number| (number.to_string(), number)).collect();
        run.call(ToolCall::new("pay", Policy::RetrySameKey), arguments, |_, _| {
            made.fetch_add(1, Ordering::SeqCst);
            Ok("x".parse::<i32>()?)
        })
        .unwrap_err();
    }
    assert_eq!(made.into_inner(), 8);
}

#[test]
fn an_attach_adopts_calls_that_may_be_made_again() {
    let unsettled =
        json!([earlier("1.pay.00.0", "retrySameKey", "started"), earlier("1.ask.00.0", "ask", "started")]);
    let go = claimed("1.pay.00.0", "go", json!({"policy": "retrySameKey", "arguments": 7}));
    let gateway = Gateway::new()
        .on("attach", [attached(json!({"unsettledCalls": unsettled}))])
        .on("calls/1.pay.00.0/claim", [go])
        .on("calls/1.pay.00.0/complete", [ok()]);
    let agent = agent(&gateway);
    let claim = gateway.body("calls/1.pay.00.0/claim");
    assert_eq!((claim.get("key"), claim.get("arguments")), (None, None));
    assert_eq!(agent.uncertain_calls().iter().map(|call| &call.id[..]).collect::<Vec<_>>(), ["1.ask.00.0"]);
    let again = ToolCall::new("1.pay.00.0", Policy::RetrySameKey);
    assert_eq!(agent.run().call(again, 7, |_, cents: i32| Ok(cents)).unwrap(), 7);
    let claims = gateway.bodies("calls/1.pay.00.0/claim");
    assert_eq!((claims.len(), &claims[0]), (2, &claims[1]));
}
