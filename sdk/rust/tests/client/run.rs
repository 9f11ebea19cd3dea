//! Attaching, committing and ending a run.

use std::collections::HashMap;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{fs, thread};

use dalsegno_protocol::{Code, CommitResult, Decision, Limits, Policy, Usage, env};
use dalsegno_sdk::{Class, Commit, Error, RecordChanges, Run, ToolCall, failed};
use serde_json::{Value, json};

use crate::gateway::{Answer, Gateway, attached, committed, head, problem};

#[test]
fn a_fresh_run_attaches_with_its_token_and_then_uses_its_instance() {
    let gateway = Gateway::new().on("turns/1", [committed(1, "result")]);
    let mut run = gateway.attach();
    assert_eq!(
        (run.name(), run.attempt(), run.decision(), run.turn()),
        ("demo/first", 1, Decision::Fresh, 1)
    );
    assert_eq!(run.input::<Value>().unwrap(), json!({"goal": "pages"}));
    assert_eq!(run.state::<Value>().unwrap(), None);

    let usage = Usage { tokens_in: 5, ..Usage::default() };
    let commit = Commit::new(1).state(&json!({"n": 1})).unwrap().event(&"did").unwrap().usage(usage);
    assert_eq!(run.commit(commit).unwrap().result, CommitResult::Ok);
    assert_eq!(run.turn(), 2);

    let requests = gateway.script.lock().unwrap().requests.clone();
    let instance =
        serde_json::from_str::<Value>(&requests[0].2).unwrap()["instance"].as_str().unwrap().to_owned();
    assert_eq!((requests[0].1.as_str(), instance.len()), ("Bearer pod-token", 43));
    assert_eq!(requests[1].1, format!("Bearer {instance}"));
    let mut body: Value = serde_json::from_str(&requests[1].2).unwrap();
    assert!(body.as_object_mut().unwrap().remove("commitId").is_some());
    let usage = json!({"tokensIn": 5, "tokensOut": 0, "toolCalls": 0, "costMicroUSD": 0});
    assert_eq!(body, json!({"state": {"n": 1}, "events": ["did"], "usage": usage}));
}

#[test]
fn a_resumed_run_continues_at_the_next_turn_with_its_channels() {
    let state = json!({"state": {"value": {"json": 7}}, "log": {"list": [{"json": 1}, {"json": 2}]}});
    let resumed = json!({"decision": "resume", "branch": 2, "head": head(7, "result"), "state": state});
    let run = Gateway::new().on("attach", [attached(resumed)]).attach();
    assert_eq!((run.turn(), run.planned(), run.branch()), (8, false, 2));
    assert_eq!(run.state::<i32>().unwrap(), Some(7));
    assert_eq!(run.list::<i32>("log").unwrap(), [1, 2]);
    assert!(run.list::<i32>("other").unwrap().is_empty());
}

#[test]
fn an_input_that_is_not_json_is_left_to_the_agent() {
    let builder = Gateway::new().builder();
    let file = std::env::temp_dir().join(format!("dalsegno-sdk-input-{}", std::process::id()));
    fs::write(&file, b"plain \xff text").unwrap();
    let run = builder.env(env::INPUT_FILE, file.to_str().unwrap()).attach().unwrap();
    let refused = run.input::<Value>().unwrap_err();
    assert_eq!(refused.to_string(), "cannot read the file of DALSEGNO_INPUT_FILE");
}

#[test]
fn a_nan_or_an_infinity_is_refused_before_it_is_sent() {
    #[derive(serde::Serialize)]
    enum Loss {
        Known { at: f32 },
        Both(f64, i128),
    }
    let state = |losses: &[Loss]| Commit::new(1).state(&json!({"n": 1})).unwrap().set("loss", &losses);
    assert!(state(&[Loss::Known { at: 0.5 }, Loss::Both(f64::MAX, i128::MIN)]).is_ok());
    for lost in [Loss::Known { at: f32::NAN }, Loss::Both(f64::NEG_INFINITY, 1)] {
        assert!(matches!(state(&[Loss::Known { at: 0.5 }, lost]), Err(Error::Json { .. })));
    }
    assert!(Commit::new(1).event(&HashMap::from([("loss", Some(f64::INFINITY))])).is_err());
}

#[test]
fn a_body_above_the_limit_is_refused_before_it_is_sent() {
    let gateway = Gateway::new().on("turns/1", [committed(1, "result")]);
    let mut run = gateway.attach();
    let refused = run.commit(Commit::new(1).state(&"x".repeat(Limits::BODY_BYTES)).unwrap());
    assert!(matches!(refused, Err(Error::Refused { problem, .. }) if problem.code == Code::TooLarge));
    assert!(gateway.bodies("turns/1").is_empty());
    run.commit(Commit::new(1).state(&"x".repeat(Limits::BODY_BYTES - 999)).unwrap()).unwrap();
}

