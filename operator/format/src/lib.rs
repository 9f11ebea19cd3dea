//! Bytes at rest: how payloads are encoded, sealed and framed, and how boundaries and the audit are hashed and
//! chained. Pure, no database. Each module documents its format, with the version that is written.

pub mod audit;
pub mod chain;
pub mod codec;
mod delta_base;
pub mod encoded_ops;
pub mod fields;
pub mod fold;
pub mod header;
pub mod keys;
pub mod manifest;
pub mod memory;
mod memory_items;
pub mod messages;
pub mod proposal;
pub mod record_pages;
pub mod records;
pub mod seal;
pub mod size;

pub use delta_base::PatchChain;
