//! Caches of cluster objects. A cache may start work, but proves nothing: before an object counts as gone, ask the API
//! server.

pub mod api_health;
pub mod approvals;
pub mod invalid_objects;
pub mod listed_objects;
pub mod merged_watch;
pub mod nodes;
pub mod pods;
pub mod quotas;
pub mod raw_object;
pub mod run_queues;
pub mod watch_health;
