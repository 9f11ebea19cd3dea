//! The store's interface: rows, verdicts and causes as plain data, and the store's traits. This crate contains no
//! database code and no cryptography: `dalsegno-format` encodes, seals and hashes what these rows hold, and
//! `dalsegno-store` stores it.
//!
//! [`Store`] is the whole interface. Its parts, by caller, are [`Operator`], [`Worker`], [`Read`] and [`Admin`].

pub mod anchor;
mod attempt;
pub mod audit;
mod boundary;
mod boundary_facts;
mod boundary_id;
mod call;
mod cause;
pub mod checkpoint;
mod data_keys;
mod deadline_poll;
mod deadline_rule;
mod error;
mod facts;
mod finish;
mod fork;
mod forked_from;
mod history;
mod limit_use;
mod limits;
mod messages;
pub mod millis;
mod outbox;
mod purge;
pub mod read_transaction;
mod records;
mod retention;
mod rewind;
mod run;
mod snapshot;
mod store;
mod string_enum;
mod wait;
mod worker;

pub use anchor::{AnchorRow, HeadsToAnchor, LEAVES_PER_ANCHOR, NewAnchor};
pub use attempt::*;
pub use audit::{BudgetReset, NamespaceAdoption, RequestedBy};
pub use boundary::*;
pub use boundary_facts::*;
pub use boundary_id::*;
pub use call::*;
pub use cause::Cause;
pub use checkpoint::{Rewind, Rewound};
pub use data_keys::*;
pub use deadline_poll::*;
pub use deadline_rule::{CLOCKS, Clock, ClockLength, ClockStart};
pub use error::{Error, Result, redacted_json_error};
pub use facts::Facts;
pub use finish::*;
pub use fork::*;
pub use forked_from::*;
pub use history::*;
pub use limits::*;
pub use messages::*;
pub use outbox::*;
pub use purge::*;
pub use read_transaction::ReadTransaction;
pub use records::*;
pub use retention::*;
pub use rewind::*;
pub use run::*;
pub use snapshot::*;
pub use store::{Admin, Operator, Read, Store, Worker};
pub use string_enum::UnknownVariant;
pub use wait::*;
pub use worker::*;

use uuid::Uuid;

/// A run's own id (UUIDv7). It does not change when another object of the same name adopts the run.
pub type RunId = Uuid;

/// A SHA-256 digest.
pub type Digest = [u8; 32];
