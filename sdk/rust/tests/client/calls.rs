//! Tool calls: an effect must not happen twice.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use dalsegno_protocol::{CallOutcome, Code, CompleteOutcome, Policy};
use dalsegno_sdk::{Error, ToolCall, ToolError, Usage};
use serde_json::{Value, json};

use crate::gateway::{Gateway, attached, call, problem};

#[test]
fn a_new_call_runs_its_tool_with_the_stored_key_and_arguments() {
    let gateway = Gateway::new()
        .on("calls/turn-1/claim", [call("go", "started", json!({"arguments": 41}))])
        .on("calls/turn-1/complete", [Some((200, json!({})))]);
    let tool = |key: &str, page: i32| Ok(format!("{key} {page}"));
    let result = gateway.attach().call(ToolCall::new("turn-1", Policy::RetrySameKey), 40, tool).unwrap();
    assert_eq!(result, "k1 41");
    let claim = gateway.body("calls/turn-1/claim");
    assert_eq!((&claim["policy"], &claim["arguments"]), (&json!("retrySameKey"), &json!(40)));
    assert_eq!(claim["key"], "r1:turn-1");
    let done = json!({"claimId": claim["claimId"], "outcome": "completed", "result": "k1 41"});
    assert_eq!(gateway.body("calls/turn-1/complete"), done);
}

#[test]
fn a_call_names_its_tool_and_says_what_it_has_used() {
    let gateway = Gateway::new()
        .on("calls/turn-1/claim", [call("go", "started", json!({"tool": "model"}))])
        .on("calls/turn-1/complete", [Some((200, json!({})))]);
    let run = gateway.attach();
    let usage = Usage { tokens_in: 900, tokens_out: 40, ..Usage::default() };
    let call = ToolCall::new("turn-1", Policy::ReadOnly).tool("model");
    let answer = run.call_metered(call, (), |_, ()| Ok(("hello".to_owned(), usage))).unwrap();
    assert_eq!(answer, "hello");
    assert_eq!(gateway.body("calls/turn-1/claim")["tool"], "model");
    let used = json!({"tokensIn": 900, "tokensOut": 40, "toolCalls": 0, "costMicroUSD": 0});
    assert_eq!(gateway.body("calls/turn-1/complete")["usage"], used);
    assert!(matches!(
        run.complete_metered("turn-1", CompleteOutcome::Completed, &1, usage),
        Err(Error::NotClaimed { .. })
    ));
}

#[test]
fn a_name_and_a_usage_wait_until_every_gateway_has_them() {
    let old = || attached(json!({"contract": 2}));
    let gateway = Gateway::new()
        .on("attach", [old(), old(), attached(json!({}))])
        .on("calls/turn-1/claim", [call("go", "started", json!({}))])
        .on("calls/turn-1/complete", [Some((200, json!({})))]);
    let run = gateway.attach();
    run.call(ToolCall::new("turn-1", Policy::ReadOnly), (), |_, ()| Ok(1)).unwrap();
    assert_eq!(gateway.bodies("attach").len(), 1, "nothing new was sent");
    run.call(ToolCall::new("turn-1", Policy::ReadOnly).tool("t"), (), |_, ()| Ok(1)).unwrap();
    assert_eq!(gateway.bodies("attach").len(), 3);
}

#[test]
fn a_call_that_is_metered_waits_before_its_tool_runs() {
    let old = || attached(json!({"contract": 2}));
    let gateway = Gateway::new()
        .on("attach", [old(), old(), attached(json!({}))])
        .on("calls/turn-1/claim", [call("go", "started", json!({}))])
        .on("calls/turn-1/complete", [Some((200, json!({})))]);
    let run = gateway.attach();
    let usage = Usage { tokens_in: 1, ..Usage::default() };
    let model = |_: &str, ()| {
        assert_eq!(gateway.bodies("attach").len(), 3, "every gateway has it");
        Ok((1, usage))
    };
    assert!(gateway.bodies("calls/turn-1/claim").is_empty());
    run.call_metered(ToolCall::new("turn-1", Policy::Ask), (), model).unwrap();
    assert_eq!(gateway.bodies("attach").len(), 3);
    assert_eq!(gateway.body("calls/turn-1/complete")["usage"]["tokensIn"], 1);
}

#[test]
fn an_outcome_goes_without_its_usage_to_an_older_gateway() {
    let old = || attached(json!({"contract": 2}));
    let gateway = Gateway::new()
        .on("attach", [old(), old()])
        .on("calls/turn-1/claim", [call("go", "started", json!({}))])
        .on("calls/turn-1/complete", [Some((200, json!({})))]);
    let run = gateway.attach();
    let lost = |_: &str, ()| -> Result<(), _> { Err(ToolError::Unknown("no answer".into())) };
    run.call(ToolCall::new("turn-1", Policy::Ask), (), lost).unwrap_err();
    let usage = Usage { tokens_in: 1, ..Usage::default() };
    run.complete_metered("turn-1", CompleteOutcome::Completed, &7, usage).unwrap();
    let sent = gateway.body("calls/turn-1/complete");
    assert_eq!((&sent["result"], sent.get("usage")), (&json!(7), None));
    assert_eq!(gateway.bodies("attach").len(), 2, "it asked once whether they all have it by now");
}

