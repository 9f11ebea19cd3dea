//! The embedded store: SQLite in a file or in memory, with one process that writes.
//!
//! # Guarantees
//!
//! - WAL and `synchronous=FULL`: a write is on the disk before it is acknowledged ([`writer`]).
//! - One process serves: it holds an exclusive lock on `<database>.lock` until it ends. Any number of processes may
//!   read. A short write of a command line may run at the same time, because no process caches anything between two
//!   requests.
//!
//! # Assumptions
//!
//! - The file is on a local file system. The locks and syncs of a network file system are not reliable.
//!
//! # Caveats
//!
//! - Times are those of the process's clock ([`clock`]).
//! - The volume may fill up or fail: see [`volume`] and [`serving`].
//!
//! # Layers
//!
//! Each layer imports only the layers above it in this list:
//!
//! 1. `sqlx_types`, `row`, and the statements, one file for each subject: functions over a connection.
//! 2. [`writer`]: one transaction for all writes that wait; [`volume`] and [`active_reads`]: what keeps the write-ahead
//!    log small.
//! 3. [`database`]: the type [`Sqlite`], its connections, and how an operation gets to one of them.
//! 4. [`snapshot_store`], [`payload_reads`], [`payload_writes`], [`transitions`]: operations with encryption or rules.
//! 5. [`store`]: the traits of the store.

mod active_reads;
mod admission;
mod anchors;
mod audit;
mod backup;
mod batch_statements;
mod boundary;
mod boundary_facts;
mod boundary_pages;
mod branch;
mod calls;
mod clock;
mod commit;
mod compaction;
mod create;
mod data_keys;
mod database;
mod deadline_poll;
mod disk;
mod disk_fault;
mod disk_limits;
mod events;
mod files;
mod fork;
mod heartbeats;
mod lock;
mod message_statements;
mod messages;
mod namespace;
mod open_calls;
mod outbox;
mod payload_reads;
mod payload_writes;
mod prune;
mod purge;
mod read;
mod read_transaction;
mod record_reads;
mod records;
mod reserve;
mod retention;
mod revisions;
mod row;
mod schema;
mod serving;
mod snapshot;
mod snapshot_store;
mod sqlx_types;
mod store;
#[cfg(test)]
mod tests;
mod transact;
mod transitions;
mod volume;
mod waits;
mod wal_rewrite;
mod write_op;
mod writer;

pub(crate) use backup::back_up;
pub use database::Sqlite;
pub use disk::{Disk, DiskLevel, DiskStatus};
