//! The external system of the example agents: a ledger that honours idempotency keys.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::Value;

/// A ledger that drops its first response. It serves until the test ends.
pub struct Ledger {
    pub url: String,
    turns: Arc<Mutex<HashMap<String, i64>>>,
}

impl Ledger {
    pub fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let turns = Arc::new(Mutex::new(HashMap::new()));
        let entries = turns.clone();
        thread::spawn(move || {
            for request in listener.incoming().map_while(Result::ok) {
                // The client may be killed before its request is complete.
                let _ = handle(request, &entries);
            }
        });
        Self { url, turns }
    }

    /// The turns of all entries, one per key.
    pub fn turns(&self) -> Vec<i64> {
        let mut turns: Vec<_> = self.turns.lock().unwrap().values().copied().collect();
        turns.sort();
        turns
    }
}

fn handle(request: TcpStream, entries: &Mutex<HashMap<String, i64>>) -> Option<()> {
    let mut request = BufReader::new(request);
    let mut length = 0;
    loop {
        let mut line = String::new();
        request.read_line(&mut line).ok()?;
        match line.trim_end().split_once(": ") {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.parse().ok()?
            }
            None if line.trim_end().is_empty() => break,
            _ => {}
        }
    }
    let mut body = vec![0; length];
    request.read_exact(&mut body).ok()?;
    let entry: Value = serde_json::from_slice(&body).ok()?;
    let mut entries = entries.lock().unwrap();
    let is_first = entries.is_empty();
    entries.insert(entry["key"].as_str()?.to_owned(), entry["turn"].as_i64()?);
    if is_first {
        return None;
    }
    let response = "HTTP/1.1 201 Created\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
    request.into_inner().write_all(response.as_bytes()).ok()
}
