//! Messages that people send to a run, and how they are read.

use dalsegno_protocol::{Message, RawValue};

use crate::RunId;

/// A message to store.
#[derive(Clone, Debug)]
pub struct NewMessage {
    /// To which run.
    pub run: RunId,
    /// The sender's id of it.
    pub id: String,
    /// What it is about.
    pub topic: Option<String>,
    /// The JSON text as it came.
    pub value: Box<RawValue>,
    /// The authenticated sender.
    pub author: String,
    /// The id of the request in the API server's audit log, if it came through the API server.
    pub audit_id: Option<String>,
}

/// The answer to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It is stored, at this position.
    Ok(i64),
    /// It was stored before at this position: the same id, topic and value, from the same author.
    Duplicate(i64),
    /// The id was used before for another message.
    Conflict,
    /// Too many messages, or too many bytes of them, are unread.
    TooMany,
    /// The run is over.
    Finished,
    /// There is no run with this id.
    NotFound,
}

/// Which messages of a run to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageQuery {
    /// Those after this position; 0: from the first.
    pub after: i64,
    /// Whether to return only those that no boundary has taken.
    pub unread_only: bool,
    /// At most so many.
    pub limit: u32,
    /// The page ends after so many bytes of values. It has at least one message.
    pub bytes: usize,
}

/// A page of messages.
#[derive(Clone, Debug)]
pub struct MessagePage {
    /// In the order of their positions.
    pub messages: Vec<Message>,
    /// The last position, if more messages follow.
    pub next: Option<i64>,
}

/// The messages of a run, as its row counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct InboxRow {
    /// Position of the latest message; 0 if there was none.
    pub position: i64,
    /// Messages that no boundary has taken.
    pub unread: i64,
}
