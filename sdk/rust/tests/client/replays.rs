//! What the next try of a turn has to repeat, in the same process and behind a plan.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use dalsegno_sdk::{
    Agent, CallOutcome, Divergence, Error, Policy, Probed, RecordChanges, Tool, ToolCall, ToolError, Usage,
};
use serde_json::{Value, json};

use crate::agent::{claimed, earlier, ok};
use crate::gateway::{Answer, Gateway, attached, committed, head, problem};

/// A tool that honours its key, and writes down what it is called with.
#[derive(Default)]
struct Pay(Mutex<Vec<String>>);

impl Tool for Pay {
    const NAME: &'static str = "pay";
    const POLICY: Policy = Policy::RetrySameKey;
    type Arguments = i32;
    type Output = i32;

    fn run(&self, key: &str, cents: &i32) -> Result<i32, ToolError> {
        let made = {
            let mut log = self.0.lock().unwrap();
            log.push(format!("{cents} under {key}"));
            log.len()
        };
        assert!(*cents >= 0 || made > 1, "the tool panics at first");
        Ok(*cents)
    }
}

const PAY_5: &str = "1.pay.ef2d127de37b.0";
const PAY_6: &str = "1.pay.e7f6c011776e.0";
const PAY_7: &str = "1.pay.7902699be42c.0";
const PAY_MINUS_1: &str = "1.pay.1bad6b8cf971.0";

/// An answer to a claim of a call of the tool.
fn paid(id: &str, verdict: &str, cents: i32) -> Answer {
    let key = format!("r1:{id}");
    claimed(id, verdict, json!({"policy": "retrySameKey", "key": key, "arguments": cents, "result": cents}))
}

/// A gateway that lets these calls of the tool run, and answers from the store if they are claimed again.
fn bank() -> Gateway {
    let mut gateway = Gateway::new().on("turns/1", [committed(1, "result")]);
    for (id, cents) in [(PAY_5, 5), (PAY_6, 6), (PAY_7, 7)] {
        gateway = gateway
            .on(&format!("calls/{id}/claim"), [paid(id, "go", cents), paid(id, "done", cents)])
            .on(&format!("calls/{id}/complete"), [ok()]);
    }
    gateway
}

fn agent(gateway: &Gateway) -> Agent<Vec<i32>> {
    Agent::new(gateway.attach()).unwrap()
}

/// Checks that the turn is not committed, because this call would be forgotten.
#[track_caller]
fn forgets<T>(committed: dalsegno_sdk::Result<T>, call: &str) {
    match committed {
        Err(Error::Diverged { id, why: Divergence::NotRepeated }) => assert_eq!(id, call),
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("{call} is forgotten"),
    }
}

#[test]
fn a_call_of_a_turn_that_was_dropped_has_to_be_repeated_by_the_next_try() {
    let gateway = bank();
    let (mut agent, tool) = (agent(&gateway), Pay::default());
    let turn = agent.turn().unwrap();
    turn.call(&tool, 5).unwrap();
    drop(turn);

    let turn = agent.turn().unwrap();
    turn.call(&tool, 6).unwrap();
    forgets(turn.commit(), PAY_5);
    assert_eq!(gateway.bodies("turns/1").len(), 0);

    let turn = agent.turn().unwrap();
    turn.call(&tool, 5).unwrap();
    forgets(turn.commit(), PAY_6);

    let turn = agent.turn().unwrap();
    assert_eq!([5, 6].map(|cents| turn.call(&tool, cents).unwrap()), [5, 6]);
    turn.commit().unwrap();
    assert_eq!(tool.0.lock().unwrap().len(), 2, "each ran once");
}

#[test]
fn a_call_of_a_turn_that_nobody_dropped_has_to_be_repeated_too() {
    let gateway = bank();
    let (mut agent, tool) = (agent(&gateway), Pay::default());
    let turn = agent.turn().unwrap();
    turn.call(&tool, 5).unwrap();
    std::mem::forget(turn);
    forgets(agent.turn().unwrap().commit(), PAY_5);
}

#[test]
fn a_call_whose_turn_was_refused_has_to_be_repeated() {
    let gateway = bank().on("turns/1", [problem(409, "UNSETTLED_CALLS"), committed(1, "result")]);
    let (mut agent, tool) = (agent(&gateway), Pay::default());
    let turn = agent.turn().unwrap();
    turn.call(&tool, 5).unwrap();
    turn.commit().unwrap_err();
    forgets(agent.turn().unwrap().commit(), PAY_5);
    let turn = agent.turn().unwrap();
    turn.accept(PAY_5);
    turn.commit().unwrap();
}

