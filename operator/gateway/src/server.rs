//! From the first connection to the last answer.

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
use crate::limits::write_timeout::Stalling;
use crate::routes::router;

/// Pause after a connection could not be accepted, as when this process has no file left for it.
const PAUSE: Duration = Duration::from_secs(1);

/// Serves until `shutdown` is ready, and beats meanwhile. Then it takes no new connection, answers what is under way
/// (for at most [`crate::Config::shutdown_limit`]) and returns.
///
/// A connection whose next request does not begin within [`crate::Config::head_deadline`] is closed, so that nobody
/// holds one of [`crate::Config::connections`] for ever; so is one that takes nothing of its answer for
/// [`crate::Config::stall_limit`].
///
/// # Errors
///
/// What the listener says; or it beats no more, and whoever listens for that would take it for gone; or it hears no
/// heartbeats any more, and every worker would be taken for silent.
pub async fn serve(
    listener: TcpListener,
    gateway: Gateway,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let mut beats = JoinSet::new();
    beats.spawn(gateway_heartbeat::beat(gateway.clone()));
    let app = TowerToHyperService::new(router(gateway.clone()));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(gateway.config.head_deadline);
    let places = Arc::new(Semaphore::new(gateway.config.connections));
    let open = GracefulShutdown::new();
    let mut shutdown = pin!(shutdown);
    loop {
        let (connection, place) = tokio::select! {
            accepted = accept(&listener, &places) => accepted?,
            () = &mut shutdown => break,
            Some(ended) = beats.join_next() => {
                let why = ended.map_or_else(|panicked| panicked.to_string(), |()| "it has ended".into());
                return Err(io::Error::other(format!("the beat of the gateway: {why}")));
            }
            () = gateway.heartbeats.ended() => {
                return Err(io::Error::other("the gathering of heartbeats: it has ended"));
            }
        };
        let connection = Stalling::new(connection, gateway.config.stall_limit);
        let answering = open.watch(http.serve_connection(TokioIo::new(connection), app.clone()));
        tokio::spawn(async move {
            if let Err(error) = answering.await {
                tracing::debug!(%error, "a connection broke off");
            }
            drop(place);
        });
    }
    drop(listener);
    gateway.closing.cancel();
    if tokio::time::timeout(gateway.config.shutdown_limit, open.shutdown()).await.is_err() {
        tracing::warn!("calls were under way beyond the limit and are dropped");
    }
    Ok(())
}

/// The next connection, once there is a place for it.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let place = places.clone().acquire_owned().await.map_err(io::Error::other)?;
    loop {
        match listener.accept().await {
            Ok((connection, _)) => {
                if let Err(error) = connection.set_nodelay(true) {
                    tracing::debug!(%error, "answers may be delayed");
                }
                return Ok((connection, place));
            }
            Err(error) if is_the_peers(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "no connection could be accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Whether a connection broke before it was accepted, and the listener is well.
fn is_the_peers(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};

    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
