//! The store: what a run has committed, which attempt may write, and nothing that can be derived from these.
//!
//! There is one trait, [`Store`], and three kinds of store: PostgreSQL, SQLite in a file, and SQLite in memory. One
//! conformance suite runs on all three.
//!
//! # Guarantees
//!
//! - Every method is atomic, and durable once it has returned.
//! - A worker's write is checked against the run's row. The row's lock is held from the check until the write is
//!   committed. So a capability of an earlier epoch is refused, whoever sends it and however late it arrives.
//! - After an unknown outcome every method may be called again. If the first call took effect, the second changes
//!   nothing and returns the stored result.
//! - Round trips to the database: one for a commit, a call, a heartbeat and a lookup; two for a commit whose run is
//!   locked, and for a lookup that begins with a snapshot; three to five for a transition (`transitions`); several
//!   for making a snapshot, and for a commit whose state must be measured ([`size`]). Concurrent commits of many runs
//!   share a round trip, and each is checked by itself.
//!
//! # Assumptions
//!
//! - The database does not lose what it has acknowledged (`fsync` is on; otherwise the store does not open).
//! - All times come from the store's clock. No caller's clock is used in a decision.
//!
//! # Caveats
//!
//! - An [`Error`] means that the outcome is unknown. It is never a refusal: refusals are return values.

// Without an engine, only the shared types are used.
#![cfg_attr(not(any(feature = "postgres", feature = "sqlite")), allow(unused))]

mod branch;
mod checkpoint_document;
mod compaction;
mod db_error;
mod encoded_ops;
mod events;
mod fork;
pub mod keys;
mod measured;
mod messages;
mod metrics;
mod open;
mod options;
mod pages;
mod per_run_limiter;
#[cfg(feature = "postgres")]
pub mod postgres;
mod reads;
mod record_statements;
mod schema;
mod snapshot;
mod snapshot_io;
mod snapshot_writer;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod statements;
mod stored_rows;
mod texts;
mod transitions;

pub use checkpoint_document::checkpoint;
pub use measured::measured;
pub use metrics::StoreMetrics;
#[cfg(feature = "sqlite")]
pub use open::{ServedStore, open_to_serve};
pub use open::{back_up, grant, migrate, open, open_beside, open_read_only, open_with};
pub use options::ConnectionOptions;
