//! The SDK against a scripted gateway.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod agent;
mod calls;
mod connections;
mod gateway;
mod guide;
mod heartbeats;
mod inbox;
mod limits;
mod records;
mod replays;
mod run;
mod spaces;
mod steps;
mod store_timeout;
mod suspend;
mod tools;
mod waits;
