//! What can be proved of what is kept: chains, anchors, bundles, and whether a run can go on from its head. Pure but for
//! [`check_store`], [`check_run`] and [`verify`], which read.
//!
//! Every check goes on after a problem, from the row at which it stands, so that one edited row is one problem and
//! not a thousand.

mod account;
mod anchor;
mod anchors;
mod audit_chain;
mod boundary_chain;
pub mod bundle;
mod calls;
mod check;
mod marks;
mod problem;
mod records;
mod retention;
mod rows;
mod run;
mod said;
mod signing;
mod survey;
mod texts;
pub mod verify;

pub use dalsegno_model::anchor::{RUNS_PER_ANCHOR, Standing, Unanchored};

pub use anchor::Anchor;
pub use anchors::Anchors;
pub use audit_chain::AuditChain;
pub use boundary_chain::BoundaryChain;
pub use check::{Summary, check_store};
pub use problem::Problem;
pub use run::{Checked, check_run};
pub use signing::{PublicKey, Signer, is_signed};
pub use survey::{Damage, Findings, Survey};
