//! What the store is asked and what it answers: plain data, no database in it. One file for each who asks.

mod asked;
mod attempt;
mod call;
mod capacity;
mod history;
pub mod millis;
mod pulse;
mod records;
mod retention;
mod rewind;
mod run;
mod shred;
mod snapshot;
mod worker;

pub use asked::*;
pub use attempt::*;
pub use call::*;
pub use capacity::*;
pub use history::*;
pub use pulse::*;
pub use records::*;
pub use retention::*;
pub use rewind::*;
pub use run::*;
pub use shred::*;
pub use snapshot::*;
pub use worker::*;

use uuid::Uuid;

/// A run's own id (UUIDv7); stays when an object is adopted by another of the same name.
pub type RunId = Uuid;

/// SHA-256.
pub type Digest = [u8; 32];
