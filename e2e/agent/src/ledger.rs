//! The tool: one entry in the ledger, under the call's key.

use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;

/// The ledger, and who writes to it.
#[derive(Clone)]
pub struct Ledger {
    agent: ureq::Agent,
    url: String,
    run: String,
    attempt: i32,
}

/// An entry, as the ledger answers and the call's result keeps it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Entry {
    pub key: String,
    pub turn: i32,
    pub attempt: i32,
}

impl Ledger {
    pub fn new(url: &str, run: &str, attempt: i32) -> Self {
        let config = ureq::Agent::config_builder().timeout_global(Some(Duration::from_secs(5))).proxy(None);
        Self { agent: config.build().into(), url: url.to_owned(), run: run.to_owned(), attempt }
    }

    /// Makes an entry, for as long as it takes: the ledger honours the key.
    pub fn enter(&self, key: &str, turn: i32) -> Entry {
        let entry = json!({
            "key": key, "run": self.run, "turn": turn, "attempt": self.attempt, "note": format!("turn {turn}"),
        });
        loop {
            let answer = self.agent.post(format!("{}/entries", self.url)).send_json(&entry);
            match answer.and_then(|mut answer| answer.body_mut().read_json()) {
                Ok(entry) => return entry,
                Err(error) => println!("the ledger does not answer: {error}"),
            }
            thread::sleep(Duration::from_millis(500));
        }
    }

    /// Whether a key has had its effect.
    pub fn find(&self, key: &str) -> Option<Entry> {
        loop {
            let answer = self.agent.get(format!("{}/entries", self.url)).query("run", &self.run).call();
            match answer.and_then(|mut answer| answer.body_mut().read_json::<Vec<Entry>>()) {
                Ok(entries) => return entries.into_iter().find(|entry| entry.key == key),
                Err(error) => println!("the ledger does not answer: {error}"),
            }
            thread::sleep(Duration::from_millis(500));
        }
    }

    /// Tells of a boundary that was answered, for as long as it takes: who judges the run counts on it from the next turn on.
    pub fn tell_committed(&self, turn: i32, content_hash: &str) {
        while !self.leave(&format!("committed {turn} {content_hash}")) {
            println!("the ledger does not take a note");
            thread::sleep(Duration::from_millis(500));
        }
    }

    /// Leaves a remark, if the ledger can be reached.
    pub fn note(&self, note: &str) {
        for _ in 0..5 {
            if self.leave(note) {
                return;
            }
            thread::sleep(Duration::from_millis(200));
        }
    }

    fn leave(&self, note: &str) -> bool {
        let note = json!({"run": self.run, "attempt": self.attempt, "note": note});
        self.agent.post(format!("{}/notes", self.url)).send_json(&note).is_ok()
    }
}
