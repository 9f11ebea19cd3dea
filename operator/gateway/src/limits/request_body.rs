//! Reads request bodies: within their size limit, the process's limit and their time-out. Then checks and parses them.

use std::fmt::Display;

use axum::body::{Body, BodyDataStream, Bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use dalsegno_model::Digest;
use dalsegno_protocol::{Code, Limits, nesting};
use futures::StreamExt;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};

use crate::authenticator::PodIdentity;
use crate::extractors::{Worker, Writer};
use crate::gateway::Gateway;
use crate::json5;
use crate::limits::shared_limit::{LimitExceeded, LimitOwner, LimitPermit};
use crate::response::ApiProblem;

/// A body that was read completely. It counts against the process's limit until it is dropped.
pub(crate) struct RequestBody {
    /// JSON: the bytes as sent, except for non-finite numbers ([`json5`]).
    pub(crate) bytes: Vec<u8>,
    /// SHA-256 of the bytes as sent.
    pub(crate) digest: Digest,
    permit: LimitPermit,
}

/// Bytes of a body that are read before the worker's capability is verified. Most bodies are smaller; for them the
/// store checks the capability in the statement that writes, and no extra query is needed.
const UNVERIFIED_BYTES: usize = 64 << 10;

/// Bytes of an oversized body that are read and discarded before the answer. A client whose connection is closed while
/// it writes sees a network error instead of the answer, and retries for ever.
const DRAIN_LIMIT: usize = 4 * Limits::BODY_BYTES;

/// Characters of a parse error that are returned.
const PARSE_ERROR_CHARS: usize = 300;

/// Reads the body of a worker's request.
pub(crate) async fn read(
    gateway: &Gateway,
    worker: &Worker,
    request: Request,
) -> Result<RequestBody, ApiProblem> {
    let permit = gateway.request_bytes.empty_permit(LimitOwner::UnverifiedPeer);
    BodyLimit { gateway, permit, unverified: Some(worker), max_bytes: Limits::BODY_BYTES }.read(request).await
}

/// Reads the body of an attach request.
pub(crate) async fn read_from_pod(
    gateway: &Gateway,
    pod: &PodIdentity,
    request: Request,
) -> Result<RequestBody, ApiProblem> {
    let permit = gateway.request_bytes.empty_permit(LimitOwner::Pod(pod.pod_uid.clone()));
    BodyLimit { gateway, permit, unverified: None, max_bytes: Limits::ATTACH_BYTES }.read(request).await
}

/// Reads the body of a user's request.
pub(crate) async fn read_from_user(
    gateway: &Gateway,
    writer: &Writer,
    request: Request,
) -> Result<RequestBody, ApiProblem> {
    let permit = gateway.request_bytes.empty_permit(writer.owner.clone());
    BodyLimit { gateway, permit, unverified: None, max_bytes: Limits::BODY_BYTES }.read(request).await
}

/// The limits on one body: its own size, and its part of the process's bytes. The bytes are charged to the unverified
/// peers until the worker is verified.
struct BodyLimit<'a> {
    gateway: &'a Gateway,
    permit: LimitPermit,
    unverified: Option<&'a Worker>,
    max_bytes: usize,
}

