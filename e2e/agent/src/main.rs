//! The scripted test agent. Its input says what it does, faults included; the README describes the fields.

mod action;
mod input;
mod ledger;
mod lossy_proxy;
mod process;
mod state;

use std::time::Duration;
use std::{env, thread};

use anyhow::Context;
use dalsegno_sdk::{
    CallOutcome, Code, Commit, CommitResult, Error, Finish, ParkMode, Problem, Run, ToolCall, WaitState,
    succeeded,
};

use crate::input::{Input, OnTerm, TurnPoint};
use crate::ledger::{Entry, Ledger};
use crate::lossy_proxy::LossyProxy;
use crate::state::State;

/// The topic of the message that lets the agent finish.
const FINISH: &str = "finish";

fn main() -> anyhow::Result<()> {
    let input = Input::read()?;
    match input.freeze_time() {
        Some(time) if !process::is_child() => process::run_frozen(time, input.on_term),
        _ => work(input),
    }
}

fn work(input: Input) -> anyhow::Result<()> {
    process::handle_sigterm(input.on_term)?;
    let attempt: i32 = var(dalsegno_sdk::env::ATTEMPT)?.parse().context(dalsegno_sdk::env::ATTEMPT)?;
    if input.never_attach {
        input.actions(attempt, 1, TurnPoint::Start).for_each(|action| action::perform(action, None));
        loop {
            thread::sleep(Duration::from_secs(3600));
        }
    }
    let ledger = Ledger::new(&input.ledger, &var(dalsegno_sdk::env::RUN)?, attempt);
    let proxy = if input.loses_answers() {
        let ca_file = env::var(dalsegno_sdk::env::CA_FILE).ok();
        Some(LossyProxy::start(&var(dalsegno_sdk::env::URL)?, ca_file)?)
    } else {
        None
    };

    let hook_ledger = ledger.clone();
    let mut attach = Run::builder()
        .heartbeat(input.heartbeat)
        .sigterm(input.on_term == OnTerm::Commit)
        .on_ended(move |problem| exit_with_note(problem, &hook_ledger));
    if let Some(proxy) = &proxy {
        attach = attach.env(dalsegno_sdk::env::URL, proxy.url());
    }
    let run = attach.attach().context("attaching")?;
    println!("attached attempt={} turn={} decision={:?}", run.attempt(), run.turn(), run.decision());
    Agent { input, ledger, proxy, run }.run_turns()
}

fn var(name: &str) -> anyhow::Result<String> {
    env::var(name).with_context(|| name.to_owned())
}

/// Logs the code and notes it in the ledger, where the tests look for it, and exits.
fn exit_with_note(problem: &Problem, ledger: &Ledger) {
    println!("{}", problem.code);
    ledger.note(&problem.code.to_string().to_lowercase());
    std::process::exit(match problem.code {
        Code::Fenced | Code::Finished => 0,
        _ => 1,
    })
}

struct Agent {
    input: Input,
    ledger: Ledger,
    proxy: Option<LossyProxy>,
    run: Run,
}

impl Agent {
    fn run_turns(mut self) -> anyhow::Result<()> {
        let mut state = State::resume(&self.run, self.input.channels)?;
        let mut finished = false;
        while self.run.turn() <= self.input.turns {
            let turn = self.run.turn();
            self.handle_signals()?;
            self.wait_after(turn - 1)?;
            self.perform_actions(TurnPoint::Start, turn);
            thread::sleep(Duration::from_secs_f64(self.input.turn_seconds));
            let entry = self.call(turn)?;
            self.perform_actions(TurnPoint::AfterCall, turn);

            let messages = if self.input.messages { self.run.read_inbox()? } else { Vec::new() };
            state.take(&messages);
            let mut commit = state.commit(turn, entry, &self.input)?.take(&messages);
            let is_last =
                turn == self.input.turns || messages.iter().any(|it| it.topic.as_deref() == Some(FINISH));
            if is_last && !self.input.finish_separately {
                commit = commit.finish(self.finish());
                finished = true;
            }
            self.perform_actions(TurnPoint::BeforeCommit, turn);
            if !finished {
                commit = self.park_with(commit, turn)?;
            }
            let answer = self.run.commit(commit)?;
            let head = answer.head.context("the answer to a commit has no head")?;
            self.ledger.note_committed(turn, &head.content_hash);
            let repeated =
                if answer.result == CommitResult::Duplicate { " (the answer had been lost)" } else { "" };
            println!("turn {turn} committed attempt={}{repeated}", self.run.attempt());
            self.perform_actions(TurnPoint::AfterCommit, turn);
            if finished {
                break;
            }
        }
        if self.input.messages {
            self.ledger.note(&format!("messages {}", state.messages().join(" ")));
        }
        if !finished {
            self.run.finish(self.finish())?;
        }
        self.perform_actions(TurnPoint::AfterFinish, self.input.turns);
        Ok(())
    }

