//! The client against a scripted gateway: each test says in its name what an agent may rely on.

mod calls;
mod connections;
mod heartbeats;

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{fs, thread};

use dalsegno_protocol::{
    CallOutcome, Code, CommitResult, CompleteOutcome, Decision, Finish, Limits, Policy, Usage, env,
};
use serde_json::{Value, json};

use crate::{Builder, Changes, Class, Commit, Error, Run, ToolError, failed, succeeded};

/// An answer; `None` cuts the connection instead.
type Answer = Option<(u16, Value)>;

#[derive(Default)]
struct Script {
    /// By path: answers in order, the last one again and again.
    answers: HashMap<String, Vec<Answer>>,
    /// By path: how many requests must have come before any is answered.
    together: HashMap<String, usize>,
    /// Path, bearer and body of every request.
    seen: Vec<(String, String, String)>,
    /// The client's, of each of them: the same one is the same connection.
    ports: Vec<u16>,
}

impl Script {
    fn has_together(&self, path: &str) -> bool {
        let seen = self.seen.iter().filter(|(seen, ..)| seen == path).count();
        seen >= self.together.get(path).copied().unwrap_or(0)
    }
}

struct Gateway {
    script: Arc<Mutex<Script>>,
    url: String,
}

impl Gateway {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1/runs/r1", listener.local_addr().unwrap());
        let script = Arc::new(Mutex::new(Script::default()));
        let served = script.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let script = served.clone();
                thread::spawn(move || serve(stream.unwrap(), &script));
            }
        });
        let gateway = Self { script, url };
        gateway.on("attach", [attached(json!({}))]).on("heartbeat", [flags(json!({}))])
    }

    fn on<const N: usize>(self, path: &str, answers: [Answer; N]) -> Self {
        self.script.lock().unwrap().answers.insert(path.to_owned(), answers.into());
        self
    }

    /// Answers requests of this path once so many have come.
    fn once_seen(self, path: &str, many: usize) -> Self {
        self.script.lock().unwrap().together.insert(path.to_owned(), many);
        self
    }

    fn builder(&self) -> Builder {
        self.unhooked().on_over(|_| ())
    }

    fn unhooked(&self) -> Builder {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("dalsegno-sdk-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::SeqCst));
        let dir = std::env::temp_dir().join(name);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("token"), "pod-token\n").unwrap();
        fs::write(dir.join("input"), r#"{"goal": "pages"}"#).unwrap();
        Run::builder()
            .heartbeat(false)
            .sigterm(false)
            .env(env::URL, &self.url)
            .env(env::TOKEN_FILE, dir.join("token").to_str().unwrap())
            .env(env::INPUT_FILE, dir.join("input").to_str().unwrap())
    }

    fn attach(&self) -> Run {
        self.builder().attach().unwrap()
    }

    fn bodies(&self, path: &str) -> Vec<String> {
        let script = self.script.lock().unwrap();
        script.seen.iter().filter(|(seen, ..)| seen == path).map(|(.., body)| body.clone()).collect()
    }

    fn body(&self, path: &str) -> Value {
        serde_json::from_str(&self.bodies(path)[0]).unwrap()
    }
}

fn serve(stream: TcpStream, script: &Mutex<Script>) {
    let port = stream.peer_addr().unwrap().port();
    let mut reader = BufReader::new(stream);
    loop {
        let mut lines = reader.by_ref().lines().map_while(Result::ok);
        let Some(request) = lines.next() else { return };
        let path = request.split(' ').nth(1).unwrap().strip_prefix("/v1/runs/r1/").unwrap().to_owned();
        let headers: HashMap<String, String> = lines
            .take_while(|line| !line.is_empty())
            .map(|line| {
                line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_owned())).unwrap()
            })
            .collect();
        let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();

        let text = String::from_utf8(body).unwrap();
        let mut told = script.lock().unwrap();
        told.ports.push(port);
        told.seen.push((path.clone(), headers["authorization"].clone(), text));
        drop(told);
        within(Duration::from_secs(60), || script.lock().unwrap().has_together(&path));
        let mut script = script.lock().unwrap();
        let answers = script.answers.get_mut(&path).unwrap_or_else(|| panic!("no answer for {path}"));
        let answer = if answers.len() > 1 { answers.remove(0) } else { answers[0].clone() };
        drop(script);
        let Some((status, body)) = answer else { return };
        // A text is sent as it is: it is no JSON.
        let body = body.as_str().map_or_else(|| body.to_string(), str::to_owned);
        let retry = match status {
            429 => "Retry-After: 1\r\n",
            504 => "Retry-After: 99999999999\r\n",
            _ => "",
        };
        let head = format!("HTTP/1.1 {status} Any\r\nContent-Length: {}\r\n{retry}", body.len());
        write!(reader.get_mut(), "{head}\r\n{body}").unwrap();
    }
}

