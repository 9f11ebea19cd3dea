//! The decision: what is true of a run, and what to do about it.
//!
//! Pure and total. Nothing here waits, calls, reads a clock or an environment; what was observed comes in, what is to
//! be done goes out, and bad news is a status. That is why every rule of the operator can be read and tried in one
//! place: [`decide`].
//!
//! | module | one policy each |
//! |---|---|
//! | [`mod@decide`] | all of them, in order |
//! | `trust` | whether the store's answer is to be acted on |
//! | [`settings`] | which value a field has: the run's, the definition's, or the built-in one |
//! | [`evidence`], `silence` | why an attempt ended, and who caused it |
//! | [`recovery`] | when a run is held, and how long it waits before the next attempt |
//! | `corruption` | what is done when a run cannot go on from its head |
//! | [`version`] | under which template a run goes on, and whether it may under this image |
//! | [`revision`] | the templates that made pods, content-addressed |
//! | [`worker`] | the pod of an attempt |
//! | `strays` | the pods that shall not be there |
//! | `situation`, `status`, `conditions`, `notices` | what a person reads |
//! | [`pod`] | what a pod's own status says |

mod conditions;
mod corruption;
pub mod decide;
mod decision;
pub mod evidence;
mod notices;
mod observed;
pub mod pod;
pub mod recovery;
pub mod revision;
pub mod settings;
mod silence;
mod situation;
mod status;
mod strays;
mod text;
mod trust;
pub mod version;
pub mod worker;

pub use decide::decide;
pub use decision::{Decision, Effect, Level, Notice};
pub use observed::{AgentSight, Fact, HeadSight, NodeSight, Observed, PodSight, Refusal, StoreSight};
