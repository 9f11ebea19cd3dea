//! The gateway's listener for the API server. It opens before the store and closes last, so that the API server gets its
//! documents while the store is unavailable.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context as _;
use dalsegno_gateway::{AggregatedApi, CertificatePem, Gateway, ServerIdentity};
use kube::Client;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::front_proxy;
use crate::listen::listen;

/// The listener, while it serves.
pub struct AggregatedListener {
    api: AggregatedApi,
    stop: CancellationToken,
    serving: JoinHandle<()>,
    _watching: DropGuard,
}

impl AggregatedListener {
    /// Starts to serve the documents.
    ///
    /// # Errors
    ///
    /// The address cannot be bound.
    pub async fn start(
        address: SocketAddr,
        client: Client,
        certificate: watch::Receiver<Option<Arc<CertificatePem>>>,
    ) -> anyhow::Result<Self> {
        let socket = listen(address).await.context("listening for the API server")?;
        let (trust_sender, trust) = watch::channel(None);
        let watching = CancellationToken::new();
        let stopped = watching.clone();
        tokio::spawn(
            async move { stopped.run_until_cancelled(front_proxy::run(client, trust_sender)).await },
        );
        let (api, stop) = (AggregatedApi::default(), CancellationToken::new());
        let serving =
            api.clone().serve(socket, ServerIdentity { certificate, trust }, stop.clone().cancelled_owned());
        Ok(Self { api, stop, serving: tokio::spawn(serving), _watching: watching.drop_guard() })
    }

    /// Serves payloads from now on.
    pub fn open(&self, gateway: Gateway) {
        self.api.open(gateway);
    }

    /// Closes the listener. Nothing else of the process runs any more.
    pub async fn close(self) {
        self.stop.cancel();
        let _ = self.serving.await;
    }
}
