//! Tools: ids made of content, and probes.

use std::error::Error as StdError;
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::Duration;

use dalsegno_sdk::{Agent, Error, Policy, Probed, Tool, ToolError};
use serde_json::{Value, json};

use crate::agent::{claimed, earlier, ok};
use crate::gateway::{Gateway, attached, wait_until};

type Found = fn() -> Result<Probed<String>, Box<dyn StdError + Send + Sync>>;

/// A tool with a probe, which writes down what it is asked.
struct Pay {
    found: Found,
    log: Mutex<Vec<String>>,
}

impl Pay {
    fn new(found: Found) -> Self {
        Self { found, log: Mutex::default() }
    }

    fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.log.lock().unwrap())
    }
}

impl Tool for Pay {
    const NAME: &'static str = "pay";
    const POLICY: Policy = Policy::Probe;
    type Arguments = i32;
    type Output = String;

    fn run(&self, key: &str, cents: &i32) -> Result<String, ToolError> {
        self.log.lock().unwrap().push(format!("paid {cents} under {key}"));
        match cents {
            -1 => Err(ToolError::Refused("no credit".into())),
            -2 => Err(ToolError::KeyRefused("422".into())),
            -3 => Err(std::io::Error::other("lost").into()),
            _ => Ok(format!("receipt for {cents}")),
        }
    }

    fn probe(&self, key: &str, cents: &i32) -> Result<Probed<String>, Box<dyn StdError + Send + Sync>> {
        self.log.lock().unwrap().push(format!("looked for {cents} under {key}"));
        (self.found)()
    }
}

const ID: &str = "1.pay.7902699be42c.0"; // the digest is of the text 7

fn uncertain(arguments: i32) -> Gateway {
    let call = claimed(ID, "uncertain", json!({"policy": "probe", "key": "k7", "arguments": arguments}));
    Gateway::new().on(&format!("calls/{ID}/claim"), [call]).on(&format!("calls/{ID}/settle"), [ok()])
}

fn pay(gateway: &Gateway, tool: &Pay) -> dalsegno_sdk::Result<String> {
    Agent::<()>::new(gateway.attach()).unwrap().turn().unwrap().call(tool, 7)
}

fn settled(gateway: &Gateway) -> Value {
    gateway.body(&format!("calls/{ID}/settle"))
}

#[test]
fn an_effect_that_the_probe_finds_is_stored_and_the_tool_does_not_run() {
    let (gateway, tool) = (uncertain(7), Pay::new(|| Ok(Probed::TookEffect("found".into()))));
    assert_eq!(pay(&gateway, &tool).unwrap(), "found");
    assert_eq!(tool.log(), ["looked for 7 under k7"]);
    let how = json!({"outcome": "completed", "result": "found", "reason": "the probe found the effect"});
    assert_eq!(settled(&gateway), how);
}

#[test]
fn a_call_without_an_effect_runs_under_its_key_and_is_settled_as_it_ends() {
    let none: Found = || Ok(Probed::NoEffect);
    let (gateway, tool) = (uncertain(8), Pay::new(none));
    assert_eq!(pay(&gateway, &tool).unwrap(), "receipt for 8", "the stored arguments count");
    assert_eq!(tool.log(), ["looked for 8 under k7", "paid 8 under k7"]);
    assert_eq!(settled(&gateway)["result"], "receipt for 8");

    let gateway = uncertain(-1);
    assert!(matches!(pay(&gateway, &tool), Err(Error::CallFailed { .. })));
    assert_eq!(settled(&gateway)["outcome"], "failed");
    for unknown in [-2, -3] {
        let gateway = uncertain(unknown);
        let error = pay(&gateway, &tool).unwrap_err();
        assert!(matches!(error, Error::KeyRefused { .. } | Error::Tool { .. }), "{error:?}");
        assert_eq!(gateway.bodies(&format!("calls/{ID}/settle")).len(), 0, "the next probe finds out");
    }
}

#[test]
fn a_probe_that_cannot_say_leaves_the_call_uncertain() {
    for (found, is_expected) in [
        ((|| Ok(Probed::Unknown)) as Found, (|it| matches!(it, Error::Uncertain(_))) as fn(&Error) -> bool),
        (|| Err("the bank is closed".into()), |it| matches!(it, Error::Tool { .. })),
    ] {
        let (gateway, tool) = (uncertain(7), Pay::new(found));
        let error = pay(&gateway, &tool).unwrap_err();
        assert!(is_expected(&error), "{error:?}");
        assert_eq!((tool.log().len(), gateway.bodies(&format!("calls/{ID}/settle")).len()), (1, 0));
    }
}

