//! An example agent. It writes a field guide, one note per turn, and its run outlives its pods.
//!
//! A turn is plan → tool call → result. The plan is committed before the tool runs: if the pod dies in between, the
//! next pod does not ask the model again. The tool writes to the ledger under the call's key: a note that is sent twice
//! is stored once. The input: `{"goal", "turns", "turnSeconds", "ledger"}`.

use std::thread;
use std::time::Duration;

use anyhow::Context;
use dalsegno_sdk::{Commit, Finish, Policy, Run, ToolCall, ToolError, Usage, succeeded};
use serde::{Deserialize, Serialize};
use serde_json::json;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Input {
    goal: String,
    #[serde(default = "twenty")]
    turns: i32,
    #[serde(default = "one")]
    turn_seconds: f64,
    ledger: String,
}

fn twenty() -> i32 {
    20
}

fn one() -> f64 {
    1.0
}

/// Everything that the next attempt needs. Anything else is lost with the pod.
#[derive(Serialize, Deserialize)]
struct State {
    messages: Vec<Message>,
    notes: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct Message {
    role: Role,
    content: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Role {
    User,
    Assistant,
    Tool,
}

impl State {
    fn new(goal: &str) -> Self {
        let mut state = Self { messages: Vec::new(), notes: Vec::new() };
        state.add_message(Role::User, goal.to_owned());
        state
    }

    fn add_message(&mut self, role: Role, content: String) {
        self.messages.push(Message { role, content });
    }
}

const BIRDS: [&str; 7] =
    ["arctic tern", "barn swallow", "crane", "curlew", "osprey", "redstart", "white stork"];
const FACTS: [&str; 3] = ["how it finds its way", "where it winters", "what it eats on the way"];

/// A stand-in for a model: the same state always gives the same plan, after some seconds.
fn make_plan(state: &State, seconds: f64) -> (String, Usage) {
    thread::sleep(Duration::from_secs_f64(seconds));
    let done = state.notes.len();
    let prompt_bytes = state.messages.iter().map(|message| message.content.len()).sum::<usize>();
    let plan = format!("{}: {}", BIRDS[done % BIRDS.len()], FACTS[done / BIRDS.len() % FACTS.len()]);
    let usage =
        Usage { tokens_in: prompt_bytes as i64 / 4, tokens_out: plan.len() as i64 / 4, ..Usage::default() };
    (plan, usage)
}

/// Writes one note to the ledger. A retry is safe, because the ledger honours the key.
fn write_note(run: &Run, ledger: &str, key: &str, note: &str) -> Result<i32, ToolError> {
    let entry = json!({
        "key": key, "run": run.name(), "turn": run.turn(), "attempt": run.attempt(), "note": note,
    });
    let mut tries = 1..=5;
    loop {
        match (ureq::post(format!("{ledger}/entries")).send_json(&entry), tries.next()) {
            (Ok(_), _) => return Ok(run.turn()),
            (Err(error), None) => return Err(error.into()),
            (Err(_), Some(nth)) => thread::sleep(Duration::from_secs(nth)),
        }
    }
}

fn main() -> anyhow::Result<()> {
    let mut run = Run::attach().context("attaching")?;
    for warning in run.warnings() {
        println!("warning {}: {}", warning.code, warning.message);
    }
    let input: Input = run.input()?;
    let mut state: State = run.state()?.unwrap_or_else(|| State::new(&input.goal));
    println!("attempt {} continues at turn {} of {}", run.attempt(), run.turn(), input.turns);

    while run.turn() <= input.turns {
        run.check()?;
        let turn = run.turn();
        let id = format!("note-{turn}");
        let tool_call = ToolCall::new(&id, Policy::RetrySameKey);
        if !run.planned() {
            let (plan, usage) = make_plan(&state, input.turn_seconds);
            state.add_message(Role::Assistant, plan.clone());
            let commit = Commit::plan(turn).state(&state)?.usage(usage);
            run.commit(commit.call(tool_call, &plan)?.event(&json!({"plan": plan}))?)?;
        }
        let plan = state.messages.last().map(|message| message.content.clone()).unwrap_or_default();
        let tool = |key: &str, note: String| write_note(&run, &input.ledger, key, &note);
        let entry = run.call(tool_call, plan.clone(), tool)?;
        state.add_message(Role::Tool, format!("written as note {entry}"));
        state.notes.push(plan);

        let usage = Usage { tool_calls: 1, ..Usage::default() };
        let mut commit = Commit::new(turn).state(&state)?.usage(usage);
        if turn == input.turns {
            commit = commit.finish(Finish {
                reason: Some("GoalReached".into()),
                message: Some(format!("{turn} notes are written")),
                output: Some(serde_json::value::to_raw_value(&json!({"notes": turn}))?),
                ..succeeded()
            });
        }
        run.commit(commit)?;
        println!("turn {turn} of {}: {}", input.turns, state.notes.last().map_or("", String::as_str));
    }
    Ok(())
}
