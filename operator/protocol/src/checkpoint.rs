//! A checkpoint as a document: `GET checkpoint`.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{Boundary, Call, Payload, Usage};

/// Version of the document. Removing a field or changing its meaning needs a new version. Every version ever written
/// stays readable.
pub const CHECKPOINT_VERSION: u32 = 1;

/// Name of the channel whose items are a checkpoint's [`Checkpoint::memory_references`].
pub const MEMORY_REFERENCES: &str = "memoryReferences";

/// Everything about one boundary except the state itself; `docs/schemas/checkpoint-v1.schema.json` is its schema. The
/// document shows what `content_hash` was computed from; it is not hashed itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Checkpoint {
    /// [`CHECKPOINT_VERSION`] when it was written.
    pub version: u32,
    /// `namespace/name` of the run.
    pub run: String,
    /// Number of the attempt that committed it.
    pub attempt: i32,
    /// Number of the turn, from 1.
    pub turn: i32,
    /// Which boundary of the turn.
    pub boundary: Boundary,
    /// Number of events committed up to and including this boundary.
    pub position: i64,
    /// The agent's version in that attempt: the declared version, else the image digest.
    pub agent_version: String,
    /// Observed digest of the worker's image in that attempt, `sha256:…`.
    pub image_digest: String,
    /// Content hash of the boundary before, `sha256:…`; zeroes for the first boundary.
    pub parent_hash: String,
    /// Content hash of this boundary, `sha256:…`.
    pub content_hash: String,
    /// The commit's trigger, if the agent gave one.
    pub trigger: Option<String>,
    /// The oldest proposal that waits for a person's approval; `null` if none does. Only for the head.
    pub pending_proposal: Option<Box<RawValue>>,
    /// The step that is planned and not done; `null` after a turn's result, because the agent decides what comes next.
    /// Only for the head: earlier steps are done.
    pub pending_step: Option<Step>,
    /// Calls that are planned or claimed and whose outcome is unknown, as stored now. Only for the head.
    pub pending_calls: Vec<Call>,
    /// References to what the agent stores elsewhere and reads again when it resumes: the channel
    /// [`MEMORY_REFERENCES`].
    pub memory_references: Vec<Payload>,
    /// Usage of this boundary alone.
    pub usage: Usage,
    /// Time of the commit by the store's clock: RFC 3339, UTC.
    pub created_time: String,
}

/// A step of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Number of its turn.
    pub turn: i32,
    /// The boundary that ends it.
    pub boundary: Boundary,
}
