//! Answers that may be large: measured, within the process's budget, within their time.

use std::io;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures::stream;
use serde::Serialize;
use tokio::time::Instant;

use crate::gateway::Gateway;
use crate::limits::shared_limit::{Part, Who};
use crate::response::{self, JSON, Refusal};

/// Bytes handed to the connection at a time.
const CHUNK: usize = 256 << 10;

/// An answer that may be large: it is measured, and unless it is small it has its place before it is written, until it has
/// gone out. Who reads it for longer than a stream may last gets no more of it: others wait for the place.
pub(crate) fn answer(gateway: &Gateway, who: &Who, answer: &impl Serialize) -> Result<Response, Refusal> {
    let most = gateway.config.answer_budget;
    let length = length(answer, most).ok_or_else(|| Refusal::answer_too_large(most))?;
    if length <= gateway.config.small_answer() {
        return response::ok(answer);
    }
    let budget = gateway.answers.take(who.clone(), length)?;
    let text = Bytes::from(response::text(answer)?);
    let head = [(header::CONTENT_TYPE, JSON), (header::CONTENT_LENGTH, text.len().into())];
    let until = Instant::now() + gateway.config.follow_limit;
    Ok((head, trickle(text, budget, until)).into_response())
}

/// Ends a body that has begun, where all that can still be told is that it is not whole.
pub(crate) fn broken(refusal: Refusal) -> io::Error {
    io::Error::other(refusal.0.detail)
}

/// Bytes of an answer as text, without writing it anywhere; `None`: more than so many.
pub(crate) fn length(answer: &impl Serialize, most: usize) -> Option<usize> {
    struct Room(usize);

    impl std::io::Write for Room {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(std::io::ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    let mut room = Room(most);
    serde_json::to_writer(&mut room, answer).ok()?;
    Some(most - room.0)
}

fn trickle(bytes: Bytes, budget: Part, until: Instant) -> Body {
    Body::from_stream(stream::unfold((bytes, budget), move |(mut bytes, budget)| async move {
        if bytes.is_empty() {
            return None;
        }
        if Instant::now() > until {
            let late = io::Error::new(io::ErrorKind::TimedOut, "its reader takes too long");
            return Some((Err(late), (Bytes::new(), budget)));
        }
        let chunk = bytes.split_to(bytes.len().min(CHUNK));
        Some((Ok(chunk), (bytes, budget)))
    }))
}
