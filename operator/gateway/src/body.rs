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

use crate::auth::PodIdentity;
use crate::budget::{Full, Part, Who};
use crate::gateway::Gateway;
use crate::json5;
use crate::path::Worker;
use crate::refusal::Refusal;

/// A body that has arrived. It counts against the process's budget until it is dropped.
pub(crate) struct Received {
    /// JSON: the bytes as they came, but for numbers that are none ([`json5`]).
    pub(crate) bytes: Vec<u8>,
    /// SHA-256 of the bytes as they came.
    pub(crate) digest: Digest,
    budget: Part,
}

/// How much of a body is taken from a worker whose capability nobody has judged. The store judges most of them in the
/// statement that writes, and is not asked before.
const UNJUDGED_BYTES: usize = 64 << 10;

/// How much of a body that is too large is still read and thrown away. A sender that is cut off while it writes sees a
/// broken connection, tries for ever and never hears why.
const COURTESY_BYTES: usize = 4 * Limits::BODY_BYTES;

/// Characters of a parser's complaint that are sent back.
const COMPLAINT_CHARS: usize = 300;

/// Reads the body of a worker's request.
pub(crate) async fn receive(
    gateway: &Gateway,
    worker: &Worker,
    request: Request,
) -> Result<Received, Refusal> {
    let part = gateway.bodies.nothing_yet(Who::Stranger);
    let place = Place { gateway, part, unjudged: Some(worker) };
    within(Limits::BODY_BYTES, place, request).await
}

/// Reads the body of an attach.
pub(crate) async fn receive_from_pod(
    gateway: &Gateway,
    pod: &PodIdentity,
    request: Request,
) -> Result<Received, Refusal> {
    let part = gateway.bodies.nothing_yet(Who::Pod(pod.pod_uid.clone()));
    within(Limits::ATTACH_BYTES, Place { gateway, part, unjudged: None }, request).await
}

async fn within(most: usize, place: Place<'_>, request: Request) -> Result<Received, Refusal> {
    let (parts, body) = request.into_parts();
    refuse_encoded(&parts.headers)?;
    let announced = announced(&parts.headers);
    if announced > COURTESY_BYTES {
        return Err(too_large(most));
    }
    let deadline = place.gateway.config.body_deadline;
    match tokio::time::timeout(deadline, collect(most, place, body, announced)).await {
        Ok(received) => received,
        Err(_) => Err(not_whole(format!("did not arrive whole within {} s", deadline.as_secs_f32()))),
    }
}

/// The sender may be well, and the way to here not: it sends the same bytes again.
fn not_whole(why: impl Display) -> Refusal {
    Refusal::new(Code::Unavailable, format!("the body {why}; send the same bytes again"))
}

async fn collect(
    most: usize,
    mut place: Place<'_>,
    body: Body,
    announced: usize,
) -> Result<Received, Refusal> {
    let mut frames = body.into_data_stream();
    let mut bytes = Vec::with_capacity(announced.min(most));
    let mut hash = Sha256::new();
    while let Some(frame) = frames.next().await {
        let frame: Bytes = frame.map_err(|_| not_whole("broke off"))?;
        if announced.max(bytes.len() + frame.len()) > most {
            drop((bytes, place));
            discard(frames).await;
            return Err(too_large(most));
        }
        place.grow(frame.len()).await?;
        hash.update(&frame);
        bytes.extend_from_slice(&frame);
    }
    presentable(&bytes)?;
    Ok(Received { bytes: json5::to_json(bytes)?, digest: hash.finalize().into(), budget: place.part })
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

/// A body's place in the process's budget: among the strangers' until its sender is judged.
struct Place<'a> {
    gateway: &'a Gateway,
    part: Part,
    unjudged: Option<&'a Worker>,
}

impl Place<'_> {
    /// Takes this many bytes more; nobody waits for them with a body half read. What a worker that is not the current one
    /// sends stays among the strangers': whether its commit stands the store alone can tell.
    async fn grow(&mut self, bytes: usize) -> Result<(), Refusal> {
        if let Some(&Worker { run, capability, .. }) = self.unjudged {
            if self.part.amount() + bytes <= UNJUDGED_BYTES {
                match self.part.grow(bytes) {
                    Err(Full::Strangers) => {}
                    grown => return Ok(grown?),
                }
            }
            self.unjudged = None;
            if self.gateway.was_current(run, capability).await? {
                self.part.pass_to(Who::Run(run))?;
            }
        }
        Ok(self.part.grow(bytes)?)
    }
}

impl Received {
    /// The request that the body holds.
    pub(crate) fn parse<T: DeserializeOwned>(&self) -> Result<T, Refusal> {
        serde_json::from_slice(&self.bytes).map_err(|error| complaint(&error))
    }

    /// Lets the bytes go and keeps their place in the budget: what was parsed from them takes as much.
    pub(crate) fn release(self) -> (Digest, Part) {
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
    Refusal::invalid(format!("{what}: {said}; see docs/reference/contract.md for its fields"))
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

fn too_large(most: usize) -> Refusal {
    Refusal::new(
        Code::TooLarge,
        format!(
            "the body is larger than {most} bytes; commit what changed by channels, or keep large things elsewhere and \
             commit where they are"
        ),
    )
}
