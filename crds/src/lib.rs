//! The Kubernetes contract of Dal Segno: the kinds `AgentDefinition`, `AgentRun` and `AgentApproval`, their
//! conditions and reasons, and every label, annotation and name that the operator writes to the API server.
//!
//! This crate has types, schemas and texts only. It has no client, no clock and no decisions. `make generate` writes
//! the definitions that [`crds`] returns, and `dalsegno crds` prints them.

// kube's derive takes several `printcolumn` attributes of the same type, which clippy reports as duplicates.
#![allow(clippy::duplicated_attributes)]

#[macro_use]
mod string_enum;

mod agentdefinition;
mod agentrun;
mod approval;
mod conditions;
mod external;
mod generate;
pub mod names;
mod policies;
mod reasons;
mod schema;
mod status;
mod template;

pub use agentdefinition::{
    Agent, AgentDefinition, AgentDefinitionSpec, AgentDefinitionStatus, Checkpointing, RunDefaults,
};
pub use agentrun::{
    AgentRef, AgentRun, AgentRunSpec, InputSource, KeyRef, OperatingMode, ResumeFrom, Rewind,
};
pub use approval::{
    AgentApproval, AgentApprovalSpec, AgentApprovalStatus, ApprovalDecision, OnTimeout, RunRef,
    SecondDecision, SecondVerdict, Verdict,
};
pub use conditions::{
    ApprovalConditionType, Class, ConditionStatus, ConditionType, EventReason, RunOutcome, Summary, WaitKind,
    condition, find_condition, has_status,
};
pub use dalsegno_model::{Cause, LimitName, UnknownVariant};
pub use external::unsupported_fields;
pub use generate::{GeneratedFile, crds, generated_files};
pub use policies::{
    Backoff, Checkpoints, Liveness, OnCorruptCheckpoint, OnExhausted, OnMismatch, OnPriorRun,
    OnSameCheckpoint, Recovery, Retention, RunLimits, Suspend, VersionPolicy,
};
pub use reasons::{ApprovalReason, Reason};
pub use status::{
    AgentRunStatus, AttemptEnd, AttemptStatus, CheckpointStatus, ForkStatus, LimitStatus, RecoveryStatus,
    ResultStatus, RewindStatus, SuspendStatus, UsageStatus, WaitStatus, WaitingStatus,
};
pub use template::PodTemplate;
