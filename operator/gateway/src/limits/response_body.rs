//! Large responses: measured before they are written, within the process's limit, and sent within a time limit.

use std::io;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures::stream;
use serde::Serialize;
use tokio::time::Instant;

use crate::gateway::Gateway;
use crate::limits::shared_limit::{LimitOwner, LimitPermit};
use crate::response::{self, ApiProblem, JSON};

/// Bytes handed to the connection at a time.
const CHUNK: usize = 256 << 10;

/// A `200` with this document, which may be large.
///
/// Unless it is small, its bytes are charged to the owner before it is written and until it is sent. A response that is
/// not sent after `max_response_duration` is cut off, so that others can have the bytes.
pub(crate) fn json_response(
    gateway: &Gateway,
    owner: &LimitOwner,
    document: &impl Serialize,
) -> Result<Response, ApiProblem> {
    let limit = gateway.config.max_response_bytes;
    let length = json_length(document, limit).ok_or_else(|| ApiProblem::response_too_large(limit))?;
    if length <= gateway.config.small_response_bytes() {
        return response::ok(document);
    }
    let permit = gateway.response_bytes.acquire(owner.clone(), length)?;
    let text = Bytes::from(response::to_json(document)?);
    let head = [(header::CONTENT_TYPE, JSON), (header::CONTENT_LENGTH, text.len().into())];
    let until = Instant::now() + gateway.config.max_response_duration;
    Ok((head, chunked_body(text, permit, until)).into_response())
}

/// The error that aborts a response whose head is already sent. The client sees only that the body is incomplete.
pub(crate) fn abort_error(problem: ApiProblem) -> io::Error {
    io::Error::other(problem.0.detail)
}

/// Bytes of the document as JSON, counted without storing the text; `None`: more than `limit`.
pub(crate) fn json_length(document: &impl Serialize, limit: usize) -> Option<usize> {
    struct BytesLeft(usize);

    impl io::Write for BytesLeft {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let mut left = BytesLeft(limit);
    serde_json::to_writer(&mut left, document).ok()?;
    Some(limit - left.0)
}

/// A body sent in chunks, with an error in place of the next chunk once `until` has passed.
fn chunked_body(bytes: Bytes, permit: LimitPermit, until: Instant) -> Body {
    Body::from_stream(stream::unfold((bytes, permit), move |(mut bytes, permit)| async move {
        if bytes.is_empty() {
            return None;
        }
        if Instant::now() > until {
            let late = io::Error::new(io::ErrorKind::TimedOut, "the client reads too slowly");
            return Some((Err(late), (Bytes::new(), permit)));
        }
        let chunk = bytes.split_to(bytes.len().min(CHUNK));
        Some((Ok(chunk), (bytes, permit)))
    }))
}