    /// Exits on a cancel, a suspend, a limit or SIGTERM, unless the input says otherwise.
    fn handle_signals(&self) -> anyhow::Result<()> {
        if self.run.cancelled() && !self.input.ignore_cancel {
            self.run.acknowledge_cancel()?;
            println!("cancelled");
            std::process::exit(0);
        }
        if self.run.suspending() && !self.input.ignore_suspend && self.park()? {
            println!("parked");
            std::process::exit(0);
        }
        if self.run.at_limit() && !self.input.ignore_limit {
            println!("at a limit");
            std::process::exit(0);
        }
        if self.run.stopping() {
            std::process::exit(143);
        }
        Ok(())
    }

    /// Parks, unless a call of an earlier attempt is unsettled: the next turn makes or settles it.
    fn park(&self) -> anyhow::Result<bool> {
        match self.run.park() {
            Err(Error::Refused { problem, .. }) if problem.code == Code::UnsettledCalls => Ok(false),
            parked => parked.context("parking"),
        }
    }

    /// Waits for the answers to the waits after this turn, without a pod while they are open.
    fn wait_after(&self, turn: i32) -> anyhow::Result<()> {
        for (id, entry) in self.input.waits_after(turn) {
            let answer = self.run.wait_for(&id, &entry.wait()?).with_context(|| id.clone())?;
            println!("wait {id}: {answer:?}");
            self.ledger.note(&format!("answered {id} {:?}", answer.outcome));
        }
        Ok(())
    }

    /// Opens the turn's waits with `inCommit`, and lets its commit park on them.
    fn park_with(&self, commit: Commit, turn: i32) -> anyhow::Result<Commit> {
        let mut open = Vec::new();
        for (id, entry) in self.input.waits_after(turn).filter(|(_, entry)| entry.in_commit) {
            if self.run.wait(&id, &entry.wait()?)?.state == WaitState::Open {
                open.push(id);
            }
        }
        let open: Vec<&str> = open.iter().map(String::as_str).collect();
        Ok(if open.is_empty() { commit } else { commit.park(&open, ParkMode::All) })
    }

    /// Performs the script's actions for this point of the turn.
    fn perform_actions(&self, at: TurnPoint, turn: i32) {
        for action in self.input.actions(self.run.attempt(), turn, at) {
            action::perform(action, self.proxy.as_ref());
        }
    }

    /// Makes the turn's call. If the call was settled as failed, makes another one instead.
    fn call(&self, turn: i32) -> anyhow::Result<Entry> {
        let name = if self.input.one_call { "the-call".to_owned() } else { format!("turn-{turn}") };
        for number in 1.. {
            let id = if number == 1 { name.clone() } else { format!("{name}-{number}") };
            let secret = Some(&*self.input.secret).filter(|secret| !secret.is_empty());
            let key = secret.map(|secret| format!("{secret}-{}", self.run.key(&id)));
            let arguments = (turn, self.input.secret.clone());
            let tool = |key: &str, (turn, _): (i32, String)| {
                self.perform_actions(TurnPoint::AfterClaim, turn);
                let entry = self.ledger.create_entry(key, turn);
                self.perform_actions(TurnPoint::AfterTool, turn);
                Ok(entry)
            };
            let mut tool_call = ToolCall::new(&id, self.input.call_policy);
            if let Some(key) = &key {
                tool_call = tool_call.key(key);
            }
            match self.run.call(tool_call, arguments, tool) {
                Ok(entry) => return Ok(entry),
                Err(Error::CallFailed { .. }) => {}
                Err(Error::Uncertain(call)) => match self.ledger.find_entry(&call.key) {
                    Some(entry) => {
                        self.run.settle(&id, CallOutcome::Completed, &entry, "its key is in the ledger")?;
                        return Ok(entry);
                    }
                    None => self.run.settle(&id, CallOutcome::Failed, &(), "its key is not in the ledger")?,
                },
                Err(error) => return Err(error).context(id),
            }
        }
        unreachable!("there is always another number")
    }

    fn finish(&self) -> Finish {
        Finish { outcome: self.input.finish_outcome, reason: Some("Played".to_owned()), ..succeeded() }
    }
}
