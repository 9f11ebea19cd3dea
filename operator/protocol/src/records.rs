//! Records: a fenced keyed space for SDKs. `POST records`, `GET records`, and the `records` of a boundary.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{Limits, Payload, bounded};

/// One change of a key. A key holds entries, in order; a plain value is a key with one entry.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum RecordOp {
    /// The key holds this one entry, whatever it held.
    Put {
        /// The space of the key.
        space: String,
        /// The key.
        key: String,
        /// The entry.
        value: Payload,
    },
    /// The same, where the key holds nothing; else nothing happens.
    PutIfAbsent {
        /// The space of the key.
        space: String,
        /// The key.
        key: String,
        /// The entry.
        value: Payload,
    },
    /// One entry more, behind those that are there; nothing happens where the key holds an entry of this id.
    Append {
        /// The space of the key.
        space: String,
        /// The key.
        key: String,
        /// Names the entry within its key.
        entry_id: String,
        /// The entry.
        value: Payload,
    },
    /// The key holds nothing.
    Delete {
        /// The space of the key.
        space: String,
        /// The key.
        key: String,
    },
}

impl RecordOp {
    /// The space and the key that it changes.
    pub fn place(&self) -> (&str, &str) {
        match self {
            Self::Put { space, key, .. }
            | Self::PutIfAbsent { space, key, .. }
            | Self::Append { space, key, .. }
            | Self::Delete { space, key } => (space, key),
        }
    }

    /// The id and the value of the entry that it may add.
    pub fn entry(&self) -> (Option<&str>, Option<&Payload>) {
        match self {
            Self::Put { value, .. } | Self::PutIfAbsent { value, .. } => (None, Some(value)),
            Self::Append { entry_id, value, .. } => (Some(entry_id), Some(value)),
            Self::Delete { .. } => (None, None),
        }
    }
}

/// `POST records`: all of these changes, in order, or none. Send the same bytes again until an answer comes.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RecordsRequest {
    /// Made once per batch; the retry carries the same one.
    pub batch_id: Uuid,
    /// What changes.
    #[serde(deserialize_with = "bounded::list::<{ Limits::RECORDS }, _, _>")]
    pub operations: Vec<RecordOp>,
}

/// One entry of a key.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Its key.
    pub key: String,
    /// Its name within the key, if it was appended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry_id: Option<String>,
    /// What it holds, as it came.
    pub value: Payload,
    /// The turn that was worked on when it was written.
    pub turn: i32,
}

/// The answer to `GET records`: entries of one space, by key in the order of its bytes, then as they were added.
#[derive(Debug, Serialize, Deserialize)]
pub struct RecordsResponse {
    /// The entries of this page.
    pub records: Vec<Record>,
    /// Ask for what comes after with `after=` this; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}
