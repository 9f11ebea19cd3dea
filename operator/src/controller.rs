//! The controllers of AgentRuns and AgentDefinitions.
//!
//! [`reconcile::reconcile`] is the loop of every run: observe, decide, act. It works on any [`worker_runtime`]; the one of a
//! cluster is [`kubernetes_runtime`].

pub mod act;
pub mod agent_runs;
mod approvals;
mod catch_panic;
pub mod context;
mod create_pod;
pub mod definitions;
pub mod error;
pub mod failpoint;
mod fair_queue;
mod kubernetes_runtime;
mod observe;
pub mod panics;
pub mod policies;
mod publish;
pub mod queue_health;
pub mod reconcile;
mod report_invalid;
pub mod run_controller;
pub mod worker_runtime;
pub mod write_conflicts;
