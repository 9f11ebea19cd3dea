//! The gateway: the HTTP face of the store, and the worker's side of the contract (`docs/reference/contract.md`).
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

mod attach;
mod auth;
mod bases;
mod beat;
mod body;
mod boundary;
mod budget;
mod calls;
mod check;
mod end;
mod events;
mod export;
mod gateway;
mod heartbeat;
mod json5;
mod metrics;
mod observe;
mod path;
mod patience;
mod query;
mod read;
mod readings;
mod records;
mod refusal;
mod room;
mod routes;
mod serve;
mod snapshots;
mod stall;

pub use auth::{AuthError, Authenticator, Person, PodIdentity};
pub use gateway::{Config, Gateway};
pub use room::Room;
pub use routes::router;
pub use serve::serve;
