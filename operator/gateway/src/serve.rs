//! From the first connection to the last answer.

use std::future::IntoFuture;
use std::io;

use axum::serve::ListenerExt;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::beat;
use crate::gateway::Gateway;
use crate::routes::router;

/// Serves until `shutdown` is ready, and beats meanwhile. Then it takes no new connection, answers what is under way
/// (for at most [`crate::Config::shutdown_limit`]) and returns.
///
/// # Errors
///
/// What the listener says.
pub async fn serve(
    listener: TcpListener,
    gateway: Gateway,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let mut beats = JoinSet::new();
    beats.spawn(beat::beat(gateway.clone()));
    let listener = listener.tap_io(|connection| {
        if let Err(error) = connection.set_nodelay(true) {
            tracing::debug!(%error, "answers may be delayed");
        }
    });
    let closing = gateway.closing.clone();
    let limit = {
        let gateway = gateway.clone();
        async move {
            gateway.closing.cancelled().await;
            tokio::time::sleep(gateway.config.shutdown_limit).await;
        }
    };
    let serving = axum::serve(listener, router(gateway)).with_graceful_shutdown(async move {
        shutdown.await;
        closing.cancel();
    });
    tokio::select! {
        served = serving.into_future() => served,
        () = limit => {
            tracing::warn!("calls were under way beyond the limit and are dropped");
            Ok(())
        }
    }
}