#[test]
fn an_open_turn_is_resumed_after_its_plan() {
    let resumed = json!({"decision": "resume", "head": head(7, "plan"), "state": {}});
    let run = Gateway::new().on("attach", [attached(resumed)]).attach();
    assert_eq!((run.turn(), run.planned()), (7, true));
}

#[test]
fn a_state_that_is_too_large_for_the_attach_is_fetched() {
    let answer = json!({"head": head(1, "result"), "state": {"state": {"value": {"json": "large"}}}});
    let gateway = Gateway::new()
        .on("attach", [attached(json!({"decision": "resume", "head": head(1, "result")}))])
        .on("state", [Some((200, answer))]);
    assert_eq!(gateway.attach().state::<String>().unwrap().as_deref(), Some("large"));
}

#[test]
fn a_commit_without_an_answer_is_retried_with_the_same_bytes() {
    let [page, null] = ["<html>", "null"].map(|text| Some((200, json!(text))));
    let faults =
        [problem(503, "UNAVAILABLE"), Some((502, json!("proxy"))), page, null, None, committed(1, "result")];
    let gateway = Gateway::new().on("turns/1", faults);
    gateway.attach().commit(Commit::new(1).state(&1.5).unwrap()).unwrap();
    let bodies = gateway.bodies("turns/1");
    assert_eq!(bodies.len(), 6);
    assert!(bodies.iter().all(|body| *body == bodies[0]));
}

#[test]
fn retry_after_is_honoured() {
    let gateway = Gateway::new().on("attach", [problem(429, "TOO_MANY_REQUESTS"), attached(json!({}))]);
    let start = Instant::now();
    gateway.attach();
    assert!(start.elapsed() >= Duration::from_secs(1));
}

#[test]
fn a_fenced_commit_calls_the_hook() {
    let gateway = Gateway::new().on("turns/1", [problem(409, "FENCED")]);
    let received = Arc::new(Mutex::new(Vec::new()));
    let hook = received.clone();
    let attach = gateway.builder().on_ended(move |problem| hook.lock().unwrap().push(problem.code)).attach();
    let refused = attach.unwrap().commit(Commit::new(1));
    assert!(matches!(refused, Err(Error::Ended(problem)) if problem.code == Code::Fenced));
    assert_eq!(*received.lock().unwrap(), [Code::Fenced]);
}

/// The test runs itself in another process whose stderr is closed.
#[test]
fn a_fenced_process_ends_even_if_its_stderr_is_closed() {
    const NAME: &str = "run::a_fenced_process_ends_even_if_its_stderr_is_closed";
    if std::env::var_os("CHILD").is_none() {
        let mut child = Command::new(std::env::current_exe().unwrap());
        let (_, unread) = std::io::pipe().unwrap();
        let ended = child.args(["--exact", "--nocapture", NAME]).env("CHILD", "").stderr(unread).output();
        assert_eq!(ended.unwrap().status.code(), Some(1));
        return;
    }
    let answers: [Answer; 8] =
        std::array::from_fn(|n| if n < 7 { problem(503, "UNAVAILABLE") } else { problem(409, "FENCED") });
    let gateway = Gateway::new().on("turns/1", answers);
    let _ = gateway.builder_with_default_hook().attach().unwrap().commit(Commit::new(1));
}

#[test]
fn a_refusal_is_an_error_with_its_code() {
    let gateway =
        Gateway::new().on("turns/3", [problem(409, "CONFLICT")]).on("turns/4", [Some((404, json!("?")))]);
    let mut run = gateway.attach();
    let refused = run.commit(Commit::new(3));
    assert!(matches!(refused, Err(Error::Refused { problem, .. }) if problem.code == Code::Conflict));
    assert!(matches!(run.commit(Commit::new(4)), Err(Error::Unexpected { status: 404, .. })));
}

#[test]
fn an_answer_that_is_not_from_the_gateway_is_an_error() {
    for status in [302, 307, 204, 404] {
        let gateway = Gateway::new().on("records", [Some((status, json!("")))]);
        let written = gateway.attach().write_records(RecordChanges::new());
        assert!(
            matches!(written, Err(Error::Unexpected { status: seen, .. }) if seen == status),
            "{written:?}"
        );
    }
}

