//! States like those that agents send, and the bytes stored for them.

use dalsegno_format::codec;
use uuid::Uuid;

/// Words of the messages. Enough that no two messages are equal.
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

/// A pseudo-random generator: every run of the bench has the same states.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// A conversation of `size` bytes as one JSON value; a different one for each round.
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

/// The body of this round's commit. The same round always gives the same bytes.
pub fn commit(round: usize, state: &str) -> Vec<u8> {
    let (id, channels) = (Uuid::from_u128(round as u128 + 1), channels(state));
    format!(r#"{{"commitId":"{id}","channels":{channels}}}"#).into_bytes()
}

/// The bytes that the store keeps of this state.
pub fn kept(state: &str) -> Vec<u8> {
    codec::encode(channels(state).as_bytes())
}

/// The state as one channel. A full `state` would be stored as a delta to the one before, and the size of that delta
/// would not be realistic, because these states have nothing in common.
fn channels(state: &str) -> String {
    format!(r#"{{"set":{{"state":{{"json":{state}}}}}}}"#)
}
