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

/// Version of a [`MemoryDelta`].
pub const MEMORY_DELTA_VERSION: u32 = 2;

/// The answer to `GET memory-delta`: how the state changed between two turns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryDelta {
    /// [`MEMORY_DELTA_VERSION`] when it was written. Version 1, which had no version, lacks the items.
    #[serde(default)]
    pub version: u32,
    /// Channels that only the later state has.
    pub added: BTreeMap<String, ChannelSize>,
    /// Channels that both states have with different content, and by how much they grew; negative if they shrank.
    pub updated: BTreeMap<String, ChannelSize>,
    /// Channels that only the earlier state has, and how large they were.
    pub removed: BTreeMap<String, ChannelSize>,
    /// What changed within these channels.
    #[serde(default)]
    pub items: ItemDelta,
}

impl Default for MemoryDelta {
    /// No difference.
    fn default() -> Self {
        Self {
            version: MEMORY_DELTA_VERSION,
            added: BTreeMap::new(),
            updated: BTreeMap::new(),
            removed: BTreeMap::new(),
            items: ItemDelta::default(),
        }
    }
}

/// The items of channels that changed. An item is a member of a channel that is one JSON object, an element of a channel
/// that is a list or one JSON array, or else the whole channel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ItemDelta {
    /// Items that only the later state has.
    pub added: Vec<ItemChange>,
    /// Items that both states have with different content.
    pub updated: Vec<ItemChange>,
    /// Items that only the earlier state has.
    pub removed: Vec<ItemChange>,
    /// Each of these lists ends after [`crate::Limits::DELTA_ITEMS`] items, and there are more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
}

/// An item of a channel that changed. Without `key` and `index` it is the whole channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ItemChange {
    /// Name of the channel.
    pub channel: String,
    /// Name of the member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Position of the element, from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<usize>,
    /// Its bytes; for an updated item by how much it grew, negative if it shrank.
    pub bytes: i64,
}

/// The size of a channel, or a difference of sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelSize {
    /// Bytes of its payloads: the text of JSON, the decoded bytes of base64.
    pub bytes: i64,
    /// Number of items; 1 for a value.
    pub items: i64,
}