#[test]
fn a_call_of_this_process_is_completed_after_its_probe() {
    let claim = format!("calls/{ID}/claim");
    let lost = claimed(ID, "go", json!({"policy": "probe", "arguments": -3}));
    let again = claimed(ID, "uncertain", json!({"policy": "probe", "arguments": -3}));
    let gateway = Gateway::new().on(&claim, [lost, again]).on(&format!("calls/{ID}/complete"), [ok()]);
    let tool = Pay::new(|| Ok(Probed::TookEffect("found".into())));
    let mut agent = Agent::<()>::new(gateway.attach()).unwrap();
    let turn = agent.turn().unwrap();
    assert!(matches!(turn.call(&tool, 7), Err(Error::Tool { .. })));
    assert_eq!(turn.call(&tool, 7).unwrap(), "found");
    let done = gateway.body(&format!("calls/{ID}/complete"));
    assert_eq!((&done["claimId"], &done["result"]), (&gateway.body(&claim)["claimId"], &json!("found")));
}

#[test]
fn recover_ends_the_probed_calls_of_its_tool_and_no_others() {
    let calls = [(ID, "probe"), ("1.payroll.00.0", "probe"), ("1.pay.00.0", "ask")];
    let calls: Vec<_> = calls.iter().map(|(id, policy)| earlier(id, policy, "started")).collect();
    let gateway = uncertain(7).on("attach", [attached(json!({"unsettledCalls": calls}))]);
    let agent = Agent::<()>::new(gateway.attach()).unwrap();
    let tool = Pay::new(|| Ok(Probed::NoEffect));
    agent.recover(&tool).unwrap();
    assert_eq!(tool.log(), ["looked for 7 under k7", "paid 7 under k7"]);
    let left: Vec<_> = agent.uncertain_calls().into_iter().map(|call| call.id).collect();
    assert_eq!(left, ["1.payroll.00.0", "1.pay.00.0"]);
}

/// A tool whose calls have ids of their own.
struct Order;

impl Tool for Order {
    const NAME: &'static str = "order";
    const POLICY: Policy = Policy::RetrySameKey;
    type Arguments = Value;
    type Output = String;

    fn run(&self, key: &str, _: &Value) -> Result<String, ToolError> {
        Ok(key.to_owned())
    }

    fn id(&self, arguments: &Value) -> Option<String> {
        arguments["order"].as_str().map(|order| format!("order-{order}"))
    }
}

#[test]
fn an_id_is_made_of_the_turn_the_tool_and_the_arguments_and_the_number_of_equal_calls() {
    let digest = "43258cff783f"; // of {"a":1,"b":2}
    let ids = ["order-x".to_owned(), format!("1.order.{digest}.0"), format!("1.order.{digest}.1")];
    let mut gateway = Gateway::new();
    for id in &ids {
        gateway = gateway
            .on(&format!("calls/{id}/claim"), [claimed(id, "go", json!({"key": id}))])
            .on(&format!("calls/{id}/complete"), [ok()]);
    }
    let mut agent = Agent::<()>::new(gateway.attach()).unwrap();
    let turn = agent.turn().unwrap();
    let made = [json!({"order": "x"}), json!({"b": 2, "a": 1}), json!({"a": 1, "b": 2})];
    assert_eq!(made.map(|arguments| turn.call(&Order, arguments).unwrap()), ids);
}

#[test]
fn a_call_under_an_approval_names_its_wait() {
    let claim = "calls/order-x/claim";
    let gateway =
        Gateway::new().on(claim, [claimed("order-x", "go", json!({}))]).on("calls/order-x/complete", [ok()]);
    let mut agent = Agent::<()>::new(gateway.attach()).unwrap();
    agent.turn().unwrap().call_approved(&Order, json!({"order": "x"}), "buy-1").unwrap();
    assert_eq!(gateway.body(claim)["approval"], "buy-1");
}

/// A tool with a probe and ids of its own, which takes its time.
struct Slow {
    log: Mutex<Vec<&'static str>>,
    begun: mpsc::Sender<()>,
    may_end: Mutex<mpsc::Receiver<()>>,
}

impl Tool for Slow {
    const NAME: &'static str = "slow";
    const POLICY: Policy = Policy::Probe;
    type Arguments = i32;
    type Output = String;

