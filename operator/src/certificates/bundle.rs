//! The bundle of CAs that new workers get.

use std::sync::{Arc, Mutex};

use dalsegno_core::{CaBundle, GatewayAddress};

use crate::mutex::lock;

/// Where workers reach the gateway, and the CAs that they are started with. Clones share the bundle.
#[derive(Clone, Debug, Default)]
pub struct GatewayTrust {
    url: Arc<str>,
    ca: Arc<Mutex<Option<CaBundle>>>,
}

impl GatewayTrust {
    /// A gateway with this base URL. Its CA is not known yet.
    pub fn new(url: &str) -> Self {
        Self { url: url.trim_end_matches('/').into(), ca: Arc::default() }
    }

    /// The address for a worker that is started now.
    pub fn address(&self) -> GatewayAddress {
        GatewayAddress { url: self.url.to_string(), ca: lock(&self.ca).clone() }
    }

    /// Whether a worker needs the CA to verify the gateway.
    pub fn has_tls(&self) -> bool {
        self.url.starts_with("https://")
    }

    /// Workers that are started from now on get this bundle.
    pub fn set(&self, bundle: CaBundle) {
        *lock(&self.ca) = Some(bundle);
    }
}
