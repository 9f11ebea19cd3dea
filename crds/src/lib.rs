//! The Kubernetes contract of Dal Segno: the kinds `AgentDefinition` and `AgentRun`, their conditions and reasons, and
//! every label, annotation and name that the operator writes to the API server.
//!
//! This crate has types, schemas and texts only. It has no client, no clock and no decisions. `make generate` writes
//! the definitions that [`crds`] returns, and `dalsegno crds` prints them.

// kube's derive takes several `printcolumn` attributes of the same type, which clippy reports as duplicates.
#![allow(clippy::duplicated_attributes)]

#[macro_use]
mod string_enum;

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
pub use agentrun::{AgentRef, AgentRun, AgentRunSpec, InputSource, KeyRef, OperatingMode};
pub use conditions::{
    Class, ConditionStatus, ConditionType, EventReason, RunOutcome, Summary, WaitKind, condition,
    find_condition, has_status,
};
pub use dalsegno_model::{Cause, UnknownVariant};
pub use generate::{GeneratedFile, crds, generated_files};
pub use policies::{
    Backoff, Liveness, OnCorruptCheckpoint, OnExhausted, OnMismatch, OnPriorRun, Recovery, Retention,
    Suspend, VersionPolicy,
};
pub use reasons::Reason;
pub use status::{
    AgentRunStatus, AttemptEnd, AttemptStatus, CheckpointStatus, RecoveryStatus, ResultStatus, SuspendStatus,
    UsageStatus, WaitStatus, WaitingStatus,
};
pub use template::PodTemplate;