#[test]
fn a_call_of_an_earlier_attempt_has_to_be_repeated_by_each_try() {
    let calls = json!([earlier(PAY_7, "retrySameKey", "completed")]);
    let gateway = bank()
        .on("attach", [attached(json!({"completedCalls": calls}))])
        .on(&format!("calls/{PAY_7}/claim"), [paid(PAY_7, "done", 7)]);
    let (mut agent, tool) = (agent(&gateway), Pay::default());
    let turn = agent.turn().unwrap();
    turn.call(&tool, 7).unwrap();
    drop(turn);
    forgets(agent.turn().unwrap().commit(), PAY_7);
    let turn = agent.turn().unwrap();
    turn.call(&tool, 7).unwrap();
    turn.commit().unwrap();
}

#[test]
fn a_call_between_two_turns_is_no_part_of_the_next_one() {
    let gateway =
        bank().on("calls/set-up/claim", [paid("set-up", "go", 7)]).on("calls/set-up/complete", [ok()]);
    let mut agent = agent(&gateway);
    let call = ToolCall::new("set-up", Policy::RetrySameKey);
    agent.run().call(call, 7, |_, cents: i32| Ok(cents)).unwrap();
    agent.turn().unwrap().commit().unwrap();
}

/// A tool with a probe, which finds the effect.
struct Found;

impl Tool for Found {
    const NAME: &'static str = "pay";
    const POLICY: Policy = Policy::Probe;
    type Arguments = i32;
    type Output = i32;

    fn run(&self, _: &str, cents: &i32) -> Result<i32, ToolError> {
        Ok(*cents)
    }

    fn probe(&self, _: &str, _: &i32) -> Result<Probed<i32>, Box<dyn std::error::Error + Send + Sync>> {
        Ok(Probed::TookEffect(7))
    }
}

/// A gateway with a call of an earlier attempt whose outcome is unknown until somebody settles it.
fn interrupted() -> Gateway {
    let key = format!("r1:{PAY_7}");
    let call = json!({"policy": "probe", "key": key, "arguments": 7, "result": 7});
    let (uncertain, done) = (claimed(PAY_7, "uncertain", call.clone()), claimed(PAY_7, "done", call));
    let calls = json!([earlier(PAY_7, "probe", "started")]);
    bank()
        .on("attach", [attached(json!({"unsettledCalls": calls}))])
        .on(&format!("calls/{PAY_7}/claim"), [uncertain, done])
        .on(&format!("calls/{PAY_7}/settle"), [ok()])
}

#[test]
fn a_call_that_recover_has_ended_has_to_be_repeated_by_the_turn() {
    let gateway = interrupted();
    let mut agent = agent(&gateway);
    agent.recover(&Found).unwrap();
    assert!(agent.uncertain_calls().is_empty());
    forgets(agent.turn().unwrap().commit(), PAY_7);
    let turn = agent.turn().unwrap();
    assert_eq!(turn.call(&Found, 7).unwrap(), 7);
    turn.commit().unwrap();
}

#[test]
fn a_call_that_a_person_has_settled_before_recover_has_to_be_repeated_by_the_turn() {
    let key = format!("r1:{PAY_7}");
    let call = json!({"policy": "probe", "key": key, "arguments": 7, "result": 7});
    let gateway = interrupted().on(&format!("calls/{PAY_7}/claim"), [claimed(PAY_7, "done", call)]);
    let mut agent = agent(&gateway);
    agent.recover(&Found).unwrap();
    assert!(agent.uncertain_calls().is_empty());
    forgets(agent.turn().unwrap().commit(), PAY_7);
}

#[test]
fn a_call_that_was_settled_has_to_be_repeated_by_the_turn_and_by_its_next_try() {
    let gateway = interrupted();
    let mut before = agent(&gateway);
    before.run().settle(PAY_7, CallOutcome::Completed, &7, "looked").unwrap();
    assert!(before.uncertain_calls().is_empty());
    forgets(before.turn().unwrap().commit(), PAY_7);

    let gateway = interrupted();
    let mut within = agent(&gateway);
    let turn = within.turn().unwrap();
    turn.run().settle(PAY_7, CallOutcome::Completed, &7, "looked").unwrap();
    drop(turn);
    forgets(within.turn().unwrap().commit(), PAY_7);
    let turn = within.turn().unwrap();
    turn.run().settle(PAY_7, CallOutcome::Completed, &7, "looked").unwrap();
    turn.commit().unwrap();
}

#[test]
fn a_call_whose_tool_panics_is_the_same_call_when_it_is_made_again() {
    let gateway = bank()
        .on(&format!("calls/{PAY_MINUS_1}/claim"), [paid(PAY_MINUS_1, "go", -1)])
        .on(&format!("calls/{PAY_MINUS_1}/complete"), [ok()]);
    let (mut agent, tool) = (agent(&gateway), Pay::default());
    let turn = agent.turn().unwrap();
    catch_unwind(AssertUnwindSafe(|| turn.call(&tool, -1))).unwrap_err();
    assert_eq!(turn.call(&tool, -1).unwrap(), -1);
    let made = format!("-1 under r1:{PAY_MINUS_1}");
    assert_eq!(*tool.0.lock().unwrap(), [made.clone(), made]);
}

