//! A checkpoint as a document: `GET checkpoint`.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{Boundary, Call, Payload, Usage};

/// Version of the document that is written. A field that goes or changes its meaning needs another one; what was ever
/// written stays readable.
pub const CHECKPOINT_VERSION: u32 = 1;

/// Name of the channel whose items are a checkpoint's [`Checkpoint::memory_references`].
pub const MEMORY_REFERENCES: &str = "memoryReferences";

/// All that is known of one boundary but the state itself. `docs/schemas/checkpoint-v1.schema.json` describes it, and
/// `content_hash` is what it hangs on: the document is a rendering of what was hashed, and is not hashed itself.
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
    /// Which boundary of it.
    pub boundary: Boundary,
    /// Events committed up to and with it.
    pub position: i64,
    /// The agent's version in that attempt: the declared one, else the image digest.
    pub agent_version: String,
    /// `sha256:…` of the worker's image in that attempt, as it was observed.
    pub image_digest: String,
    /// `sha256:…` of the boundary before; of zeroes for the first.
    pub parent_hash: String,
    /// `sha256:…` of this one.
    pub content_hash: String,
    /// Why it was committed, if the agent said so.
    pub trigger: Option<String>,
    /// What waits for a person's approval; `null` where nothing does.
    pub pending_proposal: Option<Box<RawValue>>,
    /// The step that is planned and not done; `null` after a turn's result, since what comes next is the agent's to say.
    /// Of the head alone: an earlier step is done.
    pub pending_step: Option<Step>,
    /// Calls that are planned or begun, and whose outcome is not known. Of the head alone, as they stand now.
    pub pending_calls: Vec<Call>,
    /// What the agent keeps elsewhere and reads again before it goes on: the channel [`MEMORY_REFERENCES`].
    pub memory_references: Vec<Payload>,
    /// What this boundary spent.
    pub usage: Usage,
    /// When, by the store's clock: RFC 3339, UTC.
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
