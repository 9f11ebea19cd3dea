//! The SDK against a scripted gateway.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod calls;
mod connections;
mod gateway;
mod heartbeats;
mod inbox;
mod limits;
mod records;
mod run;
mod steps;
mod store_timeout;
mod suspend;
mod waits;
