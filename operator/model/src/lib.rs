//! What the store is asked and what it answers: rows, verdicts and causes as plain data, and the store's traits. No engine
//! and no cryptography: what stands in these rows is encoded, sealed and hashed by `dalsegno-format`, and kept by
//! `dalsegno-store`.
//!
//! [`Store`] is what whoever has all of it holds; [`Operator`], [`Worker`], [`Read`] and [`Admin`] are its parts, by who asks.

pub mod anchor;
mod asked;
mod attempt;
pub mod audit;
mod boundary;
mod call;
mod capacity;
mod cause;
pub mod checkpoint;
mod data_keys;
mod digests;
mod error;
mod finish;
mod history;
pub mod millis;
mod place;
mod pulse;
pub mod reading;
mod records;
mod retention;
mod rewind;
mod run;
mod snapshot;
mod store;
mod string_enum;
mod worker;

pub use anchor::{AnchorRow, RUNS_PER_ANCHOR, Unanchored};
pub use asked::*;
pub use attempt::*;
pub use boundary::*;
pub use call::*;
pub use capacity::*;
pub use cause::Cause;
pub use data_keys::*;
pub use digests::*;
pub use error::{Error, Result, misread};
pub use finish::*;
pub use history::*;
pub use place::*;
pub use pulse::*;
pub use reading::Reading;
pub use records::*;
pub use retention::*;
pub use rewind::*;
pub use run::*;
pub use snapshot::*;
pub use store::{Admin, Operator, Read, Store, Worker};
pub use string_enum::UnknownVariant;
pub use worker::*;

use uuid::Uuid;

/// A run's own id (UUIDv7); stays when an object is adopted by another of the same name.
pub type RunId = Uuid;

/// SHA-256.
pub type Digest = [u8; 32];
