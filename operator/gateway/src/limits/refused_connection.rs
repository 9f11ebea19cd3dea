//! The answer to a connection that is refused: 503 with `Retry-After`, so that clients retry instead of waiting.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_protocol::Code;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::response::ApiProblem;

/// Refusals that are sent at once. Further connections are closed without an answer.
const MAX_REFUSALS: usize = 64;

/// Longest time that one refusal takes.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);

/// Bytes of the request that are read and discarded. A connection that is closed with unread bytes loses its answer.
const DISCARDED_BYTES: u64 = 64 << 10;

/// Sends refusals.
#[derive(Clone)]
pub(crate) struct Refusals {
    slots: Arc<Semaphore>,
    response: Arc<str>,
}

impl Refusals {
    pub(crate) fn new() -> Self {
        let problem = ApiProblem::new(
            Code::Unavailable,
            "this gateway has as many open connections as it may, in all or from this address; send the same bytes again",
        );
        let response = response("503 Service Unavailable\r\nretry-after: 1", &problem);
        Self { slots: Arc::new(Semaphore::new(MAX_REFUSALS)), response: response.into() }
    }

    /// Answers in the background and closes the connection.
    pub(crate) fn send(&self, connection: TcpStream) {
        let Ok(slot) = self.slots.clone().try_acquire_owned() else { return };
        let response = self.response.clone();
        tokio::spawn(async move {
            // The client is refused either way; without this answer it sees a closed connection.
            let _ = tokio::time::timeout(REFUSAL_TIMEOUT, send(connection, &response)).await;
            drop(slot);
        });
    }
}

/// An answer with this status line, the last of its connection.
pub(crate) fn response(status: &str, problem: &ApiProblem) -> String {
    let body = serde_json::to_string(&problem.0).unwrap_or_default();
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n\
         {body}",
        body.len()
    )
}

/// Sends an answer and closes the connection.
pub(crate) async fn send(mut connection: TcpStream, response: &str) -> std::io::Result<()> {
    connection.write_all(response.as_bytes()).await?;
    connection.shutdown().await?;
    tokio::io::copy(&mut connection.take(DISCARDED_BYTES), &mut tokio::io::sink()).await?;
    Ok(())
}
