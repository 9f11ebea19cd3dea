//! The agent's state: one entry per turn, so that a lost or repeated turn is found at once.

use anyhow::Context;
use dalsegno_sdk::{Class, Commit, Message, RecordChanges, Run, terminate};
use serde::{Deserialize, Serialize};

use crate::input::Input;
use crate::ledger::Entry;

/// The space of the records that each turn writes.
const RECORDS: &str = "e2e";

/// The list channel of the turns, if the state is committed by channels.
const TURNS: &str = "turns";
/// The value channel of the padding.
const PAD: &str = "pad";

/// The state and the way it is committed: by channels or as a whole.
pub struct State {
    channels: bool,
    content: Content,
}

#[derive(Default, Serialize, Deserialize)]
struct Content {
    turns: Vec<Entry>,
    pad: String,
    /// The ids of the messages that were taken.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    messages: Vec<String>,
}

impl State {
    /// Reads the state that the last attempt committed. Ends the attempt as fatal if a turn is missing or occurs twice.
    pub fn resume(run: &Run, channels: bool) -> anyhow::Result<Self> {
        let content = if channels {
            Content {
                turns: run.list(TURNS)?,
                pad: run.value(PAD)?.unwrap_or_default(),
                messages: Vec::new(),
            }
        } else {
            run.state()?.unwrap_or_default()
        };
        let turns: Vec<i32> = content.turns.iter().map(|entry| entry.turn).collect();
        if !turns.iter().copied().eq(1..run.turn()) {
            terminate(
                Class::Fatal,
                &format!("turn {} is next, and the state has turns {turns:?}", run.turn()),
            );
        }
        Ok(Self { channels, content })
    }

    /// Adds messages that the next commit takes.
    pub fn take(&mut self, messages: &[Message]) {
        self.content.messages.extend(messages.iter().map(|message| message.id.clone()));
    }

    /// The ids of the messages that were taken, in that order.
    pub fn messages(&self) -> &[String] {
        &self.content.messages
    }

    /// The commit of a turn with this entry, padded as the input says.
    pub fn commit(&mut self, turn: i32, entry: Entry, input: &Input) -> anyhow::Result<Commit> {
        // With `oneCall` the entry is from turn 1.
        let entry = Entry { turn, ..entry };
        self.content.turns.push(entry.clone());
        let padded = self.content.pad.len() == input.state_bytes;
        let filling = if input.secret.is_empty() { "0123456789abcdef" } else { &*input.secret };
        self.content.pad = filling.chars().cycle().take(input.state_bytes).collect();
        let commit = Commit::new(turn);
        let commit = match (self.channels, padded) {
            (false, _) => commit.state(&self.content),
            (true, true) => commit.append(TURNS, &entry),
            (true, false) => {
                commit.append(TURNS, &entry).and_then(|commit| commit.set(PAD, &self.content.pad))
            }
        };
        let mut commit = commit.context("building the commit")?;
        if input.record_bytes > 0 {
            let value: String = filling.chars().cycle().take(input.record_bytes).collect();
            let changes = RecordChanges::new().put(RECORDS, &format!("turn-{turn}"), &value)?;
            commit = commit.records(changes.append(RECORDS, "turns", &turn.to_string(), &turn)?);
        }
        Ok(commit)
    }
}
