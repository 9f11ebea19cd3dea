//! States as agents send them, and the bytes that are kept of them.

use dalsegno_store::codec;
use uuid::Uuid;

/// What people and models say to each other; enough of it that no two messages are alike.
const WORDS: [&str; 48] = [
    "the",
    "invoice",
    "from",
    "vendor",
    "does",
    "not",
    "match",
    "order",
    "because",
    "quantity",
    "was",
    "changed",
    "after",
    "approval",
    "please",
    "check",
    "whether",
    "shipment",
    "arrived",
    "before",
    "Friday",
    "and",
    "ask",
    "warehouse",
    "for",
    "signed",
    "note",
    "if",
    "total",
    "is",
    "above",
    "limit",
    "then",
    "send",
    "summary",
    "to",
    "finance",
    "with",
    "all",
    "line",
    "items",
    "attached",
    "search",
    "again",
    "customer",
    "refund",
    "status",
    "pending",
];

/// A plain generator of numbers: the same states in every run of the bench.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// A conversation of `size` bytes as one JSON value; another one each round.
pub fn state(size: usize, round: usize) -> String {
    let mut numbers = Numbers(0x9E37_79B9_7F4A_7C15 ^ (round as u64 + 1));
    let mut text = format!(r#"{{"step":{round},"messages":["#);
    while text.len() + 200 < size {
        let (id, words) = (numbers.next(), 12 + numbers.next() % 40);
        text.push_str(&format!(r#"{{"id":"msg_{id:016x}","role":"assistant","content":""#));
        for _ in 0..words {
            text.push_str(WORDS[numbers.next() as usize % WORDS.len()]);
            text.push(' ');
        }
        text.push_str(r#""},"#);
    }
    text.push_str(r#"{"role":"user","content":""#);
    let end = r#""}]}"#;
    while text.len() + end.len() < size {
        text.push(char::from(b'a' + (numbers.next() % 26) as u8));
    }
    text + end
}

/// The body of the commit of this round: the same bytes however often it is made.
pub fn commit(round: usize, state: &str) -> Vec<u8> {
    let (id, channels) = (Uuid::from_u128(round as u128 + 1), channels(state));
    format!(r#"{{"commitId":"{id}","channels":{channels}}}"#).into_bytes()
}

/// What the store keeps of it.
pub fn kept(state: &str) -> Vec<u8> {
    codec::encode(channels(state).as_bytes())
}

/// All of the state in one channel. A whole `state` would be kept as a patch of the one before, and how small that is
/// says nothing of these states, which have nothing in common.
fn channels(state: &str) -> String {
    format!(r#"{{"set":{{"state":{{"json":{state}}}}}}}"#)
}