/// The test runs itself in another process, to read its stderr.
#[test]
fn a_log_line_contains_neither_the_id_of_a_call_nor_the_query_of_records() {
    const NAME: &str = "run::a_log_line_contains_neither_the_id_of_a_call_nor_the_query_of_records";
    if std::env::var_os("CHILD").is_none() {
        let program = std::env::current_exe().unwrap();
        let child = Command::new(program).args(["--exact", "--nocapture", NAME]).env("CHILD", "").output();
        let stderr = String::from_utf8(child.unwrap().stderr).unwrap();
        assert!(!stderr.contains("canary"), "{stderr}");
        for call in ["calls/*/claim", "records"] {
            assert!(stderr.contains(&format!("dalsegno: {call}: no answer yet (503)")), "{stderr}");
            assert!(stderr.contains(&format!("{call}: INVALID: because")), "{stderr}");
        }
        return;
    }
    let answers: [Answer; 8] =
        std::array::from_fn(|n| if n < 7 { problem(503, "UNAVAILABLE") } else { problem(400, "INVALID") });
    let gateway = Gateway::new()
        .on("calls/canary-1/claim", answers.clone())
        .on("records?space=canary-2&prefix=canary-3", answers);
    let run = gateway.attach();
    thread::scope(|both| {
        both.spawn(|| {
            let called = run.call(ToolCall::new("canary-1", Policy::Ask), (), |_, ()| -> Result<(), _> {
                panic!("made")
            });
            called.inspect_err(|error| eprintln!("{error} {error:?}")).unwrap_err();
        });
        let read = run.records("canary-2", "canary-3").next().unwrap();
        read.inspect_err(|error| eprintln!("{error} {error:?}")).unwrap_err();
    });
}

#[test]
fn an_acknowledgement_of_a_cancel_is_sent_until_it_is_answered() {
    let gateway = Gateway::new()
        .on("attach", [attached(json!({"cancel": true}))])
        .on("cancelled", [None, Some((200, json!({})))]);
    let run = gateway.attach();
    assert!(run.cancelled() && !run.suspending() && !run.stopping());
    run.acknowledge_cancel().unwrap();
    assert_eq!(gateway.bodies("cancelled"), ["", ""]);
}

#[test]
fn an_invalid_request_is_not_retried() {
    let gateway = Gateway::new();
    let address = gateway.url.strip_prefix("http://").unwrap();
    for url in [address, &format!("http://{address} "), &format!("https://{address}")] {
        let refused = gateway.builder().env(env::URL, url).attach().err().unwrap();
        assert!(matches!(refused, Error::InvalidRequest { .. }), "{url}: {refused:?}");
    }
}

#[test]
fn a_plan_names_its_calls_and_a_result_may_finish_the_run() {
    let gateway =
        Gateway::new().on("turns/1/plan", [committed(1, "plan")]).on("turns/1", [committed(1, "result")]);
    let mut run = gateway.attach();
    let plan = Commit::plan(1).call(ToolCall::new("turn-1", Policy::Ask), &2).unwrap();
    run.commit(plan.open_call("slow").open_call("slower")).unwrap();
    assert_eq!((run.turn(), run.planned()), (1, true));
    let result = Commit::new(1).append("log", &1).unwrap().append("log", &2).unwrap().set("n", &3).unwrap();
    run.commit(result.truncate("old", 0).remove("gone").finish(failed())).unwrap();
    assert_eq!((run.turn(), run.planned()), (2, false));

    let plan = gateway.body("turns/1/plan");
    assert_eq!(plan["openCalls"], json!(["slow", "slower"]));
    let planned = &plan["calls"][0];
    let call = json!({"id": "turn-1", "policy": "ask", "key": "r1:turn-1", "arguments": 2});
    assert_eq!(*planned, call);
    let result = gateway.body("turns/1");
    assert!(result.get("openCalls").is_none());
    let log = json!([{"json": 1}, {"json": 2}]);
    let channels = json!({"remove": ["gone"], "truncate": {"old": 0}, "set": {"n": {"json": 3}}, "append": {"log": log}});
    assert_eq!(result["channels"], channels);
    assert_eq!(result["outcome"], json!({"finish": {"outcome": "failed"}}));
}

#[test]
fn a_process_that_is_not_a_worker_gets_an_error_that_names_the_variable() {
    let refused = Run::builder().sigterm(false).attach().err().unwrap();
    assert_eq!(refused.to_string(), "DALSEGNO_INPUT_FILE is not set: only a worker of Dal Segno can attach");
}

/// The test runs itself in another process, which terminates.
#[test]
fn a_termination_message_is_cut_to_512_characters_and_stays_valid_json() {
    const NAME: &str = "run::a_termination_message_is_cut_to_512_characters_and_stays_valid_json";
    if std::env::var_os("CHILD").is_some() {
        dalsegno_sdk::terminate(Class::Fatal, &"ö".repeat(9999));
    }
    let log = std::env::temp_dir().join(format!("dalsegno-sdk-termination-{}", std::process::id()));
    fs::write(&log, "").unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "--nocapture", NAME]).env("CHILD", "").env(env::TERMINATION_LOG, &log);
    assert_eq!(child.output().unwrap().status.code(), Some(1));
    let message: Value = serde_json::from_slice(&fs::read(&log).unwrap()).unwrap();
    assert_eq!((&message["dalsegno"], &message["class"]), (&json!(1), &json!("fatal")));
    assert_eq!(message["message"].as_str().unwrap().chars().count(), 512);
}
