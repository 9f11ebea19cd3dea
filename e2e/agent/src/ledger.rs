//! The agent's tool: it creates an entry in the ledger under the call's key.

use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;

/// A client of the ledger for one run and one attempt.
#[derive(Clone)]
pub struct Ledger {
    agent: ureq::Agent,
    url: String,
    run: String,
    attempt: i32,
}

/// An entry, as the ledger returns it and as the call's result stores it.
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

    /// Creates an entry. It retries until the ledger answers; that is safe, because the ledger honours the key.
    pub fn create_entry(&self, key: &str, turn: i32) -> Entry {
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

    /// The entry under this key, if there is one.
    pub fn find_entry(&self, key: &str) -> Option<Entry> {
        loop {
            let answer = self.agent.get(format!("{}/entries", self.url)).query("run", &self.run).call();
            match answer.and_then(|mut answer| answer.body_mut().read_json::<Vec<Entry>>()) {
                Ok(entries) => return entries.into_iter().find(|entry| entry.key == key),
                Err(error) => println!("the ledger does not answer: {error}"),
            }
            thread::sleep(Duration::from_millis(500));
        }
    }

    /// Notes a boundary that the gateway has acknowledged. It retries until the ledger answers, because the tests rely
    /// on the note from the next turn on.
    pub fn note_committed(&self, turn: i32, content_hash: &str) {
        while !self.post_note(&format!("committed {turn} {content_hash}")) {
            println!("the ledger does not accept the note");
            thread::sleep(Duration::from_millis(500));
        }
    }

    /// Adds a note. It gives up after five tries.
    pub fn note(&self, note: &str) {
        for _ in 0..5 {
            if self.post_note(note) {
                return;
            }
            thread::sleep(Duration::from_millis(200));
        }
    }

    fn post_note(&self, note: &str) -> bool {
        let note = json!({"run": self.run, "attempt": self.attempt, "note": note});
        self.agent.post(format!("{}/notes", self.url)).send_json(&note).is_ok()
    }
}
