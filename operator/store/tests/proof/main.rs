//! What was edited, deleted or reordered is found: in rows by hand, and in the databases.
#![allow(clippy::unwrap_used, reason = "a case that cannot go on has failed")]

#[allow(dead_code)]
#[path = "../support/pg.rs"]
mod pg;
#[allow(dead_code)]
#[path = "../conformance/world.rs"]
mod world;

mod append_only;
mod faces;
mod rows;
mod stores;
mod tamper;
