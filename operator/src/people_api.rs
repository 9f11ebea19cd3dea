//! The aggregated API in a cluster: its registration at the API server, which the operator makes and withdraws, and the
//! gateway's listener.
//!
//! The rules of the registration are in [`dalsegno_core::api_registration`].

mod api_service;
pub mod front_proxy;
pub mod leaving;
pub mod listener;
mod probe;
pub mod registrar;

/// The Deployment of the operator, and the ClusterRole that owns the registration: both end with the release.
const RELEASE: &str = "dalsegno";
