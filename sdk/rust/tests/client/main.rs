//! The SDK against a scripted gateway.

mod calls;
mod connections;
mod gateway;
mod heartbeats;
mod records;
mod run;
