//! A run's history for people and SDKs: `GET events` and `GET memory-delta`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// One event of the live branch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Event {
    /// Its position among all events of the run, from 1.
    pub position: i64,
    /// The turn in whose boundary it was committed.
    pub turn: i32,
    /// The attempt that committed it.
    pub attempt: i32,
    /// The event as sent.
    pub event: Box<RawValue>,
}

/// The answer to `GET events`.
#[derive(Debug, Serialize, Deserialize)]
pub struct EventsResponse {
    /// Events in order.
    pub events: Vec<Event>,
    /// The position after the last event. Send it as `from` to get the events after it.
    pub next: i64,
}

/// The answer to `GET memory-delta`: how the state changed between two turns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryDelta {
    /// Channels that only the later state has.
    pub added: BTreeMap<String, ChannelSize>,
    /// Channels that both states have with different content, and by how much they grew; negative if they shrank.
    pub updated: BTreeMap<String, ChannelSize>,
    /// Channels that only the earlier state has, and how large they were.
    pub removed: BTreeMap<String, ChannelSize>,
}

/// The size of a channel, or a difference of sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelSize {
    /// Bytes of its payloads: the text of JSON, the decoded bytes of base64.
    pub bytes: i64,
    /// Number of items; 1 for a value.
    pub items: i64,
}
