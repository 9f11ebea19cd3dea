//! Stories that run side by side on one cluster: each has its own namespace and disturbs nobody else's pods.

mod bad_authors;
mod bad_manifests;
mod bad_surroundings;
mod bad_workers;
mod calls;
mod canaries;
mod cancel;
mod crashes;
mod deletion;
mod disruptions;
mod finish;
mod liveness;
mod loop_detector;
mod reading;
mod retention;
mod versions;
mod writes;
