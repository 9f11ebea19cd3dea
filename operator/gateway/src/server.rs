//! Accepts connections, serves them, and shuts down gracefully.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use crate::background::gateway_heartbeat;
use crate::gateway::Gateway;
use crate::limits::write_timeout::WriteTimeoutStream;
use crate::routes::router;

/// Pause after a connection could not be accepted, for example because the process has no file descriptor left.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Serves until `shutdown` is ready, and sends the gateway heartbeat meanwhile. Then it accepts no more connections,
/// answers the calls under way (for up to [`crate::Config::shutdown_timeout`]) and returns.
///
/// A connection is closed if its next request does not arrive within [`crate::Config::header_read_timeout`], so that
/// idle connections do not use up [`crate::Config::max_connections`]; and if its peer does not read for
/// [`crate::Config::write_timeout`].
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
    http.timer(TokioTimer::new()).header_read_timeout(gateway.config.header_read_timeout);
    let slots = Arc::new(Semaphore::new(gateway.config.max_connections));
    let open = GracefulShutdown::new();
    let mut shutdown = pin!(shutdown);
    loop {
        let (connection, slot) = tokio::select! {
            accepted = accept(&listener, &slots) => accepted?,
            () = &mut shutdown => break,
            Some(ended) = heartbeat.join_next() => {
                let why = ended.map_or_else(|panicked| panicked.to_string(), |()| "it has ended".into());
                return Err(io::Error::other(format!("the gateway heartbeat has stopped: {why}")));
            }
            () = gateway.heartbeat_batcher.stopped() => {
                return Err(io::Error::other("the batching of heartbeats has stopped"));
            }
        };
        let connection = WriteTimeoutStream::new(connection, gateway.config.write_timeout);
        let serving = open.watch(http.serve_connection(TokioIo::new(connection), app.clone()));
        tokio::spawn(async move {
            if let Err(error) = serving.await {
                tracing::debug!(%error, "connection failed");
            }
            drop(slot);
        });
    }
    drop(listener);
    gateway.stopping.cancel();
    if tokio::time::timeout(gateway.config.shutdown_timeout, open.shutdown()).await.is_err() {
        tracing::warn!("calls still under way at the shutdown time-out are dropped");
    }
    Ok(())
}

/// Waits for a free slot and accepts the next connection.
async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let slot = slots.clone().acquire_owned().await.map_err(io::Error::other)?;
    loop {
        match listener.accept().await {
            Ok((connection, _)) => {
                if let Err(error) = connection.set_nodelay(true) {
                    tracing::debug!(%error, "TCP_NODELAY could not be set; answers may be delayed");
                }
                return Ok((connection, slot));
            }
            Err(error) if is_connection_error(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
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
