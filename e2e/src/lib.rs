//! The harness of the end-to-end tests: what a person with `kubectl`, an agent or a failing machine can do to Dal
//! Segno, and the checks of the result.
//!
//! The tests are a black box. They use the kinds (`dalsegno-crds`) and the worker's contract (`dalsegno-protocol`), and
//! know nothing about the implementation. They check four sources:
//!
//! - the [`Ledger`]: which side effects took place, and how often each was requested;
//! - the API server's [`AuditLog`]: which pods were created and deleted, and who wrote what;
//! - the AgentRun's status, as a person reads it;
//! - the gateway's answers to a [`Worker`] that the test itself plays.
//!
//! The tests are in `tests/`. `scenarios` and `examples` run in parallel. `chaos` tests break nodes, the
//! operator or the API server, so they run one after the other.
//!
//! *Errors.* Every function of the harness fails if a server or a program refuses the request or does not answer. A
//! function that waits also fails when its limit passes. Only other errors are documented at the function.

pub mod agent;
pub mod approval;
pub mod audit;
pub mod cluster;
pub mod dbos;
pub mod example;
pub mod flood;
pub mod http;
pub mod images;
pub mod install;
pub mod ledger;
pub mod nodes;
pub mod objects;
pub mod operator;
pub mod plugin;
pub mod postgres;
pub mod process;
pub mod receiver;
pub mod route;
pub mod run;
pub mod sender;
pub mod status;
pub mod test_context;
pub mod wait;
pub mod worker;

pub use agent::{Agent, Definition};
pub use audit::AuditLog;
pub use cluster::Cluster;
pub use ledger::Ledger;
pub use operator::Operator;
pub use plugin::{Answer, Plugin};
pub use run::Run;
pub use sender::Sender;
pub use status::StatusExt;
pub use test_context::{Rights, TestContext};
pub use worker::Worker;

/// The result of every test. The error says what was expected and what was found.
pub type Result<T = ()> = anyhow::Result<T>;
