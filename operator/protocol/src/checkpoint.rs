//! A checkpoint as a document: `GET checkpoint`.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::calls::call_and_rest;
use crate::{Boundary, Call, MemoryDelta, Payload, State, Usage};

/// Version of the document. A change of its fields needs a new version. Every version ever written stays readable.
pub const CHECKPOINT_VERSION: u32 = 2;

/// Name of the channel whose items are a checkpoint's [`Checkpoint::memory_references`].
pub const MEMORY_REFERENCES: &str = "memoryReferences";

/// One boundary of a run; `docs/schemas/checkpoint-v2.schema.json` is its schema. The document shows what `content_hash`
/// was computed from; it is not hashed itself. Version 1 lacks the fields that have a default.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Checkpoint {
    /// [`CHECKPOINT_VERSION`] when it was written.
    pub version: u32,
    /// Its id in the run: the turn, 1 for a plan or 2 for a result, and the epoch, such as `7.2.3`.
    #[serde(default)]
    pub id: String,
    /// The run's own id, which is also a part of `DALSEGNO_URL`.
    #[serde(default)]
    pub run_id: Uuid,
    /// `namespace/name` of the run.
    pub run: String,
    /// What became of it, or of the run that it is the head of. Version 1 has none.
    #[serde(default)]
    pub status: Option<CheckpointStatus>,
    /// Number of the attempt that committed it.
    pub attempt: i32,
    /// How many earlier attempts were charged, as stored now.
    #[serde(default)]
    pub recovery_attempts: i64,
    /// How many earlier attempts a disruption ended, as stored now.
    #[serde(default)]
    pub disruptions: i64,
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
    /// What came to the run between the boundary before and this one.
    #[serde(default)]
    pub triggered_by: TriggeredBy,
    /// The oldest proposal that waits for a person's approval; `null` if none does. Only for the head.
    pub pending_proposal: Option<Box<RawValue>>,
    /// The step that is planned and not done; `null` after a turn's result, because the agent decides what comes next.
    /// Only for the head: earlier steps are done.
    pub pending_step: Option<Step>,
    /// Calls that are planned or claimed and whose outcome is unknown, as stored now. Only for the head.
    pub pending_calls: Vec<Call>,
    /// Number of all calls that were first seen in this turn or an earlier one.
    #[serde(default)]
    pub call_count: i64,
    /// The latest of these calls, in order, as stored now; at most [`crate::Limits::CHECKPOINT_CALLS`].
    #[serde(default)]
    pub calls: Vec<CheckpointCall>,
    /// The state after this boundary, as `GET state` returns it. `null` if it is larger than
    /// [`crate::Limits::INLINE_STATE_BYTES`]: then use `GET state`.
    #[serde(default)]
    pub working_memory: Option<State>,
    /// How this state differs from the start of the run, which has no state.
    #[serde(default)]
    pub memory_delta: MemoryDelta,
    /// References to what the agent stores elsewhere and reads again when it resumes: the channel
    /// [`MEMORY_REFERENCES`].
    pub memory_references: Vec<Payload>,
    /// Usage of this boundary alone.
    pub usage: Usage,
    /// Usage of the run up to and including this boundary, in all attempts. What was undone before it counts.
    #[serde(default)]
    pub total_usage: Usage,
    /// How long the run had lasted.
    #[serde(default)]
    pub elapsed: Elapsed,
    /// Time of the commit by the store's clock: RFC 3339, UTC.
    pub created_time: String,
}

/// What became of a checkpoint, or of the run that it is the head of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CheckpointStatus {
    /// It is the head, and the run is not over. Whether the operator holds the run is in the AgentRun's status alone.
    Live,
    /// It is the head, and a person has suspended the run.
    Suspended,
    /// It is the head, and the run waits without a pod.
    Waiting,
    /// It is the head of a run that has reached its goal.
    Succeeded,
    /// It is the head of a run that has failed.
    Failed,
    /// It is the head of a run that a person has cancelled.
    Cancelled,
    /// It is the head of a run whose AgentRun was deleted, or that a later run of the same name has replaced.
    Abandoned,
    /// A later boundary follows it.
    Superseded,
    /// A rewind undid it.
    Undone,
}

/// What came to a run between two boundaries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TriggeredBy {
    /// Position of the boundary's first event; `null` if it has none. Its last one is at the checkpoint's position.
    pub event: Option<i64>,
    /// Ids of the calls of its turn that had ended.
    pub calls: Vec<String>,
    /// Ids of the waits that were answered.
    pub waits: Vec<String>,
    /// Positions of the messages that it has taken.
    pub messages: Vec<i64>,
}

/// A call in the history of a checkpoint.
#[derive(Clone, Debug, Serialize)]
pub struct CheckpointCall {
    /// The call.
    #[serde(flatten)]
    pub call: Call,
    /// The attempt that claimed it last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<i32>,
    /// Its arguments and its result are left out, because with those of later calls they are larger than
    /// [`crate::Limits::CHECKPOINT_CALLS_BYTES`]: use `GET calls`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub omitted: bool,
    /// Its arguments or its result cannot be read.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub damaged: bool,
}

impl<'de> Deserialize<'de> for CheckpointCall {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Rest {
            attempt: Option<i32>,
            #[serde(default)]
            omitted: bool,
            #[serde(default)]
            damaged: bool,
        }
        let (call, Rest { attempt, omitted, damaged }) = call_and_rest(deserializer)?;
        Ok(Self { call, attempt, omitted, damaged })
    }
}

/// How long something had lasted, in milliseconds by the store's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Elapsed {
    /// Since the run was created. Time without a pod counts.
    pub run_ms: i64,
    /// Since the result of the turn before, or since the run was created.
    pub turn_ms: i64,
}

/// A step of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Number of its turn.
    pub turn: i32,
    /// The boundary that ends it.
    pub boundary: Boundary,
}