fn merged(mut base: Value, more: Value) -> Value {
    base.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    base
}

fn flags(more: Value) -> Answer {
    Some((200, merged(json!({"suspend": false, "cancel": false, "leaseSeconds": 3}), more)))
}

fn attached(more: Value) -> Answer {
    let fresh = json!({
        "run": "demo/first", "attempt": 1, "decision": "fresh", "unsettledCalls": [], "completedCalls": [],
        "approval": null, "warnings": [], "heartbeatSeconds": 1,
    });
    flags(merged(fresh, more))
}

fn head(turn: i32, boundary: &str) -> Value {
    json!({"turn": turn, "boundary": boundary, "position": 0, "contentHash": "sha256:00"})
}

fn committed(turn: i32, boundary: &str) -> Answer {
    flags(json!({"result": "ok", "head": head(turn, boundary)}))
}

fn problem(status: u16, code: &str) -> Answer {
    Some((status, json!({"type": "about:blank", "status": status, "code": code, "detail": "because"})))
}

fn call(verdict: &str, state: &str, more: Value) -> Answer {
    let call = json!({"id": "turn-1", "turn": 1, "policy": "retrySameKey", "key": "k1", "state": state});
    Some((200, json!({"verdict": verdict, "call": merged(call, more)})))
}

fn within(limit: Duration, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < limit, "nothing within {limit:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_fresh_run_attaches_by_the_token_and_goes_on_by_its_instance() {
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

    let seen = gateway.script.lock().unwrap().seen.clone();
    let instance =
        serde_json::from_str::<Value>(&seen[0].2).unwrap()["instance"].as_str().unwrap().to_owned();
    assert_eq!((seen[0].1.as_str(), instance.len()), ("Bearer pod-token", 43));
    assert_eq!(seen[1].1, format!("Bearer {instance}"));
    let mut body: Value = serde_json::from_str(&seen[1].2).unwrap();
    assert!(body.as_object_mut().unwrap().remove("commitId").is_some());
    let usage = json!({"tokensIn": 5, "tokensOut": 0, "toolCalls": 0, "costMicroUSD": 0});
    assert_eq!(body, json!({"state": {"n": 1}, "events": ["did"], "usage": usage}));
}

#[test]
fn a_resumed_run_goes_on_at_the_next_turn_with_its_channels() {
    let state = json!({"state": {"value": {"json": 7}}, "log": {"list": [{"json": 1}, {"json": 2}]}});
    let resumed = json!({"decision": "resume", "head": head(7, "result"), "state": state});
    let run = Gateway::new().on("attach", [attached(resumed)]).attach();
    assert_eq!((run.turn(), run.planned()), (8, false));
    assert_eq!(run.state::<i32>().unwrap(), Some(7));
    assert_eq!(run.list::<i32>("log").unwrap(), [1, 2]);
    assert!(run.list::<i32>("other").unwrap().is_empty());
}

#[test]
fn an_input_that_is_no_json_is_the_agents_to_read() {
    let builder = Gateway::new().builder();
    let file = std::env::temp_dir().join(format!("dalsegno-sdk-input-{}", std::process::id()));
    fs::write(&file, b"plain \xff text").unwrap();
    let run = builder.env(env::INPUT_FILE, file.to_str().unwrap()).attach().unwrap();
    let refused = run.input::<Value>().unwrap_err();
    assert_eq!(refused.to_string(), "cannot read the file of DALSEGNO_INPUT_FILE");
}

