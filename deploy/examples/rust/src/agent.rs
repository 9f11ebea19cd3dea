//! An example agent. It writes a field guide, one note per turn, and its run outlives its pods.
//!
//! A turn asks the model in a step and writes the note by a tool. If the pod dies in between, the next pod replays the
//! turn: the step returns its stored answer, so the model is not asked again. The tool writes to the ledger under the
//! call's key: a note that is sent twice is stored once. The input: `{"goal", "turns", "turnSeconds", "ledger"}`.

use std::thread;
use std::time::Duration;

use anyhow::Context;
use dalsegno_sdk::{Agent, Finish, Policy, Tool, ToolError, Usage, succeeded};
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
#[derive(Default, Serialize, Deserialize)]
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
struct WriteNote {
    ledger: String,
    run: String,
    attempt: i32,
}

#[derive(Serialize, Deserialize)]
struct Note {
    turn: i32,
    text: String,
}

impl Tool for WriteNote {
    const NAME: &'static str = "write_note";
    const POLICY: Policy = Policy::RetrySameKey;
    type Arguments = Note;
    type Output = i32;

    fn run(&self, key: &str, Note { turn, text }: &Note) -> Result<i32, ToolError> {
        let Self { ledger, run, attempt } = self;
        let entry = json!({ "key": key, "run": run, "turn": turn, "attempt": attempt, "note": text });
        let mut tries = 1..=5;
        loop {
            match (ureq::post(format!("{ledger}/entries")).send_json(&entry), tries.next()) {
                (Ok(_), _) => return Ok(*turn),
                (Err(error), None) => return Err(error.into()),
                (Err(_), Some(nth)) => thread::sleep(Duration::from_secs(nth)),
            }
        }
    }
}

/// How the run ends.
fn goal_reached(notes: i32) -> serde_json::Result<Finish> {
    Ok(Finish {
        reason: Some("GoalReached".into()),
        message: Some(format!("{notes} notes are written")),
        output: Some(serde_json::value::to_raw_value(&json!({ "notes": notes }))?),
        ..succeeded()
    })
}

fn main() -> anyhow::Result<()> {
    let mut agent = Agent::<State>::attach().context("attaching")?;
    let run = agent.run();
    for warning in run.warnings() {
        println!("warning {}: {}", warning.code, warning.message);
    }
    let Input { goal, turns, turn_seconds, ledger } = run.input()?;
    let write_note = WriteNote { ledger, run: run.name().to_owned(), attempt: run.attempt() };
    println!("attempt {} continues at turn {} of {turns}", run.attempt(), agent.next_turn());

    while agent.next_turn() <= turns {
        let mut turn = agent.turn()?;
        let number = turn.number();
        if turn.state.messages.is_empty() {
            turn.state.add_message(Role::User, goal.clone());
        }
        let (plan, usage) = turn.step("plan", || Ok(make_plan(&turn.state, turn_seconds)))?;
        turn.event(&json!({ "plan": plan }))?;
        turn.spent(Usage { tool_calls: 1, ..usage });
        let entry = turn.call(&write_note, Note { turn: number, text: plan.clone() })?;

        turn.state.add_message(Role::Assistant, plan.clone());
        turn.state.add_message(Role::Tool, format!("written as note {entry}"));
        turn.state.notes.push(plan.clone());
        if number == turns {
            turn.finish(goal_reached(number)?);
        }
        turn.commit()?;
        println!("turn {number} of {turns}: {plan}");
    }
    Ok(())
}
