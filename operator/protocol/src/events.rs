//! What a run left behind, for people and SDKs: `GET events` and `GET memory-delta`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// One event of the live branch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Event {
    /// Its place among all events of the run, from 1.
    pub position: i64,
    /// The turn whose boundary carried it.
    pub turn: i32,
    /// The attempt that committed it.
    pub attempt: i32,
    /// The event, as it came.
    pub event: Box<RawValue>,
}

/// The answer to `GET events`.
#[derive(Debug, Serialize, Deserialize)]
pub struct EventsResponse {
    /// Events in order.
    pub events: Vec<Event>,
    /// The position after the last of them: ask for what comes then with `from=` this.
    pub next: i64,
}

/// The answer to `GET memory-delta`: how the state changed between two turns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryDelta {
    /// Channels that the later state alone has.
    pub added: BTreeMap<String, ChannelSize>,
    /// Channels that both have, and that are not the same; what they grew by, which may be less than nothing.
    pub updated: BTreeMap<String, ChannelSize>,
    /// Channels that the earlier state alone has; what they had.
    pub removed: BTreeMap<String, ChannelSize>,
}

/// How large a channel is, or how much larger it became.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelSize {
    /// Bytes of its payloads: of JSON the text's, else those that the base64 stands for.
    pub bytes: i64,
    /// Its items; a value is one.
    pub items: i64,
}