#[test]
fn a_number_that_json_does_not_have_is_refused_before_it_is_sent() {
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
fn a_state_too_large_for_the_answer_is_fetched() {
    let answer = json!({"head": head(1, "result"), "state": {"state": {"value": {"json": "large"}}}});
    let gateway = Gateway::new()
        .on("attach", [attached(json!({"decision": "resume", "head": head(1, "result")}))])
        .on("state", [Some((200, answer))]);
    assert_eq!(gateway.attach().state::<String>().unwrap().as_deref(), Some("large"));
}

#[test]
fn a_commit_without_an_answer_is_sent_again_as_the_same_bytes() {
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
    let began = Instant::now();
    gateway.attach();
    assert!(began.elapsed() >= Duration::from_secs(1));
}

#[test]
fn a_fenced_commit_calls_the_hook() {
    let gateway = Gateway::new().on("turns/1", [problem(409, "FENCED")]);
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hook = heard.clone();
    let attach = gateway.builder().on_over(move |problem| hook.lock().unwrap().push(problem.code)).attach();
    let refused = attach.unwrap().commit(Commit::new(1));
    assert!(matches!(refused, Err(Error::Over(problem)) if problem.code == Code::Fenced));
    assert_eq!(*heard.lock().unwrap(), [Code::Fenced]);
}

/// In a process of its own, whose standard error nobody reads.
#[test]
fn a_fence_and_a_wait_that_nobody_can_be_told_of_are_heeded_all_the_same() {
    const NAME: &str = "tests::a_fence_and_a_wait_that_nobody_can_be_told_of_are_heeded_all_the_same";
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
    let _ = gateway.unhooked().attach().unwrap().commit(Commit::new(1));
}

#[test]
fn any_other_refusal_is_an_error_with_its_code() {
    let gateway =
        Gateway::new().on("turns/3", [problem(409, "CONFLICT")]).on("turns/4", [Some((404, json!("?")))]);
    let mut run = gateway.attach();
    let refused = run.commit(Commit::new(3));
    assert!(matches!(refused, Err(Error::Refused { problem, .. }) if problem.code == Code::Conflict));
    assert!(matches!(run.commit(Commit::new(4)), Err(Error::Unexpected { status: 404, .. })));
}

#[test]
fn what_is_neither_an_answer_nor_a_refusal_of_the_gateway_is_not_taken_for_success() {
    for status in [302, 307, 204, 404] {
        let gateway = Gateway::new().on("records", [Some((status, json!("")))]);
        let written = gateway.attach().write_records(Changes::new());
        assert!(
            matches!(written, Err(Error::Unexpected { status: seen, .. }) if seen == status),
            "{written:?}"
        );
    }
}

/// In a process of its own, for what it says.
#[test]
fn neither_a_wait_nor_a_refusal_tells_a_log_which_call_or_record_was_asked_for() {
    const NAME: &str = "tests::neither_a_wait_nor_a_refusal_tells_a_log_which_call_or_record_was_asked_for";
    if std::env::var_os("CHILD").is_none() {
        let program = std::env::current_exe().unwrap();
        let child = Command::new(program).args(["--exact", "--nocapture", NAME]).env("CHILD", "").output();
        let said = String::from_utf8(child.unwrap().stderr).unwrap();
        assert!(!said.contains("canary"), "{said}");
        for call in ["calls/*/claim", "records"] {
            assert!(said.contains(&format!("dalsegno: {call}: no answer yet (503)")), "{said}");
            assert!(said.contains(&format!("{call}: INVALID: because")), "{said}");
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
            let called =
                run.call("canary-1", Policy::Ask, None, (), |_, ()| -> Result<(), _> { panic!("made") });
            called.inspect_err(|error| eprintln!("{error} {error:?}")).unwrap_err();
        });
        let read = run.records("canary-2", "canary-3").next().unwrap();
        read.inspect_err(|error| eprintln!("{error} {error:?}")).unwrap_err();
    });
}

#[test]
fn a_cancel_is_acknowledged_until_it_is_heard() {
    let gateway = Gateway::new()
        .on("attach", [attached(json!({"cancel": true}))])
        .on("cancelled", [None, Some((200, json!({})))]);
    let run = gateway.attach();
    assert!(run.cancelled() && !run.suspending() && !run.stopping());
    run.acknowledge_cancel().unwrap();
    assert_eq!(gateway.bodies("cancelled"), ["", ""]);
}

#[test]
fn what_cannot_be_sent_is_not_sent_again() {
    let gateway = Gateway::new();
    let address = gateway.url.strip_prefix("http://").unwrap();
    for url in [address, &format!("http://{address} "), &format!("https://{address}")] {
        let refused = gateway.builder().env(env::URL, url).attach().err().unwrap();
        assert!(matches!(refused, Error::Unsendable { .. }), "{url}: {refused:?}");
    }
}

