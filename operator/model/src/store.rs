//! The store's traits, one for each who asks.

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
/// - Every method is atomic and, once it has answered, durable.
/// - A write of a worker is judged against the run's row under its lock, in the same statement that writes: a capability
///   that is not the current epoch's is refused, whoever holds it and however late it comes.
/// - Every method may be sent again after an unknown outcome: it then changes nothing and tells what is there.
///
/// # Assumptions
///
/// - Times are the database's own; no caller's clock enters a decision here.
///
/// # Caveats
///
/// - An [`Error`](crate::Error) is an unknown outcome, never a "no". Only an answer is an answer.
pub trait Store: Operator + Worker + Read + Admin {}

impl<S: Operator + Worker + Read + Admin + ?Sized> Store for S {}
