//! The aggregated API: people reach the payloads of runs through the API server, with nothing but a kubeconfig.
//!
//! The API server authenticates and authorizes a person, and forwards the request to a listener of its own here. The
//! handlers are those of the token door.
//!
//! # Guarantees
//!
//! - Only the API server's front proxy is answered: its client certificate must verify ([`RequestHeaderTrust`]).
//! - The four documents that the API server itself asks for are served while the store is away: without them the
//!   namespaces of the whole cluster could not be deleted.
//! - Every error is a `metav1.Status`.
//!
//! # Assumptions
//!
//! - The API server has authorized the request before it forwards it, by the same names as the token door asks for. It
//!   takes the subresource from the path, so only paths with exactly its segments are answered.

pub(crate) mod caller;
pub(crate) mod documents;
pub(crate) mod paths;
mod server;
mod status;
mod trust;

pub use documents::{GROUP, VERSION};
pub use server::{AggregatedApi, CertificatePem, ServerIdentity};
pub use trust::{RequestHeaderTrust, TrustError};
