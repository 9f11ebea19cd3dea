//! The outside world of the example agent: it writes down under which key it was asked for what.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::Value;

/// A ledger that honours keys, as long as the test lasts, and loses its first answer.
pub struct Ledger {
    pub url: String,
    turns: Arc<Mutex<HashMap<String, i64>>>,
}

impl Ledger {
    pub fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let turns = Arc::new(Mutex::new(HashMap::new()));
        let book = turns.clone();
        thread::spawn(move || {
            for asked in listener.incoming().map_while(Result::ok) {
                // Whoever asks may be killed before all has come.
                let _ = answer(asked, &book);
            }
        });
        Self { url, turns }
    }

    /// The turns of its entries, of which each key has one.
    pub fn turns(&self) -> Vec<i64> {
        let mut turns: Vec<_> = self.turns.lock().unwrap().values().copied().collect();
        turns.sort();
        turns
    }
}

fn answer(asked: TcpStream, book: &Mutex<HashMap<String, i64>>) -> Option<()> {
    let mut asked = BufReader::new(asked);
    let mut length = 0;
    loop {
        let mut line = String::new();
        asked.read_line(&mut line).ok()?;
        match line.trim_end().split_once(": ") {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.parse().ok()?
            }
            None if line.trim_end().is_empty() => break,
            _ => {}
        }
    }
    let mut body = vec![0; length];
    asked.read_exact(&mut body).ok()?;
    let entry: Value = serde_json::from_slice(&body).ok()?;
    let mut book = book.lock().unwrap();
    let is_first = book.is_empty();
    book.insert(entry["key"].as_str()?.to_owned(), entry["turn"].as_i64()?);
    if is_first {
        return None;
    }
    let answer = "HTTP/1.1 201 Created\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
    asked.into_inner().write_all(answer.as_bytes()).ok()
}
