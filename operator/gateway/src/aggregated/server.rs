//! The listener of the aggregated API: TLS with the front proxy's client certificate, and the answers.

use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::http::Method;
use axum::response::Response;
use dalsegno_protocol::Code;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tower::ServiceExt as _;

use super::caller::FrontProxyUser;
use super::trust::RequestHeaderTrust;
use super::{documents, paths, status};
use crate::accept_health::ACCEPT_RETRY_PAUSE;
use crate::error_chain::error_chain;
use crate::gateway::Gateway;
use crate::routes::front_proxy_router;
use crate::tls::server_config_with;

/// Connections open at once. Each API server keeps a few, and one for each request under way. Until its handshake is
/// complete a connection may be a stranger's.
const MAX_CONNECTIONS: usize = 256;

/// Time for a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Time for the head of a request, from the end of the one before. The API server keeps idle connections for 90 s.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(120);

/// Bytes of a request's head. The front proxy adds the person's groups and extras to it.
const HEAD_BYTES: usize = 64 << 10;

/// Headers of a request. Each group of the person is one.
const MAX_HEADERS: usize = 512;

/// Time for requests to end when the listener closes.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// A certificate and its key, in PEM.
pub struct CertificatePem {
    /// The certificate, and what leads to its CA.
    pub chain: Vec<u8>,
    /// Its private key.
    pub key: Vec<u8>,
}

impl fmt::Debug for CertificatePem {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CertificatePem")
    }
}

/// What the listener proves and whom it trusts. While one of both is `None`, every connection is closed at once.
#[derive(Clone, Debug)]
pub struct ServerIdentity {
    /// The certificate that the APIService's CA bundle verifies.
    pub certificate: watch::Receiver<Option<Arc<CertificatePem>>>,
    /// The front proxy.
    pub trust: watch::Receiver<Option<Arc<RequestHeaderTrust>>>,
}

/// The aggregated API. It may be served before there is a gateway. Cheap to clone; all clones are the same API.
#[derive(Clone, Default)]
pub struct AggregatedApi {
    payloads: Arc<OnceLock<Router>>,
}

impl AggregatedApi {
    /// Serves payloads from now on.
    pub fn open(&self, gateway: Gateway) {
        // Another gateway of this process was first: both serve the same store.
        let _ = self.payloads.set(front_proxy_router(gateway));
    }

    /// Serves until `shutdown` is ready, and ends the requests under way within two seconds.
    pub async fn serve(
        self,
        listener: TcpListener,
        identity: ServerIdentity,
        shutdown: impl Future<Output = ()> + Send,
    ) {
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let open = GracefulShutdown::new();
        let mut shutdown = std::pin::pin!(shutdown);
        let mut current = Current { identity, config: None };
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = &mut shutdown => break,
            };
            let Ok((connection, _)) = accepted else {
                tokio::time::sleep(ACCEPT_RETRY_PAUSE).await;
                continue;
            };
            let Ok(place) = places.clone().try_acquire_owned() else { continue };
            let Some((acceptor, trust)) = current.acceptor() else { continue };
            let (api, watcher) = (self.clone(), open.watcher());
            let mut changes = current.identity.trust.clone();
            tokio::spawn(async move {
                let _place = place;
                let Ok(Some(stream)) = handshake(acceptor, connection, &trust).await else { return };
                let mut http = http1::Builder::new();
                http.timer(TokioTimer::new())
                    .header_read_timeout(HEADER_READ_TIMEOUT)
                    .max_buf_size(HEAD_BYTES)
                    .max_headers(MAX_HEADERS);
                let service = service_fn(move |request: Request<Incoming>| {
                    let (api, trust) = (api.clone(), trust.clone());
                    async move { Ok::<_, io::Error>(api.answer(request, &trust).await) }
                });
                let serving = watcher.watch(http.serve_connection(TokioIo::new(stream), service));
                // A connection that was verified by an earlier CA is closed: the API server opens a new one.
                tokio::select! {
                    served = serving => {
                        if let Err(error) = served {
                            tracing::debug!(%error, "a connection of the API server failed");
                        }
                    }
                    () = async {
                        if changes.changed().await.is_err() {
                            std::future::pending::<()>().await;
                        }
                    } => {}
                }
            });
        }
        drop(listener);
        let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, open.shutdown()).await;
    }

    /// Answers a request of the front proxy. The path is checked as it came, before anything is decoded.
    async fn answer(&self, request: Request<Incoming>, trust: &RequestHeaderTrust) -> Response {
        let path = request.uri().path().to_owned();
        if !paths::is_plain(&path) {
            return status::of(Code::NotFound, NO_SUCH_PATH, &path);
        }
        if matches!(*request.method(), Method::GET | Method::HEAD)
            && let Some(document) = documents::at(&path, request.headers())
        {
            return document;
        }
        let Some(user) = FrontProxyUser::from_headers(request.headers(), &trust.headers) else {
            let detail = "the request names no user: the API server's front proxy must set its headers";
            return status::of(Code::Unauthenticated, detail, &path);
        };
        let Some(payloads) = self.payloads.get() else {
            return status::of(Code::Unavailable, "the store is not open yet; try again", &path);
        };
        let mut request = request.map(axum::body::Body::new);
        request.extensions_mut().insert(user);
        match payloads.clone().oneshot(request).await {
            Ok(response) => status::from_response(response, &path),
            Err(never) => match never {},
        }
    }
}

const NO_SUCH_PATH: &str = "this API has no such path: GET /apis/subresources.dalsegno.dev/v1alpha1 lists what it has, \
                            each below namespaces/NAMESPACE/agentruns/NAME";

/// The TLS configuration of new connections. It is made again when the certificate or the trust changes.
struct Current {
    identity: ServerIdentity,
    config: Option<(TlsAcceptor, Arc<RequestHeaderTrust>)>,
}

impl Current {
    fn acceptor(&mut self) -> Option<(TlsAcceptor, Arc<RequestHeaderTrust>)> {
        let ServerIdentity { certificate, trust } = &mut self.identity;
        let is_new = certificate.has_changed().unwrap_or(false) | trust.has_changed().unwrap_or(false);
        if is_new || self.config.is_none() {
            let certificate = certificate.borrow_and_update().clone();
            let trust = trust.borrow_and_update().clone();
            self.config = certificate.zip(trust).and_then(|(certificate, trust)| {
                let config = server_config_with(&certificate.chain, &certificate.key, trust.verifier.clone());
                let config = config.inspect_err(|error| {
                    tracing::error!(
                        error = error_chain(error),
                        "the certificate of the aggregated API cannot be used"
                    )
                });
                Some((TlsAcceptor::from(config.ok()?), trust))
            });
        }
        self.config.clone()
    }
}

/// Completes the handshake; `None`: the certificate has another name than the front proxy's.
async fn handshake(
    acceptor: TlsAcceptor,
    connection: TcpStream,
    trust: &RequestHeaderTrust,
) -> io::Result<Option<TlsStream<TcpStream>>> {
    connection.set_nodelay(true)?;
    let stream = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(connection)).await??;
    let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let is_proxy = certificate.is_some_and(|certificate| trust.allows(certificate));
    if !is_proxy {
        tracing::warn!("a client certificate of the front proxy's CA has a name that is not allowed");
    }
    Ok(is_proxy.then_some(stream))
}
