//! Proofs about stored data: chains, anchors, bundles, and whether a run can continue from its head. Pure, except for
//! [`check_store`], [`check_run`] and [`verify`], which read a store.
//!
//! Every check continues after a problem, starting from the faulty row, so that one edited row is reported as one
//! problem and not as a thousand.

mod anchor;
mod anchor_chain;
mod anchored_run;
mod anchors;
mod audit_chain;
mod audit_claims;
mod audit_reconciler;
mod boundary_chain;
pub mod bundle;
mod calls;
mod check;
mod encoding;
mod fork;
mod integrity_scan;
mod merkle;
mod messages;
mod problem;
mod records;
mod retention;
mod run;
mod signing;
mod sorted_rows;
pub mod verify;
mod waits;

pub use dalsegno_model::anchor::{AnchoredHead, HeadsToAnchor};

pub use anchor::{Anchor, AnchorLine};
pub use anchor_chain::{NamedRows, ProvenAnchors};
pub use anchors::Anchors;
pub use audit_chain::AuditChain;
pub use boundary_chain::BoundaryChain;
pub use check::{Summary, check_store, check_store_and_anchors};
pub use integrity_scan::{Corruption, IntegrityScan, ScanReport};
pub use problem::Problem;
pub use run::{Checked, check_run};
pub use signing::{PublicKey, Signer, is_signed};
