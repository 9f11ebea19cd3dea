//! The agent of the stories: it does what its input says, also the worst. The README tells the words of the input.

mod act;
mod input;
mod ledger;
mod lossy;
mod process;
mod state;

use std::time::Duration;
use std::{env, thread};

use anyhow::Context;
use dalsegno_sdk::{CallOutcome, Code, CommitResult, Error, Finish, Problem, Run, succeeded};

use crate::input::{At, Input, OnTerm};
use crate::ledger::{Entry, Ledger};
use crate::lossy::Lossy;
use crate::state::State;

fn main() -> anyhow::Result<()> {
    let input = Input::read()?;
    match input.freeze() {
        Some(time) if !process::is_child() => process::run_frozen(time, input.on_term),
        _ => work(input),
    }
}

fn work(input: Input) -> anyhow::Result<()> {
    process::handle_sigterm(input.on_term)?;
    let attempt: i32 = var(dalsegno_sdk::env::ATTEMPT)?.parse().context(dalsegno_sdk::env::ATTEMPT)?;
    if input.never_attach {
        input.acts(attempt, 1, At::Start).for_each(|act| act::act(act, None));
        loop {
            thread::sleep(Duration::from_secs(3600));
        }
    }
    let ledger = Ledger::new(&input.ledger, &var(dalsegno_sdk::env::RUN)?, attempt);
    let lossy =
        if input.loses_answers() { Some(Lossy::before(&var(dalsegno_sdk::env::URL)?)?) } else { None };

    let witness = ledger.clone();
    let mut attach = Run::builder()
        .heartbeat(input.heartbeat)
        .sigterm(input.on_term == OnTerm::Commit)
        .on_over(move |problem| leave(problem, &witness));
    if let Some(lossy) = &lossy {
        attach = attach.env(dalsegno_sdk::env::URL, lossy.url());
    }
    let run = attach.attach().context("attaching")?;
    println!("attached attempt={} turn={} decision={:?}", run.attempt(), run.turn(), run.decision());
    Agent { input, ledger, lossy, run }.play()
}

fn var(name: &str) -> anyhow::Result<String> {
    env::var(name).with_context(|| name.to_owned())
}

/// Says that nothing more is accepted, where the stories look for it, and exits.
fn leave(problem: &Problem, ledger: &Ledger) {
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
    lossy: Option<Lossy>,
    run: Run,
}

impl Agent {
    fn play(mut self) -> anyhow::Result<()> {
        let mut state = State::resume(&self.run, self.input.channels)?;
        let mut finished = false;
        while self.run.turn() <= self.input.turns {
            let turn = self.run.turn();
            self.heed()?;
            self.reach(At::Start, turn);
            thread::sleep(Duration::from_secs_f64(self.input.turn_seconds));
            let entry = self.call(turn)?;
            self.reach(At::AfterCall, turn);

            let mut commit = state.commit(turn, entry, &self.input)?;
            if turn == self.input.turns && !self.input.finish_separately {
                commit = commit.finish(self.end());
                finished = true;
            }
            self.reach(At::BeforeCommit, turn);
            let answer = self.run.commit(commit)?;
            let head = answer.head.context("an answer to a boundary without a head")?;
            self.ledger.tell_committed(turn, &head.content_hash);
            let repeated =
                if answer.result == CommitResult::Duplicate { " (its answer had been lost)" } else { "" };
            println!("turn {turn} committed attempt={}{repeated}", self.run.attempt());
            self.reach(At::AfterCommit, turn);
        }
        if !finished {
            self.run.finish(self.end())?;
        }
        self.reach(At::AfterFinish, self.input.turns);
        Ok(())
    }

    /// Listens to people and to SIGTERM, as far as the input lets it.
    fn heed(&self) -> anyhow::Result<()> {
        if self.run.cancelled() && !self.input.ignore_cancel {
            self.run.acknowledge_cancel()?;
            println!("cancelled");
            std::process::exit(0);
        }
        if self.run.stopping() {
            std::process::exit(143);
        }
        Ok(())
    }

    /// Does what the script says here.
    fn reach(&self, at: At, turn: i32) {
        for act in self.input.acts(self.run.attempt(), turn, at) {
            act::act(act, self.lossy.as_ref());
        }
    }

    /// The turn's call; where it was settled as failed, another one in its place.
    fn call(&self, turn: i32) -> anyhow::Result<Entry> {
        let name = if self.input.one_call { "the-call".to_owned() } else { format!("turn-{turn}") };
        for number in 1.. {
            let id = if number == 1 { name.clone() } else { format!("{name}-{number}") };
            let secret = Some(&*self.input.secret).filter(|secret| !secret.is_empty());
            let key = secret.map(|secret| format!("{secret}-{}", self.run.key(&id)));
            let arguments = (turn, self.input.secret.clone());
            let tool = |key: &str, (turn, _): (i32, String)| {
                self.reach(At::AfterClaim, turn);
                let entry = self.ledger.enter(key, turn);
                self.reach(At::AfterTool, turn);
                Ok(entry)
            };
            match self.run.call(&id, self.input.call_policy, key.as_deref(), arguments, tool) {
                Ok(entry) => return Ok(entry),
                Err(Error::CallFailed { .. }) => {}
                Err(Error::Uncertain(call)) => match self.ledger.find(&call.key) {
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

    fn end(&self) -> Finish {
        Finish { outcome: self.input.finish_outcome, reason: Some("Played".to_owned()), ..succeeded() }
    }
}
