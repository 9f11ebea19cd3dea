//! Crashes and outages of the database: it is killed, its disk is full, its connections are cut. Every acknowledged write
//! is stored once, and every refused one can be sent again.
#![allow(clippy::unwrap_used, reason = "a case that cannot go on has failed")]

#[allow(dead_code)]
#[path = "../conformance/context.rs"]
mod context;
#[allow(dead_code)]
#[path = "../support/pg.rs"]
mod pg;
#[allow(dead_code)]
#[path = "../support/proxy.rs"]
mod proxy;
#[path = "../support/strace.rs"]
mod strace;

mod child;
mod postgres;
mod read_only_volume;
mod retrying_worker;
mod sqlite;
mod volume;
