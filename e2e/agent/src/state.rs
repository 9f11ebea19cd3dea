//! What the agent remembers: one line for each turn, so that a turn that was lost or came twice is seen at once.

use anyhow::Context;
use dalsegno_sdk::{Class, Commit, Run, terminate};
use serde::{Deserialize, Serialize};

use crate::input::Input;
use crate::ledger::Entry;

/// The list channel, where the state goes by channels.
const TURNS: &str = "turns";
/// The channel of the padding.
const PAD: &str = "pad";

/// The state, and how it is committed.
pub struct State {
    channels: bool,
    whole: Whole,
}

#[derive(Default, Serialize, Deserialize)]
struct Whole {
    turns: Vec<Entry>,
    pad: String,
}

impl State {
    /// What the last attempt left. Ends the attempt as fatal where that is not every turn before the next one.
    pub fn resume(run: &Run, channels: bool) -> anyhow::Result<Self> {
        let whole = if channels {
            Whole { turns: run.list(TURNS)?, pad: run.value(PAD)?.unwrap_or_default() }
        } else {
            run.state()?.unwrap_or_default()
        };
        let turns: Vec<i32> = whole.turns.iter().map(|entry| entry.turn).collect();
        if !turns.iter().copied().eq(1..run.turn()) {
            terminate(
                Class::Fatal,
                &format!("turn {} is next, and the state has turns {turns:?}", run.turn()),
            );
        }
        Ok(Self { channels, whole })
    }

    /// The commit of a turn with this entry, padded as the input says.
    pub fn commit(&mut self, turn: i32, entry: Entry, input: &Input) -> anyhow::Result<Commit> {
        // A call that all turns share was made in the first.
        let entry = Entry { turn, ..entry };
        self.whole.turns.push(entry.clone());
        let padded = self.whole.pad.len() == input.state_bytes;
        let filling = if input.secret.is_empty() { "0123456789abcdef" } else { &*input.secret };
        self.whole.pad = filling.chars().cycle().take(input.state_bytes).collect();
        let commit = Commit::new(turn);
        let commit = match (self.channels, padded) {
            (false, _) => commit.state(&self.whole),
            (true, true) => commit.append(TURNS, &entry),
            (true, false) => commit.append(TURNS, &entry).and_then(|commit| commit.set(PAD, &self.whole.pad)),
        };
        commit.context("putting the commit together")
    }
}
