//! The gateway: the HTTP face of the store, and the worker's side of the contract (`docs/worker-contract.md`).
//!
//! # Guarantees
//!
//! - A `200` is durable: it is sent after the store's answer and never before.
//! - A payload is kept as the text that came. The gateway looks at its brackets and passes it on.
//! - Every refusal is a [`dalsegno_protocol::Problem`], of an unknown path as of a lost store.
//! - No token, capability, key or payload is ever logged.
//!
//! # Assumptions
//!
//! - Whoever may write is judged by the store, in the statement that writes. The gateway holds nothing that another
//!   gateway would need: any number may serve the same runs.
//!
//! # Caveats
//!
//! - A worker that got no answer does not know whether its call took effect; nor does the gateway. It sends the same
//!   bytes again, and the store tells.

mod authenticator;
mod background;
mod config;
mod credentials;
mod delta_bases;
mod error_chain;
mod extractors;
mod gateway;
mod handlers;
mod json5;
mod limits;
mod metrics;
mod middleware;
mod query;
mod response;
mod routes;
mod server;
mod store_reads;
mod store_retry;
mod validation;

pub use authenticator::{AuthError, Authenticator, Person, PodIdentity};
pub use config::Config;
pub use gateway::Gateway;
pub use limits::state_reads::Room;
pub use routes::router;
pub use server::serve;
