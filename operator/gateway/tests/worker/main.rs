//! The worker's contract over HTTP, tested as a black box with a real store.

#![allow(clippy::unwrap_used, reason = "a test helper may fail the test")]

mod accepting;
mod aggregated;
#[path = "../../../store/tests/support/child_process.rs"]
mod alone;
mod attach;
mod bodies;
mod boundaries;
mod calls;
mod channels;
mod connections;
mod context;
mod contract_page;
mod corruption;
mod delta_bases;
mod events;
mod exports;
mod faulty_store;
mod finish;
#[path = "../../../store/tests/support/forged.rs"]
mod forged;
mod heartbeats;
mod input;
#[allow(dead_code)]
#[path = "../../../store/tests/support/keys.rs"]
mod keys;
mod limits;
mod memory;
mod messages;
mod observability;
mod oversized_input;
mod park;
#[allow(dead_code)]
#[path = "../../../store/tests/support/pg.rs"]
mod pg;
mod postgres_outages;
mod proposals;
mod records;
mod server;
mod snapshots;
mod store_outages;
mod stored_bytes;
mod tenant_isolation;
mod tls;
mod token_reviews;
mod users;
mod versions;
mod waits;