#[test]
fn what_is_behind_a_plan_has_other_ids_than_the_same_before_it() {
    let behind = [PAY_7, "1.draft.0"].map(|id| format!("planned-{id}"));
    let draft = |id: &str, answer: &str| claimed(id, "done", json!({"result": answer}));
    let gateway = bank()
        .on("turns/1/plan", [committed(1, "plan")])
        .on("calls/1.draft.0/claim", [draft("1.draft.0", "before")])
        .on(&format!("calls/{}/claim", behind[0]), [paid(&behind[0], "go", 7)])
        .on(&format!("calls/{}/complete", behind[0]), [ok()])
        .on(&format!("calls/{}/claim", behind[1]), [draft(&behind[1], "behind")]);
    let (mut agent, tool) = (agent(&gateway), Pay::default());
    let step = || -> Result<String, ToolError> { panic!("it is stored") };
    let mut turn = agent.turn().unwrap();
    assert_eq!(turn.step("draft", step).unwrap(), "before");
    turn.call(&tool, 7).unwrap();
    turn.plan().unwrap();
    assert_eq!(turn.step("draft", step).unwrap(), "behind");
    turn.call(&tool, 7).unwrap();
    drop(turn);
    let keys = [PAY_7, &behind[0]].map(|id| format!("7 under r1:{id}"));
    assert_eq!(*tool.0.lock().unwrap(), keys);

    // The next try begins behind the plan: it need not repeat what came before.
    forgets(agent.turn().unwrap().commit(), &behind[0]);
    let turn = agent.turn().unwrap();
    turn.call(&tool, 7).unwrap();
    turn.commit().unwrap();
}

#[test]
fn a_process_that_begins_behind_a_plan_repeats_only_what_came_behind_it() {
    let behind = format!("planned-{PAY_7}");
    let calls: Vec<_> = [PAY_5, "order-8", &behind].map(|id| earlier(id, "retrySameKey", "completed")).into();
    let planned = json!({"head": head(1, "plan"), "state": {}, "completedCalls": calls});
    let gateway = Gateway::new()
        .on("attach", [attached(planned)])
        .on("turns/1", [committed(1, "result")])
        .on(&format!("calls/{behind}/claim"), [paid(&behind, "done", 7)]);
    let (mut agent, tool) = (agent(&gateway), Pay::default());
    forgets(agent.turn().unwrap().commit(), &behind);
    let turn = agent.turn().unwrap();
    assert!(turn.planned());
    assert_eq!(turn.call(&tool, 7).unwrap(), 7);
    turn.commit().unwrap();
    assert!(tool.0.lock().unwrap().is_empty());
}

#[test]
fn a_plan_is_the_last_place_for_the_calls_of_an_earlier_try() {
    let call = json!({"completedCalls": [earlier(PAY_7, "retrySameKey", "completed")]});
    let gateway = bank().on("attach", [attached(call)]).on("turns/1/plan", [committed(1, "plan")]);
    let gateway = gateway.on(&format!("calls/{PAY_7}/claim"), [paid(PAY_7, "done", 7)]);
    let (mut agent, tool) = (agent(&gateway), Pay::default());
    let mut turn = agent.turn().unwrap();
    forgets(turn.plan(), PAY_7);
    turn.call(&tool, 7).unwrap();
    turn.plan().unwrap();
    turn.commit().unwrap();
    assert!(tool.0.lock().unwrap().is_empty());
}

#[test]
fn a_plan_that_is_refused_keeps_what_the_turn_was_given() {
    let message = json!({
        "position": 4, "id": "m4", "author": "ada", "at": "2026-11-26T11:00:00Z", "value": "hi",
    });
    let gateway = bank().on("turns/1/plan", [problem(409, "UNSETTLED_CALLS")]);
    let mut agent = agent(&gateway);
    let mut turn = agent.turn().unwrap();
    turn.event(&"written").unwrap();
    turn.spent(Usage { tokens_in: 2, ..Usage::default() });
    turn.records(RecordChanges::new().put("notes", "a", &1).unwrap());
    turn.take(&[serde_json::from_value(message).unwrap()]);
    turn.plan().unwrap_err();
    turn.commit().unwrap();
    let sent = gateway.body("turns/1");
    assert_eq!((&sent["events"], &sent["usage"]["tokensIn"]), (&json!(["written"]), &json!(2)));
    assert_eq!((sent["records"].as_array().map(Vec::len), &sent["inbox"]), (Some(1), &json!([4])));
    let plan: Value = gateway.body("turns/1/plan");
    assert_ne!(plan["commitId"], sent["commitId"]);
}
