//! The store's traits, one per caller.

mod admin;
mod operator;
mod read;
mod worker;

pub use admin::Admin;
pub use operator::Operator;
pub use read::Read;
pub use worker::Worker;

/// The whole store: what a run has committed, which attempt may write, and nothing that can be derived from these.
///
/// # Guarantees
///
/// - Every method is atomic. Once it has returned, its effect is durable.
/// - A worker's write is checked against the run's row under its lock, in the same statement that writes. A
///   capability that is not the current epoch's is rejected, no matter who holds it or how late it arrives.
/// - Every method may be called again after an unknown outcome. It then changes nothing, and returns what is stored.
///
/// # Assumptions
///
/// - All times are the database's own. No caller's clock is used in a decision.
///
/// # Caveats
///
/// - An [`Error`](crate::Error) means that the outcome is unknown. It never means "no".
pub trait Store: Operator + Worker + Read + Admin {}

impl<S: Operator + Worker + Read + Admin + ?Sized> Store for S {}
