//! A scripted gateway, and the answers it gives.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{fs, thread};

use dalsegno_protocol::{CONTRACT, env};
use dalsegno_sdk::{Builder, Run};
use serde_json::{Value, json};

/// An answer of the gateway. `None` closes the connection instead.
pub type Answer = Option<(u16, Value)>;

#[derive(Default)]
pub struct Script {
    /// By path: the answers in order. The last one is repeated.
    answers: HashMap<String, Vec<Answer>>,
    /// By path: how many requests must have arrived before any of them is answered.
    required: HashMap<String, usize>,
    /// Path, bearer and body of every request.
    pub requests: Vec<(String, String, String)>,
    /// The client's port of every request. Requests with the same port came over the same connection.
    pub ports: Vec<u16>,
}

impl Script {
    fn has_required(&self, path: &str) -> bool {
        let received = self.requests.iter().filter(|(seen, ..)| seen == path).count();
        received >= self.required.get(path).copied().unwrap_or(0)
    }
}

/// A gateway that answers as its script says.
pub struct Gateway {
    pub script: Arc<Mutex<Script>>,
    pub url: String,
}

impl Gateway {
    /// A gateway that accepts an attach and every heartbeat.
    pub fn new() -> Self {
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

    /// Sets the answers to requests of this path.
    pub fn on<const N: usize>(self, path: &str, answers: [Answer; N]) -> Self {
        self.script.lock().unwrap().answers.insert(path.to_owned(), answers.into());
        self
    }

    /// Answers requests of this path once `count` of them have arrived.
    pub fn answer_after(self, path: &str, count: usize) -> Self {
        self.script.lock().unwrap().required.insert(path.to_owned(), count);
        self
    }

    /// A builder whose hook does nothing.
    pub fn builder(&self) -> Builder {
        self.builder_with_default_hook().on_ended(|_| ())
    }

    /// A builder whose hook exits the process.
    pub fn builder_with_default_hook(&self) -> Builder {
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

    /// Attaches without heartbeats.
    pub fn attach(&self) -> Run {
        self.builder().attach().unwrap()
    }

    /// The bodies of all requests of this path.
    pub fn bodies(&self, path: &str) -> Vec<String> {
        let script = self.script.lock().unwrap();
        script.requests.iter().filter(|(seen, ..)| seen == path).map(|(.., body)| body.clone()).collect()
    }

    /// The body of the first request of this path.
    pub fn body(&self, path: &str) -> Value {
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
        let mut received = script.lock().unwrap();
        received.ports.push(port);
        received.requests.push((path.clone(), headers["authorization"].clone(), text));
        drop(received);
        wait_until(Duration::from_secs(60), || script.lock().unwrap().has_required(&path));
        let mut script = script.lock().unwrap();
        let answers = script.answers.get_mut(&path).unwrap_or_else(|| panic!("no answer for {path}"));
        let answer = if answers.len() > 1 { answers.remove(0) } else { answers[0].clone() };
        drop(script);
        let Some((status, body)) = answer else { return };
        // A JSON string stands for a body that is not JSON.
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

/// Adds fields to an object.
pub fn merged(mut base: Value, more: Value) -> Value {
    base.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    base
}

/// An answer with flags and these fields.
pub fn flags(more: Value) -> Answer {
    Some((200, merged(json!({"suspend": false, "cancel": false, "leaseSeconds": 3}), more)))
}

/// An answer to an attach, fresh unless these fields say otherwise.
pub fn attached(more: Value) -> Answer {
    let fresh = json!({
        "run": "demo/first", "attempt": 1, "decision": "fresh", "branch": 0, "unsettledCalls": [], "completedCalls": [],
        "waits": [], "warnings": [], "heartbeatSeconds": 1, "contract": CONTRACT,
    });
    flags(merged(fresh, more))
}

/// The head after a boundary.
pub fn head(turn: i32, boundary: &str) -> Value {
    json!({"turn": turn, "boundary": boundary, "position": 0, "contentHash": "sha256:00"})
}

/// An answer to a commit.
pub fn committed(turn: i32, boundary: &str) -> Answer {
    flags(json!({"result": "ok", "head": head(turn, boundary)}))
}

/// A problem document.
pub fn problem(status: u16, code: &str) -> Answer {
    Some((status, json!({"type": "about:blank", "status": status, "code": code, "detail": "because"})))
}

/// An answer to a claim of the call `turn-1`.
pub fn call(verdict: &str, state: &str, more: Value) -> Answer {
    let call = json!({"id": "turn-1", "turn": 1, "policy": "retrySameKey", "key": "k1", "state": state});
    Some((200, json!({"verdict": verdict, "call": merged(call, more)})))
}

/// Waits until a condition is true.
pub fn wait_until(limit: Duration, mut is_true: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_true() {
        assert!(start.elapsed() < limit, "not true within {limit:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Runs this test again in another process, whose worker attaches to this gateway. Returns the exit code.
pub fn exit_code(test: &str, gateway: &Gateway) -> Option<i32> {
    let mut child = Command::new(std::env::current_exe().unwrap());
    let child = child.args(["--exact", "--nocapture", test]).env("CHILD", &gateway.url);
    child.output().unwrap().status.code()
}

/// The run of the other process.
pub fn child_run() -> Option<Run> {
    let url = std::env::var("CHILD").ok()?;
    Some(Gateway::new().builder_with_default_hook().env(env::URL, &url).attach().unwrap())
}