#[test]
fn a_call_that_is_done_is_not_made_again() {
    let done = call("done", "completed", json!({"result": "stored"}));
    let run = Gateway::new().on("calls/turn-1/claim", [done]).attach();
    let result: String =
        run.call(ToolCall::new("turn-1", Policy::Ask), (), |_, ()| panic!("made again")).unwrap();
    assert_eq!(result, "stored");
}

#[test]
fn an_uncertain_call_is_returned_to_the_agent_which_settles_it() {
    let gateway = Gateway::new()
        .on("calls/turn-1/claim", [call("uncertain", "started", json!({}))])
        .on("calls/turn-1/settle", [Some((200, json!({})))]);
    let run = gateway.attach();
    let answer =
        run.call(ToolCall::new("turn-1", Policy::Probe), (), |_, ()| -> Result<(), _> { panic!("made") });
    let Err(Error::Uncertain(call)) = answer else { panic!("{answer:?}") };
    run.settle(&call.id, CallOutcome::Completed, &7, "found by its key").unwrap();
    let settled = json!({"outcome": "completed", "result": 7, "reason": "found by its key"});
    assert_eq!(gateway.body("calls/turn-1/settle"), settled);
}

#[test]
fn an_error_text_contains_neither_the_key_nor_the_arguments() {
    let secret = json!({"key": "key-4711", "arguments": "card-4111"});
    for verdict in ["uncertain", "go"] {
        let run =
            Gateway::new().on("calls/turn-1/claim", [call(verdict, "started", secret.clone())]).attach();
        let error = run.call(ToolCall::new("turn-1", Policy::Probe), 1, |_, _: i32| Ok(())).unwrap_err();
        let log =
            format!("{error} {error:?} {:?}", std::error::Error::source(&error).map(ToString::to_string));
        assert!(!log.contains("4711") && !log.contains("4111"), "{log}");
    }
}

#[test]
fn a_tool_that_returned_an_error_may_run_again_under_the_same_claim() {
    let gateway = Gateway::new()
        .on("calls/turn-1/claim", [call("go", "started", json!({}))])
        .on("calls/turn-1/complete", [Some((200, json!({})))]);
    let run = gateway.attach();
    let parse = |text: &'static str| move |_: &str, ()| Ok(text.parse::<i32>()?);
    let first = run.call(ToolCall::new("turn-1", Policy::RetrySameKey), (), parse("x"));
    assert!(matches!(first, Err(Error::Tool { .. })));
    assert_eq!(run.call(ToolCall::new("turn-1", Policy::RetrySameKey), (), parse("3")).unwrap(), 3);
    let claims = gateway.bodies("calls/turn-1/claim");
    assert_eq!(claims[0], claims[1]);
}

#[test]
fn a_refused_claim_is_replaced_by_a_new_one_for_the_same_call() {
    let gateway = Gateway::new()
        .on("calls/turn-1/claim", [problem(400, "INVALID"), call("go", "started", json!({}))])
        .on("calls/turn-1/complete", [Some((200, json!({})))]);
    let run = gateway.attach();
    let call =
        |page: i32| run.call(ToolCall::new("turn-1", Policy::RetrySameKey), page, |_, page: i32| Ok(page));
    assert!(matches!(call(-1), Err(Error::Refused { .. })));
    assert_eq!(call(1).unwrap(), 1);
    let claims: Vec<Value> =
        gateway.bodies("calls/turn-1/claim").iter().map(|it| it.parse().unwrap()).collect();
    assert_eq!((&claims[0]["arguments"], &claims[1]["arguments"]), (&json!(-1), &json!(1)));
    assert_ne!(claims[0]["claimId"], claims[1]["claimId"]);
}

#[test]
fn a_claim_that_the_gateway_itself_did_not_refuse_is_retried_with_the_same_bytes() {
    for policy in [Policy::RetrySameKey, Policy::Ask] {
        let go = call("go", "started", json!({}));
        let refusals = [None, Some((403, json!("somebody else's"))), problem(401, "UNAUTHENTICATED")];
        let [cut, other, unknown] = refusals;
        let gateway = Gateway::new()
            .on("calls/turn-1/claim", [cut, other, unknown, go.clone(), problem(400, "INVALID"), go])
            .on("calls/turn-1/complete", [Some((200, json!({})))]);
        let run = gateway.attach();
        let call = || run.call(ToolCall::new("turn-1", policy), 7, |_, page: i32| Ok(page));
        let answers = [(); 5].map(|()| call());
        assert!(
            matches!(
                &answers,
                [
                    Err(Error::Unexpected { status: 403, .. }),
                    Err(Error::Refused { .. }),
                    Ok(7),
                    Err(_),
                    Ok(7)
                ]
            ),
            "{answers:?}"
        );
        let claims = gateway.bodies("calls/turn-1/claim");
        assert_eq!(claims[..4].iter().collect::<HashSet<_>>().len(), 1);
        assert_eq!(claims.iter().collect::<HashSet<_>>().len(), 3);
    }
}

