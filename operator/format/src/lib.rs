//! Bytes at rest: how payloads are encoded, sealed and framed, how boundaries and the audit are hashed and chained. Pure; no
//! database. Each module says its format, with the version that is written.

pub mod audit;
mod base;
pub mod chain;
pub mod codec;
pub mod fields;
pub mod fold;
pub mod header;
pub mod keys;
pub mod manifest;
pub mod memory;
pub mod packed;
pub mod records;
pub mod seal;
pub mod size;

pub use base::LastState;
