//! The position of a payload, to which the payload is bound as associated data (AAD).

use dalsegno_model::{Digest, RunId, boundary_number};
use dalsegno_protocol::Boundary;
use uuid::Uuid;

use crate::fields::Fields;

const TAG: &[u8] = b"dalsegno/sealed/v1";

/// The position of a payload in its run.
#[derive(Clone, Copy, Debug)]
pub enum AadContext<'a> {
    /// Channel operations of a boundary: turn, boundary and commit id.
    Ops(i32, Boundary, Uuid),
    /// Events of a boundary: turn, boundary and commit id.
    Events(i32, Boundary, Uuid),
    /// Arguments of the call with this id.
    Arguments(&'a str),
    /// Result of the call with this id.
    Result(&'a str),
    /// Idempotency key of the call with this id.
    CallKey(&'a str),
    /// Message of the run's finish.
    FinishMessage,
    /// Output of the run's finish.
    FinishOutput,
    /// Message of the end of the attempt with this number.
    EndMessage(i32),
    /// Request of the wait with this id and opening epoch.
    WaitRequest(&'a str, i64),
    /// Answer of the wait with this id and opening epoch.
    WaitAnswer(&'a str, i64),
    /// Value of a record: space, key and entry id.
    Record(&'a str, &'a str, Option<&'a str>),
    /// Value of a message: id, topic and author.
    Message(&'a str, Option<&'a str>, &'a str),
    /// Document of the snapshot of the boundary with this content hash.
    Snapshot(&'a Digest),
    /// Chunk of snapshots, by the hash under which it is stored.
    Chunk(&'a Digest),
}

impl AadContext<'_> {
    pub(super) fn aad(self, run: RunId, codec: u8) -> Vec<u8> {
        let mut aad = Fields::default();
        let mut field = |bytes: &[u8]| aad.field(bytes);
        field(TAG);
        field(&[codec]);
        field(run.as_bytes());
        match self {
            Self::Ops(turn, boundary, commit_id) | Self::Events(turn, boundary, commit_id) => {
                field(if matches!(self, Self::Ops(..)) { b"boundaries.ops" } else { b"boundaries.events" });
                field(&turn.to_be_bytes());
                field(&[boundary_number(boundary)]);
                field(commit_id.as_bytes());
            }
            Self::Arguments(call) => {
                field(b"calls.arguments");
                field(name(call).as_bytes());
            }
            Self::Result(call) => {
                field(b"calls.result");
                field(name(call).as_bytes());
            }
            Self::CallKey(call) => {
                field(b"calls.key");
                field(name(call).as_bytes());
            }
            Self::FinishMessage => field(b"runs.finish_message"),
            Self::FinishOutput => field(b"runs.finish_output"),
            Self::EndMessage(attempt) => {
                field(b"attempts.message");
                field(&attempt.to_be_bytes());
            }
            Self::WaitRequest(wait, epoch) | Self::WaitAnswer(wait, epoch) => {
                field(if matches!(self, Self::WaitRequest(..)) { b"waits.request" } else { b"waits.answer" });
                field(name(wait).as_bytes());
                field(&epoch.to_be_bytes());
            }
            Self::Record(space, key, entry_id) => {
                field(b"records.value");
                field(name(space).as_bytes());
                field(name(key).as_bytes());
                field(name(entry_id.unwrap_or_default()).as_bytes());
            }
            Self::Message(id, topic, author) => {
                field(b"messages.value");
                field(name(id).as_bytes());
                field(name(topic.unwrap_or_default()).as_bytes());
                field(name(author).as_bytes());
            }
            Self::Snapshot(content_hash) => {
                field(b"snapshots.document");
                field(content_hash);
            }
            Self::Chunk(hash) => {
                field(b"chunks.payload");
                field(hash);
            }
        }
        aad.0
    }
}

/// A name as it is stored in every database. PostgreSQL does not accept NUL.
pub(super) fn name(name: &str) -> String {
    name.replace('\0', "\u{fffd}")
}
