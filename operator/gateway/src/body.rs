//! Bodies: within their limit, within the process's budget, within their time; then JSON, then a request.

use std::fmt::Display;

use axum::body::{Body, BodyDataStream, Bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use dalsegno_protocol::{Code, Limits, nesting};
use dalsegno_store::Digest;
use futures::StreamExt;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};
use tokio::sync::OwnedSemaphorePermit;

use crate::gateway::Gateway;
use crate::json5;
use crate::refusal::Refusal;

/// A body that has arrived. It counts against the process's budget until it is dropped.
pub(crate) struct Received {
    /// JSON: the bytes as they came, but for numbers that are none ([`json5`]).
    pub(crate) bytes: Vec<u8>,
    /// SHA-256 of the bytes as they came.
    pub(crate) digest: Digest,
    budget: Option<OwnedSemaphorePermit>,
}

/// How much of a body that is too large is still read and thrown away. A sender that is cut off while it writes sees a
/// broken connection, tries for ever and never hears why.
const COURTESY_BYTES: usize = 4 * Limits::BODY_BYTES;

/// Characters of a parser's complaint that are sent back.
const COMPLAINT_CHARS: usize = 300;

/// Reads the body of a request.
pub(crate) async fn receive(gateway: &Gateway, request: Request) -> Result<Received, Refusal> {
    let (parts, body) = request.into_parts();
    refuse_encoded(&parts.headers)?;
    let announced = announced(&parts.headers);
    if announced > COURTESY_BYTES {
        return Err(too_large());
    }
    let deadline = gateway.config.body_deadline;
    match tokio::time::timeout(deadline, collect(gateway, body, announced)).await {
        Ok(received) => received,
        Err(_) => Err(not_whole(format!("did not arrive whole within {} s", deadline.as_secs_f32()))),
    }
}

/// The sender may be well, and the way to here not: it sends the same bytes again.
fn not_whole(why: impl Display) -> Refusal {
    Refusal::new(Code::Unavailable, format!("the body {why}; send the same bytes again"))
}

async fn collect(gateway: &Gateway, body: Body, announced: usize) -> Result<Received, Refusal> {
    let mut frames = body.into_data_stream();
    let mut bytes = Vec::with_capacity(announced.min(Limits::BODY_BYTES));
    let mut hash = Sha256::new();
    let mut budget = None;
    while let Some(frame) = frames.next().await {
        let frame: Bytes = frame.map_err(|_| not_whole("broke off"))?;
        if announced.max(bytes.len() + frame.len()) > Limits::BODY_BYTES {
            drop((bytes, budget));
            discard(frames).await;
            return Err(too_large());
        }
        charge(gateway, &mut budget, frame.len())?;
        hash.update(&frame);
        bytes.extend_from_slice(&frame);
    }
    presentable(&bytes)?;
    Ok(Received { bytes: json5::to_json(bytes)?, digest: hash.finalize().into(), budget })
}

/// Reads on and keeps nothing.
async fn discard(mut frames: BodyDataStream) {
    let mut left = COURTESY_BYTES;
    while let Some(Ok(frame)) = frames.next().await
        && left > frame.len()
    {
        left -= frame.len();
    }
}

/// Takes this many bytes more out of the process's budget; nobody waits for it with a body half read.
fn charge(gateway: &Gateway, held: &mut Option<OwnedSemaphorePermit>, bytes: usize) -> Result<(), Refusal> {
    // A frame is never larger than a body, and a body's limit fits.
    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    let Ok(more) = gateway.bodies.clone().try_acquire_many_owned(bytes) else {
        return Err(Refusal::full());
    };
    match held {
        Some(held) => held.merge(more),
        None => *held = Some(more),
    }
    Ok(())
}

impl Received {
    /// The request that the body holds.
    pub(crate) fn parse<T: DeserializeOwned>(&self) -> Result<T, Refusal> {
        serde_json::from_slice(&self.bytes).map_err(|error| complaint(&error))
    }

    /// Lets the bytes go and keeps their place in the budget: what was parsed from them takes as much.
    pub(crate) fn release(self) -> (Digest, Option<OwnedSemaphorePermit>) {
        (self.digest, self.budget)
    }
}

/// What must hold before a parser may look: it is an object (the parser would take an array of fields too), and not so
/// deep that a parser would break.
fn presentable(bytes: &[u8]) -> Result<(), Refusal> {
    match bytes.iter().find(|byte| !byte.is_ascii_whitespace()) {
        Some(b'{') => {}
        Some(_) => {
            return Err(Refusal::invalid("the body is not what this call takes: it takes a JSON object"));
        }
        None => {
            return Err(Refusal::invalid("the body is empty; this call takes a JSON object"));
        }
    }
    match nesting::deeper_than(Limits::DEPTH, bytes) {
        None => Ok(()),
        Some(offset) => Err(Refusal::invalid(format!(
            "the body is nested deeper than {} levels at byte {offset}; put the inner part into a string, or into a \
             channel of its own",
            Limits::DEPTH
        ))),
    }
}

fn complaint(error: &serde_json::Error) -> Refusal {
    let said: String = error.to_string().chars().take(COMPLAINT_CHARS).collect();
    let what = match error.classify() {
        serde_json::error::Category::Data => "the body is not what this call takes",
        _ => "the body is not JSON",
    };
    Refusal::invalid(format!("{what}: {said}; see docs/worker-contract.md for its fields"))
}

/// What the head of the request says of the body's length; 0 where it does not.
fn announced(headers: &HeaderMap) -> usize {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    length.and_then(|length| length.parse().ok()).unwrap_or_default()
}

fn refuse_encoded(headers: &HeaderMap) -> Result<(), Refusal> {
    match headers.get(header::CONTENT_ENCODING) {
        Some(encoding) if encoding != "identity" => {
            Err(Refusal::invalid("bodies are taken as they are: send it without a Content-Encoding"))
        }
        _ => Ok(()),
    }
}

fn too_large() -> Refusal {
    Refusal::new(
        Code::TooLarge,
        format!(
            "the body is larger than {} bytes; commit what changed by channels, or keep large things elsewhere and \
             commit where they are",
            Limits::BODY_BYTES
        ),
    )
}
