//! Messages to a run: `POST messages` of people, `GET inbox` of the worker, and the `inbox` of a boundary.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{Boundary, CommitResult};

/// `POST messages`: a person, or a service with the right to, sends a message to a run. To retry, send the same bytes
/// again until an answer comes.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SendRequest {
    /// Names the message in its run. Made once; a retry sends the same one.
    pub id: String,
    /// What it is about, for the agent to choose by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// Any JSON value.
    pub value: Box<RawValue>,
}

/// The answer to `POST messages`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendResponse {
    /// Whether it was stored now, or before with the same bytes by the same person.
    pub result: CommitResult,
    /// Its position: messages of a run are numbered 1, 2, 3 …
    pub position: i64,
}

/// The answer to `GET inbox`, and to `GET messages` of people.
#[derive(Debug, Serialize, Deserialize)]
pub struct MessagesResponse {
    /// Messages in the order of their positions. `GET inbox` returns those that no boundary has taken.
    pub messages: Vec<Message>,
    /// `after` for the next page; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<i64>,
}

/// A message as it is stored.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Message {
    /// Its position.
    pub position: i64,
    /// Its id within the run.
    pub id: String,
    /// What it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// What was sent, byte for byte; `null` if it was deleted by the run's retention, or shredded.
    pub value: Option<Box<RawValue>>,
    /// The authenticated sender.
    pub author: String,
    /// When it was stored, by the store's clock: RFC 3339, UTC.
    pub at: String,
    /// The boundary that has taken it; absent in `GET inbox`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_by: Option<TakenBy>,
}

/// The boundary that has taken a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakenBy {
    /// Number of the turn.
    pub turn: i32,
    /// Which boundary of the turn.
    pub boundary: Boundary,
}

/// Leaves out the value: it is secret, and an error that holds a message may be logged.
impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { position, id, topic, value: _, author, at, taken_by } = self;
        let mut message = f.debug_struct("Message");
        message.field("position", position).field("id", id).field("topic", topic).field("author", author);
        message.field("at", at).field("taken_by", taken_by).finish_non_exhaustive()
    }
}
