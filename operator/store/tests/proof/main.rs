//! The proof finds edited, deleted and reordered rows: in hand-made rows and in the databases.
#![allow(clippy::unwrap_used, reason = "a case that cannot go on has failed")]

#[path = "../support/both_databases.rs"]
mod both_databases;
#[allow(dead_code)]
#[path = "../conformance/context.rs"]
mod context;
#[path = "../support/forged.rs"]
mod forged;
#[allow(dead_code)]
#[path = "../support/keys.rs"]
mod keys;
#[allow(dead_code)]
#[path = "../support/pg.rs"]
mod pg;

mod anchors;
mod append_only;
mod bundles;
mod calls;
mod engines;
mod prune;
mod purge;
mod rows;
mod snapshots;
mod stored_anchors;
mod stores;
mod tamper;
mod waits;

use both_databases::on_both_databases;
use engines::Engine;

/// The number of random tamperings; `make tamper` sets a larger one.
fn tamperings() -> usize {
    std::env::var("DALSEGNO_TAMPERINGS").map_or(1_000, |number| number.parse().unwrap())
}
