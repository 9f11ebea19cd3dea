//! The Kubernetes contract of Dal Segno: the kinds `AgentDefinition` and `AgentRun`, their conditions and reasons, and
//! every label, annotation and name that is written to the API server.
//!
//! No client, no clock, no decision: types, their schemas and the words people read in a status. [`crds`] is what
//! `make generate` writes and what `dalsegno crds` prints.

// Two columns of one type are no duplicate.
#![allow(clippy::duplicated_attributes)]

#[macro_use]
mod words;

mod agentdefinition;
mod agentrun;
mod conditions;
mod generate;
pub mod names;
mod policies;
mod reasons;
mod schema;
mod status;
mod template;

pub use agentdefinition::{Agent, AgentDefinition, AgentDefinitionSpec, AgentDefinitionStatus, RunDefaults};
pub use agentrun::{AgentRef, AgentRun, AgentRunSpec, InputSource, KeyRef, OnPriorRun, OperatingMode};
pub use conditions::{Class, ConditionType, RunOutcome, Summary, Truth, condition, find_condition};
pub use dalsegno_model::Cause;
pub use generate::{GeneratedFile, crds, generated_files};
pub use policies::{
    Backoff, Liveness, OnCorruptCheckpoint, OnExhausted, OnMismatch, Recovery, Retention, VersionPolicy,
};
pub use reasons::Reason;
pub use status::{
    AgentRunStatus, AttemptEnd, AttemptStatus, CheckpointStatus, RecoveryStatus, ResultStatus, UsageStatus,
};
pub use template::PodTemplate;
pub use words::UnknownWord;
