//! The store: what a run has committed, which attempt may write, and nothing that can be derived from these.
//!
//! One trait, [`Store`], with three faces: PostgreSQL, SQLite in a file, SQLite in memory. One conformance suite runs
//! on all of them.
//!
//! # Guarantees
//!
//! - Every method is atomic and, once it has answered, durable. A commit, a call, a heartbeat and a lookup are one round
//!   trip to the database; a commit that finds its run locked, and a lookup that begins with a snapshot, are two. A
//!   transition is three to five (`transitions`); making a snapshot, and a commit for which the state must be counted
//!   ([`size`]), are a few.
//!   Commits of many runs that come at once share a round trip, and each is judged as if it came alone.
//! - A write of a worker is judged against the run's row under its lock, which is held until the write is committed: a
//!   capability that is not the current epoch's is refused, whoever holds it and however late it comes.
//! - Every method may be sent again after an unknown outcome: it then changes nothing and tells what is there.
//!
//! # Assumptions
//!
//! - The database keeps what it has acknowledged (`fsync` on; refused otherwise at start).
//! - Times are the database's own; no caller's clock enters a decision here.
//!
//! # Caveats
//!
//! - An [`Error`] is an unknown outcome, never a "no". Only an answer is an answer.

// Without a database there are the words alone, which is what the decision needs.
#![cfg_attr(not(any(feature = "postgres", feature = "sqlite")), allow(unused))]

mod branch;
mod calls;
mod checkpoint_document;
mod events;
mod fault;
pub mod keys;
mod lines;
mod old;
mod open;
mod packed;
mod pages;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod reading;
mod reads;
mod schema;
mod shelf;
mod snapshot;
mod snapshot_writer;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod statements;
mod transitions;

pub use checkpoint_document::checkpoint;
pub use open::{grant, migrate, open, open_beside, open_read_only};

// Until all who use them name the crates themselves.
pub use dalsegno_format::{
    LastState, audit, chain, codec, fold, header, manifest, memory, records, seal, size,
};
pub use dalsegno_model::*;
pub use dalsegno_proof::{self as proof, Damage, Findings, Survey, verify};
