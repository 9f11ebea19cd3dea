//! Records: a fenced key-value space for SDKs. `POST records`, `GET records`, `POST records/read`, and the `records` of
//! a boundary.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{FIRST_CONTRACT, Limits, Payload, bounded};

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
    /// Deletes all entries of all keys that start with this prefix.
    DeletePrefix {
        /// The space of the keys.
        space: String,
        /// What the keys start with.
        prefix: String,
    },
}

impl RecordOp {
    /// The space and the key that it changes; of [`Self::DeletePrefix`] the prefix.
    pub fn space_and_key(&self) -> (&str, &str) {
        match self {
            Self::Put { space, key, .. }
            | Self::PutIfAbsent { space, key, .. }
            | Self::Append { space, key, .. }
            | Self::Delete { space, key } => (space, key),
            Self::DeletePrefix { space, prefix } => (space, prefix),
        }
    }

    /// The version of the contract that has this operation.
    pub fn contract(&self) -> i32 {
        match self {
            Self::Put { .. } | Self::PutIfAbsent { .. } | Self::Append { .. } | Self::Delete { .. } => {
                FIRST_CONTRACT
            }
            Self::DeletePrefix { .. } => 3,
        }
    }

    /// The version of the contract that has all of these operations.
    pub fn contract_of(operations: &[Self]) -> i32 {
        operations.iter().map(Self::contract).max().unwrap_or(FIRST_CONTRACT)
    }

    /// The id and the value of the entry that it may add.
    pub fn entry(&self) -> (Option<&str>, Option<&Payload>) {
        match self {
            Self::Put { value, .. } | Self::PutIfAbsent { value, .. } => (None, Some(value)),
            Self::Append { entry_id, value, .. } => (Some(entry_id), Some(value)),
            Self::Delete { .. } | Self::DeletePrefix { .. } => (None, None),
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
/// added; or in the reverse order. The answer to `POST records/read`: entries in the order of the keys that it names.
#[derive(Debug, Serialize, Deserialize)]
pub struct RecordsResponse {
    /// The entries of this page.
    pub records: Vec<Record>,
    /// Send it as `after` to get the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// The order of `GET records`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecordOrder {
    /// The smallest key first, and of a key the entry that was added first.
    #[default]
    Asc,
    /// Exactly the reverse: the greatest key first, and of a key the latest entry.
    Desc,
}

/// A key that has entries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordKey {
    /// The key.
    pub key: String,
}

/// The answer to `GET records?keysOnly=true`: the keys of one space that have entries, each once.
#[derive(Debug, Serialize, Deserialize)]
pub struct RecordKeysResponse {
    /// The keys of this page.
    pub records: Vec<RecordKey>,
    /// Send it as `after` to get the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// `POST records/read`: reads the entries of these keys, and changes nothing.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReadRecordsRequest {
    /// The space of the keys.
    pub space: String,
    /// The keys, each once. A key without entries is no error.
    #[serde(deserialize_with = "bounded::list::<{ Limits::RECORDS }, _, _>")]
    pub keys: Vec<String>,
    /// The `next` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}
