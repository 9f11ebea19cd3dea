//! What is specific to PostgreSQL. The cases of every engine are in `conformance`.
#![allow(clippy::unwrap_used, reason = "a case that cannot go on has failed")]

#[allow(dead_code)]
#[path = "../conformance/context.rs"]
mod context;
#[allow(dead_code)]
#[path = "../support/keys.rs"]
mod keys;
#[path = "../support/pg.rs"]
mod pg;
#[path = "../support/proxy.rs"]
mod proxy;

mod abandoned;
mod added_columns;
mod anchors;
mod busy;
mod connections;
mod grants;
mod hashes;
mod heartbeat_plan;
mod locks;
mod lookups;
mod lost_keys;
mod lost_transitions;
mod namespaces;
mod outages;
mod replica;
mod round_trips;
mod scans;
mod schema;
mod server_failures;
mod settings;
mod tls;
mod verification;

use std::sync::Arc;

use context::TestContext;
use dalsegno_store::postgres::Postgres;

/// A patient store on a new database, and its URL.
async fn fresh() -> (TestContext, String) {
    let url = pg::database().await;
    (patient(&url).await, url)
}

/// The store of another process on the same database.
async fn open(url: &str) -> TestContext {
    TestContext::new(Arc::new(Postgres::connect(url).await.unwrap()), ())
}

/// The same, with longer limits: for tests whose calls wait, and for those that do not test the limits.
async fn patient(url: &str) -> TestContext {
    TestContext::new(Arc::new(pg::patient(url).await), ())
}
