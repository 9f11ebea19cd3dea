//! Accepts connections, serves them, and shuts down gracefully.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;

use axum::response::Response;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::accept_health::ACCEPT_RETRY_PAUSE;
use crate::background::gateway_heartbeat;
use crate::gateway::Gateway;
use crate::limits::busy_body::hold_busy;
use crate::limits::connections::PeerAddress;
use crate::limits::refused_connection::Refusals;
use crate::limits::write_timeout::WriteTimeoutStream;
use crate::routes::router;

/// Bytes that hyper buffers of one connection in each direction.
const CONNECTION_BUFFER: usize = 32 << 10;

/// Bytes of a request's head. A larger head is refused with 431. The largest part of a head is a token, of about 1 KiB.
const HEAD_BYTES: usize = 16 << 10;

/// Headers of a request. A request with more of them is refused with 431.
const MAX_HEADERS: usize = 64;

/// Serves until `shutdown` is ready, and sends the gateway heartbeat meanwhile. Then it accepts no more connections,
/// answers the calls under way (for up to [`crate::Config::shutdown_timeout`]) and returns.
///
/// A connection is closed if its peer does not send for [`crate::Config::first_byte_timeout`],
/// [`crate::Config::header_read_timeout`] or [`crate::Config::idle_timeout`], if its peer does not read for
/// [`crate::Config::write_timeout`], or if it is idle and a new connection needs its place.
///
/// # Errors
///
/// - The listener fails.
/// - The gateway heartbeat has stopped; without it the operator takes this gateway for dead.
/// - The batching of heartbeats has stopped; without it every worker would be taken for silent.
pub async fn serve(
    listener: TcpListener,
    gateway: Gateway,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let mut heartbeat = JoinSet::new();
    heartbeat.spawn(gateway_heartbeat::run(gateway.clone()));
    let app = TowerToHyperService::new(router(gateway.clone()));
    let mut http = http1::Builder::new();
    // `OpenConnection::serve` has the time-outs.
    http.header_read_timeout(None)
        .max_buf_size(CONNECTION_BUFFER)
        .max_header_size(HEAD_BYTES)
        .max_headers(MAX_HEADERS);
    let refusals = Refusals::new();
    let open = GracefulShutdown::new();
    let mut shutdown = pin!(shutdown);
    loop {
        let (connection, peer) = tokio::select! {
            accepted = accept(&listener, &gateway) => accepted,
            () = &mut shutdown => break,
            Some(ended) = heartbeat.join_next() => {
                let why = ended.map_or_else(|panicked| panicked.to_string(), |()| "it has ended".into());
                return Err(io::Error::other(format!("the gateway heartbeat has stopped: {why}")));
            }
            () = gateway.heartbeat_batcher.stopped() => {
                return Err(io::Error::other("the batching of heartbeats has stopped"));
            }
        };
        let admitted = match gateway.connections.admit(peer.ip()) {
            Ok(admitted) => admitted,
            Err(_) => {
                refusals.send(connection);
                continue;
            }
        };
        let activity = admitted.activity.clone();
        let connection = WriteTimeoutStream::new(connection, gateway.config.write_timeout, activity.clone());
        let app = app.clone();
        let peer = PeerAddress::from(peer.ip());
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer);
            let busy = activity.begin_request();
            let answer = app.call(request);
            async move { answer.await.map(|response: Response| hold_busy(response, busy)) }
        });
        let serving = open.watch(http.serve_connection(TokioIo::new(connection), service));
        let gateway = gateway.clone();
        tokio::spawn(async move {
            if let Some(Err(error)) = admitted.serve(serving, &gateway.config).await {
                tracing::debug!(%error, "connection failed");
            }
        });
    }
    drop(listener);
    gateway.stopping.cancel();
    if tokio::time::timeout(gateway.config.shutdown_timeout, open.shutdown()).await.is_err() {
        tracing::warn!("calls still under way at the shutdown time-out are dropped");
    }
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
