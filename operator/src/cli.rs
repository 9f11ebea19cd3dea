//! Commands that a user runs on a store: one file per command.

pub mod adopt_namespace;
pub mod audit;
pub mod export;
pub mod keys;
pub mod purge;
mod runs;
pub mod settle;
pub mod show;
pub mod verify;
