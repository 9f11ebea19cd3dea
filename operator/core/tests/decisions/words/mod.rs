//! Situations and expectations, in words.

mod ends;
mod expect;
mod pods;
mod situation;
mod store;

pub use ends::{Past, accepted, crashed, disrupted, nobodys};
pub use expect::{Case, Expect, acts, always, case, ends, in_words, rests, try_all};
pub use pods::{Seen, pod};
pub use situation::{Given, run};

use jiff::{SignedDuration, Timestamp};

/// Name of the run.
pub const RUN: &str = "triage";
/// Its namespace.
pub const NAMESPACE: &str = "prod";
/// UID of its AgentRun.
pub const UID: &str = "run-uid";
/// The agent's image by its tag.
pub const TAGGED: &str = "registry.test:5000/agent:1";

/// The time, for the operator as for the store.
pub fn now() -> Timestamp {
    "2026-11-20T12:00:00Z".parse().unwrap()
}

/// So many seconds ago; negative ones are still to come.
pub fn ago(seconds: i64) -> Timestamp {
    now() - SignedDuration::from_secs(seconds)
}

/// A digest that can be told from others at a glance.
pub fn digest(of: char) -> String {
    format!("sha256:{}", of.to_string().repeat(64))
}

/// The agent's image by this digest.
pub fn by_digest(of: char) -> String {
    format!("registry.test:5000/agent@{}", digest(of))
}
