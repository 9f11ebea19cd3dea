//! Checks `docs/reference/contract.md`: runs its commands and compares its tables with the code.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use dalsegno_gateway::{Listener, serve};
use dalsegno_model::{Operator as _, RequestedBy, WaitAnswer, WaitDecision};
use dalsegno_protocol::{Code, Limits, WaitOutcome};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpListener;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::context::*;
use crate::server::until;

const CONTRACT: &str = include_str!("../../../../docs/reference/contract.md");
const WAITS: &str = include_str!("../../../../docs/guides/waits.md");
const LIMITS: &str = include_str!("../../../protocol/src/limits.rs");
/// Marks the end of each block's output.
const END: &str = "--- end of block ---";

/// One step of the walk-through.
#[derive(Debug, PartialEq)]
enum Step {
    Run(String),
    Expect(String),
    PodIsDeleted,
    Suspend,
    SuspendIsLifted,
    Approved,
    TimeHasCome,
}

/// The steps of a section.
fn steps(section: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut lines = section.lines();
    while let Some(line) = lines.next() {
        let mut block = || lines.by_ref().take_while(|line| *line != "```").collect::<Vec<_>>().join("\n");
        match line {
            "```sh" => steps.push(Step::Run(block())),
            "```json" => steps.push(Step::Expect(block())),
            "<!-- replay: the pod is deleted -->" => steps.push(Step::PodIsDeleted),
            "<!-- replay: a person suspends the run -->" => steps.push(Step::Suspend),
            "<!-- replay: the suspend is lifted -->" => steps.push(Step::SuspendIsLifted),
            "<!-- replay: a person approves -->" => steps.push(Step::Approved),
            "<!-- replay: the time has come -->" => steps.push(Step::TimeHasCome),
            _ => {}
        }
    }
    steps
}

fn section(title: &str) -> &'static str {
    section_of(CONTRACT, title)
}

fn section_of<'a>(page: &'a str, title: &str) -> &'a str {
    let (_, after) = page.split_once(&format!("\n## {title}\n")).unwrap();
    after.split("\n## ").next().unwrap()
}

/// A shell that runs one block after the other.
struct Shell {
    child: Child,
    commands: ChildStdin,
    printed: Lines<BufReader<ChildStdout>>,
}

impl Shell {
    fn start(url: &str, token_file: &str) -> Self {
        let mut child = Command::new("bash")
            .arg("-s")
            .env("DALSEGNO_URL", url)
            .env("DALSEGNO_TOKEN_FILE", token_file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let commands = child.stdin.take().unwrap();
        let printed = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, commands, printed }
    }

    async fn run(&mut self, block: &str) -> String {
        self.commands.write_all(format!("{block}\necho '{END}'\n").as_bytes()).await.unwrap();
        let mut text = Vec::new();
        loop {
            let line = self.printed.next_line().await.unwrap().expect("the shell has ended");
            if line == END {
                return text.join("\n");
            }
            text.push(line);
        }
    }
}

