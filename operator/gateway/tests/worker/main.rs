//! The worker's contract, judged from outside: requests in, answers out, the real store behind.

#![allow(clippy::unwrap_used, reason = "a helper of tests may fail the test")]

#[path = "../../../store/tests/support/child_process.rs"]
mod alone;
mod attach;
mod bases;
mod bodies;
mod bombs;
mod boundaries;
mod calls;
mod channels;
mod damage;
mod ends;
mod events;
mod exports;
mod faults;
#[path = "../../../store/tests/support/forged.rs"]
mod forged;
mod heartbeats;
mod hurting;
mod input;
#[allow(dead_code)]
#[path = "../../../store/tests/support/keys.rs"]
mod keys;
mod observed;
mod outages;
mod people;
#[allow(dead_code)]
#[path = "../../../store/tests/support/pg.rs"]
mod pg;
mod records;
mod serving;
mod sizes;
mod snapshots;
mod tenants;
mod versions;
mod walk;
mod world;
