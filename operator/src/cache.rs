//! Caches of cluster objects. A cache may start work, but proves nothing: whoever wants to believe that an object is gone
//! asks the API server first.

pub mod api_health;
pub mod invalid_objects;
pub mod nodes;
pub mod pods;
pub mod quotas;
pub mod raw_object;
pub mod run_queues;