impl BodyLimit<'_> {
    async fn read(self, request: Request) -> Result<RequestBody, ApiProblem> {
        let (parts, body) = request.into_parts();
        refuse_encoded(&parts.headers)?;
        let content_length = content_length(&parts.headers);
        if content_length > DRAIN_LIMIT {
            return Err(too_large(self.max_bytes));
        }
        let timeout = self.gateway.config.body_read_timeout;
        match tokio::time::timeout(timeout, self.collect(body, content_length)).await {
            Ok(read) => read,
            Err(_) => Err(incomplete(format!("did not arrive within {} s", timeout.as_secs_f32()))),
        }
    }

    async fn collect(mut self, body: Body, content_length: usize) -> Result<RequestBody, ApiProblem> {
        let max_bytes = self.max_bytes;
        let mut frames = body.into_data_stream();
        let mut bytes = Vec::with_capacity(content_length.min(max_bytes));
        let mut hash = Sha256::new();
        while let Some(frame) = frames.next().await {
            let frame: Bytes = frame.map_err(|_| incomplete("broke off"))?;
            if content_length.max(bytes.len() + frame.len()) > max_bytes {
                drop((bytes, self));
                drain(frames).await;
                return Err(too_large(max_bytes));
            }
            self.grow(frame.len()).await?;
            hash.update(&frame);
            bytes.extend_from_slice(&frame);
        }
        precheck(&bytes)?;
        Ok(RequestBody { bytes: json5::to_json(bytes)?, digest: hash.finalize().into(), permit: self.permit })
    }

    /// Charges this many more bytes or fails at once: no caller waits while it holds half a body.
    ///
    /// The body of a worker that is not the current one stays charged to the unverified peers. It is still read,
    /// because only the store can tell whether its commit was stored before.
    async fn grow(&mut self, bytes: usize) -> Result<(), ApiProblem> {
        if let Some(&Worker { run, capability, .. }) = self.unverified {
            if self.permit.amount() + bytes <= UNVERIFIED_BYTES {
                match self.permit.grow(bytes) {
                    Err(LimitExceeded::UnverifiedPeers) => {}
                    grown => return Ok(grown?),
                }
            }
            self.unverified = None;
            if self.gateway.is_current_cached(run, capability).await? {
                self.permit.transfer_to(LimitOwner::Run(run))?;
            }
        }
        Ok(self.permit.grow(bytes)?)
    }
}

/// Reads and discards up to [`DRAIN_LIMIT`] further bytes.
async fn drain(mut frames: BodyDataStream) {
    let mut left = DRAIN_LIMIT;
    while let Some(Ok(frame)) = frames.next().await
        && left > frame.len()
    {
        left -= frame.len();
    }
}

impl RequestBody {
    /// Parses the request.
    pub(crate) fn parse<T: DeserializeOwned>(&self) -> Result<T, ApiProblem> {
        serde_json::from_slice(&self.bytes).map_err(|error| parse_error(&error))
    }

    /// Frees the bytes and keeps the permit, because the parsed request takes as much memory.
    pub(crate) fn release(self) -> (Digest, LimitPermit) {
        (self.digest, self.permit)
    }
}

/// Checks what must hold before a parser runs. The body must be an object, because serde would accept an array of
/// fields too. And it must not be nested so deeply that a recursive parser overflows its stack.
fn precheck(bytes: &[u8]) -> Result<(), ApiProblem> {
    match bytes.iter().find(|byte| !byte.is_ascii_whitespace()) {
        Some(b'{') => {}
        Some(_) => return Err(ApiProblem::invalid("the body must be a JSON object")),
        None => return Err(ApiProblem::invalid("the body is empty; this call takes a JSON object")),
    }
    match nesting::deeper_than(Limits::DEPTH, bytes) {
        None => Ok(()),
        Some(offset) => Err(ApiProblem::invalid(format!(
            "the body is nested deeper than {} levels at byte {offset}; put the inner part into a string, or into a \
             channel of its own",
            Limits::DEPTH
        ))),
    }
}

fn parse_error(error: &serde_json::Error) -> ApiProblem {
    let text: String = error.to_string().chars().take(PARSE_ERROR_CHARS).collect();
    let what = match error.classify() {
        serde_json::error::Category::Data => "the body does not have the fields of this call",
        _ => "the body is not JSON",
    };
    ApiProblem::invalid(format!("{what}: {text}; docs/reference/contract.md lists the fields"))
}

/// The value of the header; 0 if it is absent or no number.
fn content_length(headers: &HeaderMap) -> usize {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    length.and_then(|length| length.parse().ok()).unwrap_or_default()
}

fn refuse_encoded(headers: &HeaderMap) -> Result<(), ApiProblem> {
    match headers.get(header::CONTENT_ENCODING) {
        Some(encoding) if encoding != "identity" => Err(ApiProblem::invalid(
            "compressed bodies are not supported: send the body without a Content-Encoding",
        )),
        _ => Ok(()),
    }
}

/// The client may be healthy and the network not, so the client shall retry.
fn incomplete(why: impl Display) -> ApiProblem {
    ApiProblem::new(Code::Unavailable, format!("the body {why}; send the same bytes again"))
}

fn too_large(max_bytes: usize) -> ApiProblem {
    ApiProblem::new(
        Code::TooLarge,
        format!(
            "the body is larger than {max_bytes} bytes; commit only the channels that changed, or store large data \
             elsewhere and commit a reference to it"
        ),
    )
}
