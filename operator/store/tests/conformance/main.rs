//! One suite, every face of the store. `README.md` beside this file says what it holds them to.
#![allow(clippy::unwrap_used, reason = "a case that cannot go on has failed")]

mod attach;
mod attempts;
mod audit;
mod calls;
mod cancel;
mod capacity;
mod checkpoints;
mod commits;
mod counting;
mod crowds;
mod deadlines;
mod deletion;
mod events;
mod faces;
mod finishes;
mod interleavings;
mod keep_last;
mod outcomes;
mod patches;
mod prior_runs;
mod property;
mod pulse;
mod records;
mod refused_keys;
mod reset;
mod retention;
mod revisions;
mod rewinds;
mod settles;
mod snapshot_property;
mod snapshots;
mod states;
mod twins;
mod world;
mod zombies;