/// Splits printed output into JSON and HTTP status.
fn answer(printed: &str) -> (Value, &str) {
    let (body, status) = printed.trim_end().rsplit_once('\n').unwrap_or_else(|| panic!("{printed}"));
    (serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {printed}")), status)
}

/// Whether an answer matches the documented one, in which `"…"` matches any string.
fn matches_documented(expected: &Value, found: &Value) -> bool {
    match (expected, found) {
        (Value::String(any), Value::String(_)) if any == "…" => true,
        (Value::Object(expected), Value::Object(found)) => {
            expected.len() == found.len()
                && expected
                    .iter()
                    .all(|(key, value)| found.get(key).is_some_and(|found| matches_documented(value, found)))
        }
        (Value::Array(expected), Value::Array(found)) => {
            expected.len() == found.len() && expected.iter().zip(found).all(|(a, b)| matches_documented(a, b))
        }
        _ => expected == found,
    }
}

#[tokio::test]
async fn the_documented_commands_print_the_documented_answers() {
    assert_eq!(replay(section("A life, by curl")).await, 20);
}

#[tokio::test]
async fn the_commands_of_the_guide_to_waits_print_the_documented_answers() {
    assert_eq!(replay(section_of(WAITS, "A story, by curl")).await, 8);
}

/// Runs the commands of a section. Returns how many answers were compared.
async fn replay(section: &str) -> usize {
    let ctx = TestContext::new().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1/runs/{}", listener.local_addr().unwrap(), ctx.run);
    let listener = Listener::plain(listener, &ctx.gateway);
    tokio::spawn(serve(vec![listener], ctx.gateway.clone(), std::future::pending()));
    // Its first heartbeat says the version of the contract.
    until("it becomes ready", || ctx.gateway.is_ready()).await;
    let token_file = std::env::temp_dir().join(format!("dalsegno-walk-{}", ctx.run));
    fs::write(&token_file, "token-of-pod-1\n").unwrap();

    let mut shell = Shell::start(&url, token_file.to_str().unwrap());
    let mut printed = String::new();
    let mut compared = 0;
    for step in steps(section) {
        match step {
            Step::Run(block) => printed = shell.run(&block).await,
            Step::Expect(block) => {
                let ((expected, status), (found, found_status)) = (answer(&block), answer(&printed));
                assert_eq!(found_status, status, "{printed}\nthe page:\n{block}");
                assert!(matches_documented(&expected, &found), "{found:#}\nthe page:\n{expected:#}");
                compared += 1;
            }
            Step::PodIsDeleted => {
                ctx.lose_pod(1).await;
                fs::write(&token_file, "token-of-pod-2\n").unwrap();
            }
            Step::Suspend => drop(ctx.store.suspend(ctx.run, &RequestedBy::default()).await.unwrap()),
            Step::SuspendIsLifted => {
                ctx.store.resume(ctx.run, &RequestedBy::default()).await.unwrap();
                ctx.record_pod(3, "pod-3", Some(accepted())).await;
                fs::write(&token_file, "token-of-pod-3\n").unwrap();
            }
            Step::Approved => {
                let run = ctx.record().await;
                let wait = &run.waits[0];
                let decision = WaitDecision { by: "ann".into(), reason: Some("PO 7".into()), changes: None };
                let (id, epoch, outcome) = (wait.id.clone(), wait.epoch, WaitOutcome::Approved);
                let answer = WaitAnswer { id, epoch, outcome, decision };
                ctx.store.answer_wait(ctx.run, &answer).await.unwrap();
                start_next_pod(&ctx, &token_file).await;
            }
            Step::TimeHasCome => {
                tokio::time::sleep(Duration::from_millis(2_100)).await;
                ctx.store.settle_time(ctx.run).await.unwrap();
                start_next_pod(&ctx, &token_file).await;
            }
        }
    }
    fs::remove_file(&token_file).unwrap();
    drop(shell.commands);
    assert!(shell.child.wait().await.unwrap().success());
    compared
}

/// The run is woken: its reserved attempt gets a pod.
async fn start_next_pod(ctx: &TestContext, token_file: &std::path::Path) {
    let number = ctx.record().await.attempt.number;
    ctx.record_pod(number, &format!("pod-{number}"), Some(accepted())).await;
    fs::write(token_file, format!("token-of-pod-{number}\n")).unwrap();
}

/// The cells of a section's table, without its header.
fn rows(title: &str) -> Vec<Vec<String>> {
    let table = section(title).lines().filter(|line| line.starts_with("| `"));
    let cells =
        |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().replace('`', "")).collect();
    table.map(cells).collect()
}

#[test]
fn the_documented_codes_match_the_protocol() {
    let table: Vec<_> = rows("Refusals").into_iter().map(|row| (row[0].clone(), row[1].clone())).collect();
    let codes: Vec<_> = Code::ALL.iter().map(|code| (code.to_string(), code.status().to_string())).collect();
    assert_eq!(table, codes);
    for (row, code) in rows("Refusals").iter().zip(Code::ALL) {
        assert_eq!(row[3].starts_with("send the same bytes again"), code.is_retryable(), "{row:?}");
    }
}

