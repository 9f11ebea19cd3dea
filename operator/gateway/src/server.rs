//! Accepts connections, serves them, and shuts down gracefully.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use axum::{BoxError, Router};
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::accept_health::ACCEPT_RETRY_PAUSE;
use crate::background::gateway_heartbeat;
use crate::gateway::Gateway;
use crate::limits::busy_body::hold_busy;
use crate::limits::connections::{Activity, PeerAddress};
use crate::limits::refused_connection::Refusals;
use crate::limits::write_timeout::WriteTimeoutStream;
use crate::metrics::RefusedConnection;
use crate::routes::router;
use crate::tls::{HandshakeError, PeerCertificates, Transport, legacy_closed};

/// Bytes that hyper buffers of one connection in each direction.
const CONNECTION_BUFFER: usize = 32 << 10;

/// Bytes of a request's head. A larger head is refused with 431. The largest part of a head is a token, of about 1 KiB.
const HEAD_BYTES: usize = 16 << 10;

/// Headers of a request. A request with more of them is refused with 431.
const MAX_HEADERS: usize = 64;

/// Where connections arrive, and what they may ask.
pub struct Listener {
    socket: TcpListener,
    transport: Transport,
    app: TowerToHyperService<Router>,
}

impl Listener {
    /// A listener for workers and users.
    pub fn new(socket: TcpListener, transport: Transport, gateway: &Gateway) -> Self {
        Self::with_router(socket, transport, router(gateway.clone()))
    }

    /// A listener for workers and users, over plain HTTP.
    pub fn plain(socket: TcpListener, gateway: &Gateway) -> Self {
        Self::new(socket, Transport::Plain, gateway)
    }

    /// A listener for the calls of this router.
    pub fn with_router(socket: TcpListener, transport: Transport, router: Router) -> Self {
        Self { socket, transport, app: TowerToHyperService::new(router) }
    }

    /// Accepts and serves connections until `stop`, within the limits of the gateway. Then it accepts no more, answers the
    /// calls under way (for up to [`crate::Config::shutdown_timeout`]) and returns.
    ///
    /// A connection is closed if its peer does not send for [`crate::Config::first_byte_timeout`],
    /// [`crate::Config::handshake_timeout`], [`crate::Config::header_read_timeout`] or
    /// [`crate::Config::idle_timeout`], if its peer does not read for [`crate::Config::write_timeout`], or if it is idle and
    /// a new connection needs its place.
    pub async fn serve(self, gateway: Gateway, stop: CancellationToken) {
        let Self { socket, transport, app } = self;
        let refusals = Refusals::new();
        let open = GracefulShutdown::new();
        while let Some((connection, peer)) = stop.run_until_cancelled(accept(&socket, &gateway)).await {
            let admitted = match gateway.connections.admit(peer.ip()) {
                Ok(admitted) => admitted,
                Err(_) => {
                    // A client that speaks TLS could not read the answer: its connection is closed, and it opens another.
                    if !matches!(transport, Transport::Tls(_)) {
                        refusals.send(connection);
                    }
                    continue;
                }
            };
            let serving = Connection {
                gateway: gateway.clone(),
                app: app.clone(),
                activity: admitted.activity.clone(),
                peer: PeerAddress::from(peer.ip()),
                watcher: open.watcher(),
            };
            let (gateway, transport) = (gateway.clone(), transport.clone());
            tokio::spawn(async move {
                let serving = serving.serve(connection, transport);
                if let Some(Err(error)) = admitted.serve(serving, &gateway.config).await {
                    tracing::debug!(%error, "connection failed");
                }
            });
        }
        drop(socket);
        if tokio::time::timeout(gateway.config.shutdown_timeout, open.shutdown()).await.is_err() {
            tracing::warn!("calls still under way at the shutdown time-out are dropped");
        }
    }
}

/// What one connection needs.
struct Connection {
    gateway: Gateway,
    app: TowerToHyperService<Router>,
    activity: Arc<Activity>,
    peer: PeerAddress,
    watcher: Watcher,
}

