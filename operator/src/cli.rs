//! Commands that a user runs on a store: one file per command.

pub mod adopt_namespace;
pub mod audit;
mod audit_rows;
pub mod audit_show;
pub mod backup;
pub mod export;
pub mod keys;
pub mod purge;
mod runs;
pub mod settle;
pub mod show;
pub mod verify;
