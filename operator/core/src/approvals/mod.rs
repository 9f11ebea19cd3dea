//! The approvals of a run: an AgentApproval for each open approval, and what a decision on it does.
//!
//! # Invariants
//!
//! - The store says which approvals are open. An AgentApproval only shows one of them, and carries the decision.
//! - A decision counts only if the admission policies of the chart have been in place since before the AgentApproval was
//!   created: they prove who decided. An older object is replaced.
//! - An approval times out only after its AgentApproval was read live after the deadline, without a decision, and once
//!   the AgentApproval has been there for as long as the agent gave people, or an hour.
//! - Texts name the AgentApproval and never what the agent wrote.

mod check;
pub mod four_eyes;
mod object;
mod observed;
mod plan;
pub mod policies;
mod status;

pub use object::name_of;
pub use observed::{
    ApprovalEffect, ClosedWait, KnownWait, ObservedApproval, ObservedApprovals, OverApproval, PolicyState,
    WaitKey, WhichDecision,
};
pub(crate) use plan::{ApprovalPlan, Facts, plan};
pub use status::is_over;
