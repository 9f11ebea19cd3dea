//! The decision: what the state of a run is, and what to do next.
//!
//! # Guarantees
//!
//! [`decide()`] is pure and total. This crate does not wait, call other systems, or read a clock or the environment. It
//! takes what the operator observed and returns what to do. It reports problems in the run's status and never fails.
//! The same input gives the same decision.
//!
//! | module | policy |
//! |---|---|
//! | [`mod@decide`] | the order of all rules |
//! | `store_consistency` | whether to act on the store's answer |
//! | [`settings`] | the value of each field: the run's, the definition's, or the built-in one |
//! | [`evidence`] | why an attempt ended, and who caused it: the order of the evidence |
//! | `pod_end`, [`termination_message`], `deadlines` | the evidence itself: the pod's status, the worker's message, expired deadlines |
//! | [`recovery`] | when a run is held, and how long the next attempt waits |
//! | `head_check` | what to do if the state at the head cannot be rebuilt |
//! | [`version`] | which template the next attempt uses, and whether its image may resume the checkpoint |
//! | [`revision`] | content-addressed templates of pods |
//! | [`worker`] | the pod of an attempt |
//! | `orphaned_pods` | pods to delete |
//! | `run_stage`, `status` | the run's status and its Kubernetes events |
//! | [`pod`] | how to read a pod's status |

mod deadlines;
pub mod decide;
mod decision;
pub mod end;
pub mod evidence;
mod head_check;
mod observed;
mod orphaned_pods;
pub mod pod;
mod pod_end;
pub mod recovery;
pub mod revision;
mod run_stage;
pub mod settings;
mod status;
mod store_consistency;
pub mod termination_message;
mod text;
pub mod version;
pub mod worker;

pub use deadlines::is_silent;
pub use decide::decide;
pub use decision::{Decision, Effect, EventLevel, EventSpec};
pub use observed::{
    EffectResult, Observed, ObservedAgent, ObservedHead, ObservedNode, ObservedPod, ObservedStore,
    PodCreateError,
};