    fn run(&self, _: &str, _: &i32) -> Result<String, ToolError> {
        self.log.lock().unwrap().push("ran");
        self.begun.send(()).unwrap();
        self.may_end.lock().unwrap().recv().unwrap();
        Ok("done".into())
    }

    fn probe(&self, _: &str, _: &i32) -> Result<Probed<String>, Box<dyn StdError + Send + Sync>> {
        self.log.lock().unwrap().push("asked");
        Ok(Probed::NoEffect)
    }

    fn id(&self, order: &i32) -> Option<String> {
        Some(format!("order-{order}"))
    }
}

#[test]
fn the_probe_is_not_asked_about_a_call_that_another_thread_makes() {
    let answer = |verdict: &str| claimed("order-7", verdict, json!({"policy": "probe", "arguments": 7}));
    // The first thread runs the tool as a new call, or because its probe has found no effect.
    for first in ["go", "uncertain"] {
        let gateway = Gateway::new()
            .on("calls/order-7/claim", [answer(first), answer("uncertain")])
            .on("calls/order-7/complete", [ok()])
            .on("calls/order-7/settle", [ok()]);
        let ((begun, begins), (end, may_end)) = (mpsc::channel(), mpsc::channel());
        let tool = Slow { log: Mutex::default(), begun, may_end: Mutex::new(may_end) };
        let mut agent = Agent::<()>::new(gateway.attach()).unwrap();
        let turn = agent.turn().unwrap();
        let (one, other) = thread::scope(|scope| {
            let one = scope.spawn(|| turn.call(&tool, 7));
            begins.recv().unwrap();
            let other = scope.spawn(|| turn.call(&tool, 7));
            wait_until(Duration::from_secs(60), || gateway.bodies("calls/order-7/claim").len() == 2);
            // It would run the tool now, which then ends at once.
            thread::sleep(Duration::from_millis(200));
            end.send(()).unwrap();
            end.send(()).unwrap();
            (one.join().unwrap(), other.join().unwrap())
        });
        assert_eq!(one.unwrap(), "done");
        assert!(matches!(other, Err(Error::Uncertain(_))), "{other:?}");
        let log = tool.log.lock().unwrap();
        assert_eq!(log.iter().filter(|it| **it == "ran").count(), 1, "{log:?}");
    }
}

#[test]
fn an_id_of_your_own_is_no_call_of_a_tool_that_it_names() {
    let ids = ["order.pay.7", "1.pay.7902699be42c.x", "a.pay.7902699be42c.0", "1.pay.7902699be42.0"];
    let calls: Vec<_> = ids.iter().map(|id| earlier(id, "probe", "started")).collect();
    let gateway = Gateway::new().on("attach", [attached(json!({"unsettledCalls": calls}))]);
    let agent = Agent::<()>::new(gateway.attach()).unwrap();
    agent.recover(&Pay::new(|| Ok(Probed::NoEffect))).unwrap();
    assert_eq!(agent.uncertain_calls().len(), ids.len());
}

#[test]
fn recover_knows_a_call_behind_a_plan() {
    let id = format!("planned-{ID}");
    let call = claimed(&id, "uncertain", json!({"policy": "probe", "key": "k7", "arguments": 7}));
    let calls = [earlier(&id, "probe", "started")];
    let gateway = Gateway::new()
        .on("attach", [attached(json!({"unsettledCalls": calls}))])
        .on(&format!("calls/{id}/claim"), [call])
        .on(&format!("calls/{id}/settle"), [ok()]);
    let tool = Pay::new(|| Ok(Probed::TookEffect("found".into())));
    Agent::<()>::new(gateway.attach()).unwrap().recover(&tool).unwrap();
    assert_eq!(tool.log(), ["looked for 7 under k7"]);
}

#[test]
fn stored_arguments_of_another_type_are_not_quoted() {
    let mut call = earlier(ID, "probe", "started");
    call["arguments"] = json!("card-4111");
    let gateway = Gateway::new().on("attach", [attached(json!({"unsettledCalls": [call]}))]);
    let agent = Agent::<()>::new(gateway.attach()).unwrap();
    let error = agent.recover(&Pay::new(|| Ok(Probed::NoEffect))).unwrap_err();
    let text = format!("{error} {error:?}");
    assert!(text.contains("stored arguments") && !text.contains("4111"), "{text}");
}
