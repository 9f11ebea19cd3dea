//! Tests that run in parallel on one cluster. Each has its own namespace and does not disturb the pods of others.

mod anchors;
mod api_writes;
mod approvals;
mod authors;
mod blocked_starts;
mod calls;
mod cancel;
mod chart;
mod confidentiality;
mod crashes;
mod deletion;
mod disruptions;
mod finish;
mod hostile_workers;
mod inspection;
mod invalid_manifests;
mod limits;
mod liveness;
mod loop_detector;
mod messages;
mod plugin;
mod retention;
mod states;
mod suspend;
mod versions;
mod waits;