impl Connection {
    /// Serves until the connection ends.
    async fn serve(self, connection: TcpStream, transport: Transport) -> Result<(), BoxError> {
        let (acceptor, is_open) = match transport {
            Transport::Plain => (None, None),
            Transport::Legacy(is_open) => (None, Some(is_open)),
            Transport::Tls(acceptor) => (Some(acceptor), None),
        };
        let Some(acceptor) = acceptor else {
            let stream = self.limited(connection);
            return self.answer(stream, None, is_open).await;
        };
        let secured = async {
            let connection = acceptor.peek(connection).await?;
            self.activity.begin_handshake();
            acceptor.accept(self.limited(connection)).await
        };
        let stream = secured.await.inspect_err(|error| match error {
            HandshakeError::NotTls => self.gateway.metrics.connection_refused(RefusedConnection::NotTls),
            HandshakeError::Failed(_) | HandshakeError::NoCertificate => {
                self.gateway.metrics.connection_refused(RefusedConnection::Handshake);
            }
            HandshakeError::Io(_) => {}
        })?;
        self.activity.end_handshake();
        let certificates = PeerCertificates::of(&stream);
        self.answer(stream, certificates, None).await
    }

    fn limited(&self, connection: TcpStream) -> WriteTimeoutStream {
        WriteTimeoutStream::new(connection, self.gateway.config.write_timeout, self.activity.clone())
    }

    /// Answers the requests of this stream. `is_open`: whether requests without TLS are answered.
    async fn answer<S>(
        self,
        stream: S,
        certificates: Option<PeerCertificates>,
        is_open: Option<watch::Receiver<bool>>,
    ) -> Result<(), BoxError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Self { gateway: _, app, activity, peer, watcher } = self;
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer);
            if let Some(certificates) = &certificates {
                request.extensions_mut().insert(certificates.clone());
            }
            let busy = activity.begin_request();
            let is_refused = is_open.as_ref().is_some_and(|it| !*it.borrow());
            let answer = (!is_refused).then(|| app.call(request));
            async move {
                let response: Response = match answer {
                    Some(answer) => answer.await?,
                    None => legacy_closed().into_response(),
                };
                Ok::<_, Infallible>(hold_busy(response, busy))
            }
        });
        let mut http = http1::Builder::new();
        // `OpenConnection::serve` has the time-outs.
        http.header_read_timeout(None)
            .max_buf_size(CONNECTION_BUFFER)
            .max_header_size(HEAD_BYTES)
            .max_headers(MAX_HEADERS);
        Ok(watcher.watch(http.serve_connection(TokioIo::new(stream), service)).await?)
    }
}

/// Serves at all listeners until `shutdown` is ready, and sends the gateway heartbeat meanwhile. Then it accepts no more
/// connections, answers the calls under way and returns.
///
/// # Errors
///
/// - A listener has stopped.
/// - The gateway heartbeat has stopped; without it the operator takes this gateway for dead.
/// - The batching of heartbeats has stopped; without it every worker would be taken for silent.
pub async fn serve(
    listeners: Vec<Listener>,
    gateway: Gateway,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let mut heartbeat = JoinSet::new();
    heartbeat.spawn(gateway_heartbeat::run(gateway.clone()));
    let (mut serving, stop) = (JoinSet::new(), CancellationToken::new());
    for listener in listeners {
        serving.spawn(listener.serve(gateway.clone(), stop.clone()));
    }
    let failure = |what: &str, ended: Result<(), JoinError>| {
        let why = ended.map_or_else(|panicked| panicked.to_string(), |()| "it has ended".into());
        Err(io::Error::other(format!("{what} has stopped: {why}")))
    };
    tokio::select! {
        () = shutdown => {}
        Some(ended) = heartbeat.join_next() => return failure("the gateway heartbeat", ended),
        Some(ended) = serving.join_next() => return failure("a listener", ended),
        () = gateway.heartbeat_batcher.stopped() => {
            return Err(io::Error::other("the batching of heartbeats has stopped"));
        }
    }
    gateway.stopping.cancel();
    stop.cancel();
    while serving.join_next().await.is_some() {}
    Ok(())
}

/// Accepts the next connection.
async fn accept(listener: &TcpListener, gateway: &Gateway) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((connection, peer)) => {
                gateway.accept_health.accepted();
                if let Err(error) = connection.set_nodelay(true) {
                    tracing::debug!(%error, "TCP_NODELAY could not be set; answers may be delayed");
                }
                return (connection, peer);
            }
            Err(error) if is_connection_error(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                gateway.accept_health.failed(&error);
                tokio::time::sleep(ACCEPT_RETRY_PAUSE).await;
            }
        }
    }
}

/// Whether one connection failed before it was accepted, while the listener works.
fn is_connection_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};

    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
