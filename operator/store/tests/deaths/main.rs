//! The database dies, its disk is full, its wire is cut. What was acknowledged is there, once; what was refused can be sent
//! again.
#![allow(clippy::unwrap_used, reason = "a case that cannot go on has failed")]

#[allow(dead_code)]
#[path = "../support/pg.rs"]
mod pg;
#[path = "../support/traced.rs"]
mod traced;
#[allow(dead_code)]
#[path = "../support/wire.rs"]
mod wire;
#[allow(dead_code)]
#[path = "../conformance/world.rs"]
mod world;

mod child;
mod postgres;
mod sqlite;
mod steady;
