//! What the gateway serves: follows the Secret with the certificate over the API, so that a new one is served without a
//! restart, and a missing one does not block the pod.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_gateway::CertificatePem;
use dalsegno_gateway::tls::server_config;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Secret;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use rustls::ServerConfig;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::SERVED;
use super::issue::facts;
use super::objects::{content, plain_open};

/// For so long after its start a gateway serves workers without TLS, whatever the Secret says. A version without TLS may have
/// started some since the Secret was written, and the operator may not have seen them yet.
const OPEN_AT_START: Duration = Duration::from_secs(60);

/// The certificate that the gateway serves. Clones share it.
#[derive(Clone)]
pub struct Serving {
    certificate: watch::Sender<Option<Arc<CertificatePem>>>,
    config: watch::Sender<Option<Arc<ServerConfig>>>,
    plain_open: watch::Sender<bool>,
    /// Unset until there is a certificate.
    expiry: Family<[(String, String); 0], Gauge>,
}

impl Serving {
    /// There is no certificate yet, and workers without TLS are served: after an upgrade there may be some.
    pub fn new() -> Self {
        let (certificate, config) = (watch::Sender::new(None), watch::Sender::new(None));
        Self { certificate, config, plain_open: watch::Sender::new(true), expiry: Family::default() }
    }

    /// The certificate and its key, for a listener with a configuration of its own.
    pub fn certificate(&self) -> watch::Receiver<Option<Arc<CertificatePem>>> {
        self.certificate.subscribe()
    }

    /// The configuration of the workers' listener.
    pub fn config(&self) -> watch::Receiver<Option<Arc<ServerConfig>>> {
        self.config.subscribe()
    }

    /// Whether workers without TLS are served.
    pub fn plain_open(&self) -> watch::Receiver<bool> {
        self.plain_open.subscribe()
    }

    /// Registers the time at which the certificate expires.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "gateway_certificate_expiry_timestamp_seconds",
            "Unix time at which the certificate that this gateway serves expires",
            self.expiry.clone(),
        );
    }

    /// Follows the Secret in the client's own namespace until `stop`. A Secret that is gone or damaged changes nothing: its
    /// last certificate is served on.
    pub async fn follow(self, client: Client, stop: CancellationToken) {
        let api: Api<Secret> = Api::default_namespaced(client);
        let only = watcher::Config::default().fields(&format!("metadata.name={SERVED}"));
        let mut secrets = pin!(watcher(api, only).default_backoff().applied_objects());
        let mut start = pin!(tokio::time::sleep(OPEN_AT_START));
        let (mut is_starting, mut is_noted_open) = (true, true);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = &mut start, if is_starting => is_starting = false,
                secret = secrets.next() => match secret {
                    None => return,
                    Some(Ok(secret)) => {
                        self.apply(&secret);
                        is_noted_open = plain_open(&secret).unwrap_or(true);
                    }
                    Some(Err(error)) => {
                        tracing::warn!(%error, "the watch of the gateway's certificate was interrupted")
                    }
                },
            }
            self.set_plain_open(is_starting || is_noted_open);
        }
    }

    fn apply(&self, secret: &Secret) {
        let read = content(secret).and_then(|it| {
            let pem = CertificatePem { chain: it.keyed.certificate.into(), key: it.keyed.key.into() };
            Ok((facts(&pem.chain)?, server_config(&pem.chain, &pem.key)?, pem))
        });
        match read {
            Ok((facts, config, pem)) => {
                let is_new = self.certificate.borrow().as_ref().is_none_or(|it| it.chain != pem.chain);
                if is_new {
                    tracing::info!(expires = %facts.not_after, id = facts.id, "the gateway serves a new certificate");
                    self.expiry.get_or_create(&[]).set(facts.not_after.as_second());
                    self.certificate.send_replace(Some(Arc::new(pem)));
                    self.config.send_replace(Some(config));
                }
            }
            Err(error) => {
                let error = format!("{error:#}");
                tracing::error!(
                    error,
                    "the gateway's new certificate cannot be used; the last one is served on"
                );
            }
        }
    }

    fn set_plain_open(&self, is_open: bool) {
        if self.plain_open.send_if_modified(|it| std::mem::replace(it, is_open) != is_open) {
            tracing::info!(is_open, "whether workers without TLS are served has changed");
        }
    }
}