#[test]
fn the_documented_limits_match_the_protocol() {
    let limits = [
        ("BODY_BYTES", Limits::BODY_BYTES as i64),
        ("ATTACH_BYTES", Limits::ATTACH_BYTES as i64),
        ("INLINE_STATE_BYTES", Limits::INLINE_STATE_BYTES as i64),
        ("STATE_BYTES", Limits::STATE_BYTES as i64),
        ("CHANNELS", Limits::CHANNELS as i64),
        ("ITEMS", Limits::ITEMS as i64),
        ("NAME_CHARS", Limits::NAME_CHARS as i64),
        ("KEY_CHARS", Limits::KEY_CHARS as i64),
        ("EVENTS", Limits::EVENTS as i64),
        ("CALLS", Limits::CALLS as i64),
        ("OPEN_CALLS_BYTES", Limits::OPEN_CALLS_BYTES as i64),
        ("SMALL_RESULT_BYTES", Limits::SMALL_RESULT_BYTES as i64),
        ("RECORDS", Limits::RECORDS as i64),
        ("PREFIX_KEYS", Limits::PREFIX_KEYS),
        ("RECORD_NAME_BYTES", Limits::RECORD_NAME_BYTES as i64),
        ("RECORD_VALUE_BYTES", Limits::RECORD_VALUE_BYTES as i64),
        ("MESSAGE_BYTES", Limits::MESSAGE_BYTES as i64),
        ("MESSAGES", Limits::MESSAGES as i64),
        ("INBOX_BYTES", Limits::INBOX_BYTES as i64),
        ("CHECKPOINT_CALLS", i64::from(Limits::CHECKPOINT_CALLS)),
        ("CHECKPOINT_CALLS_BYTES", Limits::CHECKPOINT_CALLS_BYTES as i64),
        ("DELTA_ITEMS", Limits::DELTA_ITEMS as i64),
        ("DELTA_MEMBERS", Limits::DELTA_MEMBERS as i64),
        ("PAGE", i64::from(Limits::PAGE)),
        ("PAGE_BYTES", Limits::PAGE_BYTES as i64),
        ("WAITS", Limits::WAITS as i64),
        ("OPEN_WAIT_BYTES", Limits::OPEN_WAIT_BYTES as i64),
        ("PROPOSAL_BYTES", Limits::PROPOSAL_BYTES as i64),
        ("SUMMARY_BYTES", Limits::SUMMARY_BYTES as i64),
        ("ANSWER_SCHEMA_BYTES", Limits::ANSWER_SCHEMA_BYTES as i64),
        ("WAIT_SECONDS", Limits::WAIT_SECONDS),
        ("RATE_LIMIT_SECONDS", Limits::RATE_LIMIT_SECONDS),
        ("WAIT_POLL_SECONDS", i64::from(Limits::WAIT_POLL_SECONDS)),
        ("WAIT_POLLERS", Limits::WAIT_POLLERS as i64),
        ("DEPTH", Limits::DEPTH as i64),
        ("TURNS", i64::from(Limits::TURNS)),
        ("USAGE", Limits::USAGE),
        ("FINISH_MESSAGE_BYTES", Limits::FINISH_MESSAGE_BYTES as i64),
        ("FINISH_OUTPUT_BYTES", Limits::FINISH_OUTPUT_BYTES as i64),
        ("PROCESS_BYTES", Limits::PROCESS_BYTES as i64),
        ("ANSWERS_BYTES", Limits::ANSWERS_BYTES as i64),
        ("INPUT_BYTES", Limits::INPUT_BYTES as i64),
        ("SHOWN_DEPTH", Limits::SHOWN_DEPTH as i64),
    ];
    let table: Vec<_> = rows("Limits")
        .into_iter()
        .map(|row| (row[0].clone(), row[1].replace(',', "").parse::<i64>().unwrap()))
        .collect();
    assert_eq!(table, limits.map(|(name, value)| (name.to_owned(), value)));
    assert_eq!(limits.len(), LIMITS.matches("pub const ").count(), "a limit is missing here");
}

#[test]
fn the_documented_environment_matches_the_protocol() {
    use dalsegno_protocol::env;
    let names: Vec<_> = rows("The environment").into_iter().map(|row| row[0].clone()).collect();
    let files = [env::CA_FILE, env::TOKEN_FILE, env::INPUT_FILE];
    let others = [env::RUN, env::ATTEMPT, env::TERMINATION_LOG, env::STORE_TIMEOUT_SECONDS];
    let all = [&[env::URL][..], &files, &others].concat();
    assert_eq!(names, all);
}
