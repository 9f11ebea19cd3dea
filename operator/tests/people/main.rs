//! The verbs of a person, by the program, on a real store.

#![allow(clippy::unwrap_used, reason = "a case that cannot go on has failed")]

mod export;
mod keys;
mod names;
mod namespaces;
#[path = "../../store/tests/support/pg.rs"]
mod pg;
mod place;
mod prune;
mod settle;
mod snapshots;
mod terminal;
