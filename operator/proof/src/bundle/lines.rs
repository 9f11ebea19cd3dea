//! The lines of a bundle, as JSON.

use dalsegno_model::Lifecycle;
use dalsegno_protocol::{Boundary, CallState, OnTimeout, Policy, Usage, WaitKind, WaitOutcome, WaitState};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::encoding::{Base64, Bytes, Hash};

/// One line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Line {
    Bundle(BundleLine),
    Boundary(Box<BoundaryLine>),
    Call(Box<CallLine>),
    Wait(Box<WaitLine>),
    Message(Box<MessageLine>),
    RecordBatch(Box<RecordBatchLine>),
    Record(Box<RecordLine>),
    Audit(AuditLine),
    End(EndLine),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BundleLine {
    pub version: u32,
    pub store: Uuid,
    pub exported_at: i64,
    pub public_key: Bytes<32>,
    pub run: RunLine,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RunLine {
    pub id: Uuid,
    pub tenant: String,
    pub namespace: String,
    pub name: String,
    pub object_uid: String,
    pub created_at: i64,
    pub lifecycle: Lifecycle,
    pub epoch: i64,
    pub head: Option<HeadLine>,
    pub audit_seq: i64,
    pub audit_hash: Hash,
    /// Of the batches of records since the head; absent if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub records_digest: Option<Hash>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BoundaryIdLine {
    pub turn: i32,
    pub boundary: Boundary,
    pub epoch: i64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HeadLine {
    #[serde(rename = "place")]
    pub boundary: BoundaryIdLine,
    pub content_hash: Hash,
    pub position: i64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BoundaryLine {
    pub turn: i32,
    pub boundary: Boundary,
    pub epoch: i64,
    pub attempt: i32,
    pub at: i64,
    pub position: i64,
    pub commit_id: Uuid,
    pub body_digest: Hash,
    pub parent: Option<BoundaryIdLine>,
    pub parent_hash: Hash,
    pub content_hash: Hash,
    pub ops: Option<String>,
    pub ops_digest: Option<Hash>,
    pub full: bool,
    pub events: Vec<String>,
    pub events_digest: Option<Hash>,
    pub usage: Usage,
    pub trigger: Option<String>,
    pub records_digest: Option<Hash>,
    /// The boundary of another run after which a fork begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<ForkedFromLine>,
    pub undone: bool,
    /// Its payloads were dropped as the run's retention requires.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dropped: bool,
    /// Its payloads were shredded.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shredded: bool,
    /// The key of the digests of its payloads, if these were sealed in the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest_key: Option<Bytes<32>>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ForkedFromLine {
    pub run: Uuid,
    pub turn: i32,
    pub content_hash: Hash,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CallLine {
    pub id: String,
    pub turn: i32,
    pub policy: Policy,
    pub key: String,
    pub state: CallState,
    pub arguments: Option<String>,
    pub result: Option<String>,
    /// The attempt that claimed it last. Absent in version 1.
    #[serde(default)]
    pub attempt: Option<i32>,
    /// Name of the tool, if a claim has named it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// What it has used, if it has said so.
    #[serde(default, skip_serializing_if = "Usage::is_zero")]
    pub usage: Usage,
    /// Its digests cannot be computed any more, because the run's data key was deleted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shredded: bool,
    /// The key of its digests, if the run has a data key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest_key: Option<Bytes<32>>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WaitLine {
    pub id: String,
    pub epoch: i64,
    pub ordinal: i64,
    pub turn: i32,
    pub boundary: Boundary,
    pub undone: bool,
    pub attempt: i32,
    pub kind: WaitKind,
    pub state: WaitState,
    pub opened_at: i64,
    pub deadline_at: Option<i64>,
    pub on_timeout: OnTimeout,
    pub wake_at: Option<i64>,
    pub provider: Option<String>,
    pub topic: Option<String>,
    pub proposal_hash: Option<Hash>,
    pub outcome: Option<WaitOutcome>,
    pub request: Option<String>,
    pub answer: Option<String>,
    /// Its digests cannot be computed any more, because the run's data key was deleted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shredded: bool,
    /// The key of its digests, if the run has a data key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest_key: Option<Bytes<32>>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MessageLine {
    pub position: i64,
    pub id: String,
    pub topic: Option<String>,
    pub value: Option<String>,
    pub author: String,
    pub at: i64,
    /// The boundary that has taken it.
    pub taken_by: Option<BoundaryIdLine>,
    pub digest: Hash,
    /// Its digest cannot be computed any more, because the run's data key was deleted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shredded: bool,
    /// The key of its digest, if the run has a data key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest_key: Option<Bytes<32>>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RecordBatchLine {
    pub seq: i64,
    #[serde(rename = "place")]
    pub boundary: BoundaryIdLine,
    pub undone: bool,
    pub digest: Hash,
    pub batch: Base64,
    /// The digests in and of the batch are keyed with the key of the run, which a bundle does not reveal.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keyed: bool,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RecordLine {
    pub space: String,
    pub key: String,
    pub seq: i64,
    pub entry_id: Option<String>,
    #[serde(rename = "place")]
    pub boundary: BoundaryIdLine,
    /// The payload as JSON text.
    pub value: Option<String>,
    pub digest: Option<Hash>,
    /// The digest is keyed with the key of the run, which a bundle does not reveal.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keyed: bool,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AuditLine {
    pub seq: i64,
    pub at: i64,
    pub kind: String,
    pub actor: String,
    pub detail: String,
    pub parent_hash: Hash,
    pub hash: Hash,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EndLine {
    pub boundaries: i64,
    pub events: i64,
    pub calls: i64,
    /// Absent before version 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<i64>,
    /// Absent before version 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages: Option<i64>,
    /// Absent before version 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record_batches: Option<i64>,
    /// Absent before version 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub records: Option<i64>,
    pub audit: i64,
    pub sha256: Hash,
    pub signature: Bytes<64>,
}
