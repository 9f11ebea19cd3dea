//! The gateway: the worker's contract (`docs/reference/contract.md`) over HTTP, in front of the store.
//!
//! # Guarantees
//!
//! - A `200` is durable: the gateway sends it only after the store has answered.
//! - Payloads are stored as the text that was sent. The gateway checks their nesting and does not rewrite them.
//! - Every error is a [`dalsegno_protocol::Problem`], for an unknown path as for an unavailable store.
//! - No token, capability, key or payload is logged.
//!
//! # Assumptions
//!
//! - The store decides who may write, in the statement that writes. A gateway holds no state that another gateway
//!   needs, so any number of gateways may serve the same runs.
//!
//! # Caveats
//!
//! - A worker that gets no answer does not know whether its call took effect, and the gateway does not know either. The
//!   worker sends the same bytes again, and the store recognises them.

mod accept_health;
mod aggregated;
mod authenticator;
mod background;
mod config;
mod credentials;
mod delta_base_cache;
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
pub mod tls;
mod token_reviews;
mod validation;

pub use aggregated::{
    AggregatedApi, CertificatePem, GROUP, RequestHeaderTrust, ServerIdentity, TrustError, VERSION,
};
pub use authenticator::{Access, AuthError, Authenticator, PodIdentity, RunName, User, Verb};
pub use config::Config;
pub use gateway::Gateway;
pub use limits::state_reads::StateReadBudget;
pub use routes::router;
pub use server::{Listener, serve};
