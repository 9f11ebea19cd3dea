//! The commands of a user: the real program on a real store.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod audit_show;
mod backup;
mod export;
mod keys;
mod names;
mod namespaces;
#[path = "../../store/tests/support/pg.rs"]
mod pg;
mod prune;
mod purge;
mod replica;
mod settle;
mod snapshots;
mod terminal;
mod test_context;
mod wrong_database;