#[test]
fn a_tool_that_must_not_run_twice_is_run_by_one_thread_only() {
    let go = call("go", "started", json!({}));
    // The second thread gets its answer at the same time, or a second later, when the tool has ended.
    for other in [go.clone(), problem(429, "UNAVAILABLE")] {
        let gateway = Gateway::new()
            .on("calls/turn-1/claim", [go.clone(), other, go.clone()])
            .on("calls/turn-1/complete", [Some((200, json!({})))])
            .answer_after("calls/turn-1/claim", 2);
        let (run, made) = (gateway.attach(), AtomicUsize::new(0));
        let tool = |_: &str, ()| Ok(made.fetch_add(1, Ordering::SeqCst));
        let ends = thread::scope(|scope| {
            let call = || run.call(ToolCall::new("turn-1", Policy::Ask), (), tool);
            [scope.spawn(call), scope.spawn(call)].map(|thread| thread.join().unwrap())
        });
        assert!(ends.iter().any(|end| matches!(end, Err(Error::Uncertain(_)))), "{ends:?}");
        assert_eq!(made.into_inner(), 1);
    }
}

#[test]
fn a_result_that_is_too_large_can_be_replaced_by_a_shorter_one_without_running_the_tool_again() {
    let gateway = Gateway::new()
        .on("calls/turn-1/claim", [call("go", "started", json!({})), call("uncertain", "started", json!({}))])
        .on("calls/turn-1/complete", [problem(413, "TOO_LARGE"), Some((200, json!({})))]);
    let run = gateway.attach();
    let call = || run.call(ToolCall::new("turn-1", Policy::Ask), (), |_, ()| Ok("too long".to_owned()));
    assert!(matches!(call(), Err(Error::Refused { problem, .. }) if problem.code == Code::TooLarge));
    assert!(matches!(call(), Err(Error::Uncertain(_))));
    run.complete("turn-1", CompleteOutcome::Completed, &"short").unwrap();
    let claims = gateway.bodies("calls/turn-1/claim");
    assert_ne!(claims[0], claims[1], "the same claim would let the tool run again");
    let claim = gateway.body("calls/turn-1/claim")["claimId"].clone();
    let completed: Value = gateway.bodies("calls/turn-1/complete")[1].parse().unwrap();
    assert_eq!(completed, json!({"claimId": claim, "outcome": "completed", "result": "short"}));
    let again = run.complete("turn-1", CompleteOutcome::Completed, &"short");
    assert!(matches!(again, Err(Error::NotClaimed { .. })));
}

#[test]
fn an_invalid_id_is_encoded_and_left_to_the_gateway_to_refuse() {
    let gateway = Gateway::new()
        .on("calls/pay%20%C3%A4%2F%0A1/claim", [problem(400, "INVALID")])
        .on("calls/pay%3F/settle", [problem(400, "INVALID")]);
    let run = gateway.attach();
    let claimed =
        run.call(ToolCall::new("pay ä/\n1", Policy::Ask), (), |_, ()| -> Result<(), _> { panic!("made") });
    let settled = run.settle("pay?", CallOutcome::Failed, &(), "looked");
    for refused in [claimed, settled] {
        assert!(matches!(refused, Err(Error::Refused { problem, .. }) if problem.code == Code::Invalid));
    }
}

#[test]
fn a_tool_that_refused_is_recorded_as_failed() {
    let gateway = Gateway::new()
        .on(
            "calls/turn-1/claim",
            [call("go", "started", json!({})), call("done", "failed", json!({"result": "no"}))],
        )
        .on("calls/turn-1/complete", [Some((200, json!({})))]);
    let run = gateway.attach();
    for _ in 0..2 {
        let tool = |_: &str, ()| Err::<(), _>(ToolError::Refused("no".into()));
        let refused = run.call(ToolCall::new("turn-1", Policy::RetrySameKey), (), tool);
        assert!(matches!(refused, Err(Error::CallFailed { result, .. }) if result.get() == r#""no""#));
    }
    assert_eq!(gateway.body("calls/turn-1/complete")["outcome"], "failed");
}

#[test]
fn a_refused_key_is_recorded_and_the_tool_does_not_run_again() {
    let gateway = Gateway::new()
        .on(
            "calls/turn-1/claim",
            [call("go", "started", json!({})), call("uncertain", "keyRefused", json!({"result": "422"}))],
        )
        .on("calls/turn-1/complete", [Some((200, json!({})))]);
    let run = gateway.attach();
    for _ in 0..2 {
        let tool = |_: &str, ()| Err::<(), _>(ToolError::KeyRefused("422".into()));
        let refused = run.call(ToolCall::new("turn-1", Policy::RetrySameKey), (), tool);
        assert!(matches!(refused, Err(Error::KeyRefused { result, .. }) if result.get() == r#""422""#));
    }
    let bodies = gateway.bodies("calls/turn-1/complete");
    assert_eq!(bodies.len(), 1);
    assert!(bodies[0].contains(r#""outcome":"keyRefused""#), "{}", bodies[0]);
}
