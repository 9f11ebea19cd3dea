//! A plain client: one keep-alive connection, one request after the other.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use dalsegno_model::RunId;
use serde_json::Value;

/// Instance of the worker.
pub const INSTANCE: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

/// A worker of one run, on one connection.
pub struct Worker {
    /// Its run.
    pub run: RunId,
    stream: TcpStream,
    turn: i32,
    /// The current request, then its answer.
    buffer: Vec<u8>,
}

/// An answer of the gateway.
#[derive(Debug)]
pub struct Answer {
    status: u16,
    body: String,
}

impl Answer {
    /// `ok` or `duplicate`, or the code of the problem.
    pub fn result(&self) -> String {
        let body: Value = serde_json::from_str(&self.body).unwrap();
        let word = if self.status == 200 { &body["result"] } else { &body["code"] };
        word.as_str().unwrap_or_default().to_owned()
    }
}

impl Worker {
    /// Connects as the worker of this run, which has no committed turn.
    pub fn connect(gateway: SocketAddr, run: RunId) -> Self {
        let stream = TcpStream::connect(gateway).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { run, stream, turn: 0, buffer: Vec::new() }
    }

    /// Attaches with the token of this pod.
    pub fn attach(&mut self, pod: &str) {
        let body = format!(r#"{{"instance":"{INSTANCE}"}}"#);
        let answer = self.post("attach", pod, body.as_bytes());
        assert_eq!(answer.status, 200, "{answer:?}");
    }

    /// Commits the next turn.
    pub fn commit(&mut self, body: &[u8]) -> Answer {
        self.turn += 1;
        self.post(&format!("turns/{}", self.turn), INSTANCE, body)
    }

    fn post(&mut self, path: &str, bearer: &str, body: &[u8]) -> Answer {
        self.buffer.clear();
        let (run, length) = (self.run, body.len());
        write!(
            self.buffer,
            "POST /v1/runs/{run}/{path} HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {bearer}\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        )
        .unwrap();
        self.buffer.extend_from_slice(body);
        self.stream.write_all(&self.buffer).unwrap();
        self.answer()
    }

    fn answer(&mut self) -> Answer {
        self.buffer.clear();
        let body_at = loop {
            self.read_more();
            if let Some(end) = self.buffer.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                break end + 4;
            }
        };
        let head = std::str::from_utf8(&self.buffer[..body_at]).unwrap().to_ascii_lowercase();
        let status = head[9..12].parse().unwrap();
        let length = head.split("content-length: ").nth(1).and_then(|rest| rest.split('\r').next());
        let length: usize = length.unwrap().parse().unwrap();
        while self.buffer.len() < body_at + length {
            self.read_more();
        }
        Answer { status, body: String::from_utf8(self.buffer[body_at..].to_vec()).unwrap() }
    }

    fn read_more(&mut self) {
        let mut chunk = [0; 4096];
        let count = self.stream.read(&mut chunk).unwrap();
        assert!(count > 0, "the gateway has closed the connection");
        self.buffer.extend_from_slice(&chunk[..count]);
    }
}
