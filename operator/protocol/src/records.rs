//! Records: a fenced key-value space for SDKs. `POST records`, `GET records`, and the `records` of a boundary.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{Limits, Payload, bounded};

/// One change of a key. A key holds an ordered list of entries; a plain value is a key with one entry.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum RecordOp {
    /// Replaces all entries of the key by this one.
    Put {
        /// The space of the key.
        space: String,
        /// The key.
        key: String,
        /// The entry.
        value: Payload,
    },
    /// Adds this entry if the key has none; else does nothing.
    PutIfAbsent {
        /// The space of the key.
        space: String,
        /// The key.
        key: String,
        /// The entry.
        value: Payload,
    },
    /// Adds this entry at the end; does nothing if the key has an entry of this id.
    Append {
        /// The space of the key.
        space: String,
        /// The key.
        key: String,
        /// Id of the entry within its key.
        entry_id: String,
        /// The entry.
        value: Payload,
    },
    /// Deletes all entries of the key.
    Delete {
        /// The space of the key.
        space: String,
        /// The key.
        key: String,
    },
}

impl RecordOp {
    /// The space and the key that it changes.
    pub fn space_and_key(&self) -> (&str, &str) {
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

/// `POST records`: applies all of these changes in order, or none. To retry, send the same bytes again until an answer
/// comes.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RecordsRequest {
    /// Made once per batch; a retry sends the same one.
    pub batch_id: Uuid,
    /// The changes.
    #[serde(deserialize_with = "bounded::list::<{ Limits::RECORDS }, _, _>")]
    pub operations: Vec<RecordOp>,
}

/// One entry of a key.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Its key.
    pub key: String,
    /// Its id within the key, if it was appended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry_id: Option<String>,
    /// Its value as sent.
    pub value: Payload,
    /// The turn in progress when it was written.
    pub turn: i32,
}

/// The answer to `GET records`: entries of one space, ordered by the bytes of the key, then in the order they were
/// added.
#[derive(Debug, Serialize, Deserialize)]
pub struct RecordsResponse {
    /// The entries of this page.
    pub records: Vec<Record>,
    /// Send it as `after` to get the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}
