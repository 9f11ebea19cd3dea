//! What holds for PostgreSQL alone. What holds for every face is in `conformance`.
#![allow(clippy::unwrap_used, reason = "a case that cannot go on has failed")]

#[allow(dead_code)]
#[path = "../support/keys.rs"]
mod keys;
#[path = "../support/pg.rs"]
mod pg;
#[path = "../support/wire.rs"]
mod wire;
#[allow(dead_code)]
#[path = "../conformance/world.rs"]
mod world;

mod busy;
mod grants;
mod hashes;
mod locks;
mod lookups;
mod outages;
mod round_trips;
mod schema;
mod settings;
mod tls;

use std::sync::Arc;

use dalsegno_store::postgres::Postgres;
use world::World;

/// A fresh database and its URL.
async fn fresh() -> (World, String) {
    let url = pg::database().await;
    (open(&url).await, url)
}

/// Another process on the same database.
async fn open(url: &str) -> World {
    World::new(Arc::new(Postgres::connect(url).await.unwrap()), ())
}
