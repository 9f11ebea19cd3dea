//! The turns of a run without their payloads, for people: `GET turns`.

use serde::{Deserialize, Serialize};

use crate::{Boundary, Usage};

/// The answer to `GET turns`.
#[derive(Debug, Serialize, Deserialize)]
pub struct TurnsResponse {
    /// A page of boundaries in the order of turns; undone ones too.
    pub turns: Vec<TurnEntry>,
    /// `after` for the next page; absent if the page is empty, which is the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A boundary of a turn, without its payloads.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TurnEntry {
    /// The id of the checkpoint: `GET checkpoint?id=`.
    #[serde(default)]
    pub id: String,
    /// Number of the turn.
    pub turn: i32,
    /// Which boundary of it.
    pub boundary: Boundary,
    /// The epoch it was committed under.
    pub epoch: i64,
    /// The attempt that committed it.
    pub attempt: i32,
    /// When, by the store's clock: RFC 3339, UTC.
    pub at: String,
    /// Why the worker committed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger: Option<String>,
    /// What it used.
    pub usage: Usage,
    /// Number of its events.
    pub events: i64,
    /// Number of all events up to and including it.
    pub position: i64,
    /// Its hash, `sha256:…`.
    pub content_hash: String,
    /// Hash of the boundary before, `sha256:…`.
    pub parent_hash: String,
    /// Whether a rewind undid it.
    pub undone: bool,
    /// Whether its payloads were dropped or shredded.
    pub dropped: bool,
    /// Whether its payloads cannot be read.
    pub damaged: bool,
}
