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
//! | [`Rule`], [`mod@explain`] | the name of the rule that a decision follows, for people who see less than the operator |
//! | `store_consistency` | whether to act on the store's answer |
//! | [`settings`] | the value of each field: the run's, the definition's, or the built-in one |
//! | [`evidence`] | why an attempt ended, and who caused it: the order of the evidence |
//! | `pod_end`, [`termination_message`], `lost_sandbox`, `deadlines` | the evidence itself: the pod's status, the worker's message, a start that never ends, expired deadlines |
//! | `external` | agents that keep their own checkpoints: which end is confirmed |
//! | [`slow_start`] | when the events of a pod are read, because it may wait for a volume |
//! | [`late_node_loss`] | when the charge of an attempt is taken back |
//! | [`recovery`] | when a run is held, and how long the next attempt waits |
//! | [`temporary_holds`] | which holds end by themselves, and when |
//! | [`remedy`], [`CliLocation`] | what a person does about a hold, with the commands for this run |
//! | [`api_registration`] | whether the aggregated API is registered at the API server |
//! | [`approvals`] | the AgentApprovals of a run, and which decisions count |
//! | [`certificates`] | the gateway's certificate and its CA, and when they change |
//! | [`attribution`] | who requested a change of an AgentRun, and why |
//! | [`resync`] | when a run is looked at although nothing woke it |
//! | `pod_create_error` | when a refused pod is tried again, and when its run is held |
//! | [`run_queue`] | which runs wait because their definition limits them |
//! | `rewind` | rewinds that a person requests, and the step back before the last try |
//! | `fork` | runs that begin as a fork of another run |
//! | `head_check` | what to do if the state at the head cannot be rebuilt |
//! | [`version`] | which template the next attempt uses, and whether its image may resume the checkpoint |
//! | [`revision`] | content-addressed templates of pods |
//! | [`worker`] | the pod of an attempt |
//! | `avoided_nodes` | the nodes that the next pod avoids |
//! | `orphaned_pods` | pods to delete |
//! | `run_stage`, `status` | the run's status and its Kubernetes events |
//! | [`pod`] | how to read a pod's status |

pub mod api_registration;
pub mod approvals;
pub mod attribution;
mod avoided_nodes;
pub mod certificates;
mod cli_location;
mod deadlines;
pub mod decide;
mod decision;
pub mod end;
pub mod evidence;
pub mod explain;
mod external;
mod fork;
mod head_check;
mod json;
pub mod late_node_loss;
mod lost_sandbox;
mod observed;
mod orphaned_pods;
pub mod pod;
mod pod_create_error;
mod pod_end;
pub mod recovery;
pub mod remedy;
pub mod resync;
pub mod revision;
mod rewind;
mod rule;
pub mod run_queue;
mod run_stage;
pub mod settings;
pub mod slow_start;
mod status;
mod store_consistency;
pub mod temporary_holds;
pub mod termination_message;
pub mod text;
pub mod version;
pub mod worker;

pub use cli_location::CliLocation;
pub use deadlines::is_silent;
pub use decide::decide;
pub use decision::{Announcement, Decision, Effect, EventLevel, EventSpec};
pub use observed::{
    CaBundle, EffectResult, ForkProgress, GatewayAddress, NameHolder, Observed, ObservedAgent, ObservedHead,
    ObservedNode, ObservedPod, ObservedStore, VolumeProblem,
};
pub use pod_create_error::{NamespaceQuota, PodCreateError};
pub use rule::Rule;
