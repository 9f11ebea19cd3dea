//! The harness of the stories: what a person with `kubectl`, an agent and a hammer can do to Dal Segno, and the judges
//! that tell what came of it.
//!
//! It is a black box: it knows the kinds (`dalsegno-crds`), the worker's contract (`dalsegno-protocol`) and nothing of
//! how they are kept. What it believes comes from four witnesses:
//!
//! - the [`Ledger`]: which side effects took place, and how often they were asked for;
//! - the API server's [`Audit`] log: which pods were ever made and deleted, and who wrote what;
//! - the AgentRun's status, as a person reads it;
//! - the gateway's answers to a [`Worker`] that the story itself plays.
//!
//! The stories are in `tests/`: `stories` run side by side, `disasters` (they break nodes, the operator or the API
//! server) one after the other.

pub mod agent;
pub mod audit;
pub mod cluster;
pub mod flood;
pub mod http;
pub mod images;
pub mod install;
pub mod ledger;
pub mod nodes;
pub mod objects;
pub mod operator;
mod users;
pub mod postgres;
pub mod process;
pub mod run;
pub mod status;
pub mod wait;
pub mod worker;
pub mod test_context;

pub use agent::{Agent, Definition};
pub use audit::AuditLog;
pub use cluster::Cluster;
pub use ledger::Ledger;
pub use operator::Operator;
pub use run::Run;
pub use status::StatusExt;
pub use worker::Worker;
pub use test_context::TestContext;

/// What every story returns; the error tells what was waited for and what was there instead.
pub type Result<T = ()> = anyhow::Result<T>;
