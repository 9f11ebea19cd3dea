//! What was edited, deleted or reordered is found: in rows by hand, and in the databases.
#![allow(clippy::unwrap_used, reason = "a case that cannot go on has failed")]

#[path = "../support/both.rs"]
mod both;
#[path = "../support/forged.rs"]
mod forged;
#[allow(dead_code)]
#[path = "../support/keys.rs"]
mod keys;
#[allow(dead_code)]
#[path = "../support/pg.rs"]
mod pg;
#[allow(dead_code)]
#[path = "../conformance/world.rs"]
mod world;

mod anchors;
mod append_only;
mod bundles;
mod calls;
mod faces;
mod prune;
mod rows;
mod snapshots;
mod stores;
mod tamper;

use both::on_both;
use faces::Face;

/// How many random tamperings are tried: a slice, unless `make tamper` wants them all.
fn tamperings() -> usize {
    std::env::var("DALSEGNO_TAMPERINGS").map_or(1_000, |number| number.parse().unwrap())
}