#[test]
fn records_are_written_as_one_batch_or_with_a_boundary() {
    let gateway =
        Gateway::new().on("records", [None, Some((200, json!({})))]).on("turns/1", [committed(1, "result")]);
    let mut run = gateway.attach();
    let changes = || -> crate::Result<Changes> {
        let put = Changes::new().put("notes", "a", &1)?.put_if_absent("notes", "b", &"two")?;
        Ok(put.append("log", "day", "e1", &json!({"n": 3}))?.delete("notes", "c"))
    };
    run.write_records(changes().unwrap()).unwrap();
    let bodies = gateway.bodies("records");
    assert_eq!((bodies.len(), &bodies[0]), (2, &bodies[1]), "the same bytes until they are answered");
    let operations = json!([
        {"put": {"space": "notes", "key": "a", "value": {"json": 1}}},
        {"putIfAbsent": {"space": "notes", "key": "b", "value": {"json": "two"}}},
        {"append": {"space": "log", "key": "day", "entryId": "e1", "value": {"json": {"n": 3}}}},
        {"delete": {"space": "notes", "key": "c"}},
    ]);
    assert_eq!(gateway.body("records")["operations"], operations);
    run.commit(Commit::new(1).records(changes().unwrap())).unwrap();
    assert_eq!(gateway.body("turns/1")["records"], operations);
}

#[test]
fn records_are_read_page_by_page() {
    let record = |key: &str| json!({"key": key, "value": {"json": 1}, "turn": 1});
    let gateway = Gateway::new()
        .on(
            "records?space=a%20b&prefix=%C3%A4%2F",
            [Some((200, json!({"records": [record("1"), record("2")], "next": "7.2&"})))],
        )
        .on(
            "records?space=a%20b&prefix=%C3%A4%2F&after=7.2%26",
            [Some((200, json!({"records": [record("3")]})))],
        )
        .on(
            "records?space=none&prefix=",
            [Some((400, json!({"type": "about:blank", "status": 400, "code": "INVALID", "detail": "no"})))],
        );
    let run = gateway.attach();
    let keys: Vec<_> = run.records("a b", "ä/").map(|record| record.unwrap().key).collect();
    assert_eq!(keys, ["1", "2", "3"]);
    let mut refused = run.records("none", "");
    assert!(matches!(refused.next(), Some(Err(Error::Refused { .. }))));
    assert!(refused.next().is_none());
}

#[test]
fn a_plan_names_its_calls_and_a_result_may_finish_the_run() {
    let gateway =
        Gateway::new().on("turns/1/plan", [committed(1, "plan")]).on("turns/1", [committed(1, "result")]);
    let mut run = gateway.attach();
    run.commit(Commit::plan(1).call("turn-1", Policy::Ask, None, &2).unwrap()).unwrap();
    assert_eq!((run.turn(), run.planned()), (1, true));
    let result = Commit::new(1).append("log", &1).unwrap().append("log", &2).unwrap().set("n", &3).unwrap();
    run.commit(result.truncate("old", 0).remove("gone").finish(failed())).unwrap();
    assert_eq!((run.turn(), run.planned()), (2, false));

    let planned = &gateway.body("turns/1/plan")["calls"][0];
    let call = json!({"id": "turn-1", "policy": "ask", "key": "r1:turn-1", "arguments": 2});
    assert_eq!(*planned, call);
    let result = gateway.body("turns/1");
    let log = json!([{"json": 1}, {"json": 2}]);
    let channels = json!({"remove": ["gone"], "truncate": {"old": 0}, "set": {"n": {"json": 3}}, "append": {"log": log}});
    assert_eq!(result["channels"], channels);
    assert_eq!(result["outcome"], json!({"finish": {"outcome": "failed"}}));
}

#[test]
fn a_process_that_is_no_worker_is_told_so() {
    let refused = Run::builder().sigterm(false).attach().err().unwrap();
    assert_eq!(refused.to_string(), "DALSEGNO_INPUT_FILE is not set: only a worker of Dal Segno can attach");
}

#[test]
fn a_termination_message_is_short_and_whole() {
    let message = crate::termination_message(Class::Fatal, &"ö".repeat(9999));
    let word: Value = serde_json::from_str(&message).unwrap();
    assert_eq!((&word["dalsegno"], &word["class"]), (&json!(1), &json!("fatal")));
    assert_eq!(word["message"].as_str().unwrap().chars().count(), 512);
}
