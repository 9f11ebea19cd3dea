//! Errors, in the agent's terms.

use std::error::Error as StdError;
use std::path::PathBuf;
use std::{fmt, io};

use dalsegno_protocol::{Call, Problem, RawValue};

/// The result of every call of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call of this crate failed. An unavailable gateway is not an error: the SDK sends the same bytes again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The process was not started as a worker.
    #[error("{0} is not set: only a worker of Dal Segno can attach")]
    NotAWorker(&'static str),
    /// An environment variable does not hold a whole number of seconds above 0.
    #[error("{0} must be a whole number of seconds, at least 1")]
    NotSeconds(&'static str),
    /// A file that the operator mounts cannot be read.
    #[error("cannot read {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A value cannot be written as JSON, or JSON cannot be read as the requested type.
    #[error("cannot {operation}")]
    Json {
        /// The value, and whether it was read or written.
        operation: &'static str,
        /// The cause.
        source: serde_json::Error,
    },
    /// A channel holds another media type than JSON: read it with [`crate::Run::channels`].
    #[error("the channel holds {media_type}, not JSON")]
    NotJson {
        /// The media type of the channel.
        media_type: String,
    },
    /// The handler of SIGTERM cannot be installed.
    #[error("cannot listen for SIGTERM")]
    Signal(#[source] io::Error),
    /// The request is not valid HTTP, or its URL has a scheme that this crate does not support. Check the environment.
    #[error("{path}: cannot be sent")]
    InvalidRequest {
        /// The call's path, relative to the run, without ids of calls and waits and without the query.
        path: String,
        /// The cause.
        source: Box<dyn StdError + Send + Sync>,
    },
    /// The gateway refused the request for good. `problem.code` is stable.
    #[error("{path}: {}: {}", problem.code, problem.detail)]
    Refused {
        /// The call's path, relative to the run, without ids of calls and waits and without the query.
        path: String,
        /// The gateway's reason.
        problem: Problem,
    },
    /// The answer is not one of the contract's: it probably came from a proxy.
    #[error("{path}: status {status} with a body that is not from the gateway: {answer}")]
    Unexpected {
        /// The call's path, relative to the run, without ids of calls and waits and without the query.
        path: String,
        /// The HTTP status.
        status: u16,
        /// The first 512 characters of the body.
        answer: String,
    },
    /// The gateway accepts nothing more from this process. Only returned if the hook of [`crate::Builder::on_ended`]
    /// returns.
    #[error("{}: {}", .0.code, .0.detail)]
    Ended(Problem),
    /// The call may have taken effect: look it up by its key, then [`crate::Run::settle`] it. The error's text contains
    /// neither the key nor the arguments.
    #[error("call {} may have taken effect", .0.id)]
    Uncertain(Box<Call>),
    /// The tool refused, now or in an earlier attempt, and nothing took effect. The tool's answer may appear in a log.
    #[error("the tool of call {id} refused: {result}")]
    CallFailed {
        /// The id of the call.
        id: String,
        /// The tool's answer, or `null`.
        result: Box<RawValue>,
    },
    /// The tool refused the call's key, now or in an earlier attempt. Only a person can find out what took effect.
    /// Exit: the gateway accepts no boundary, and the run is held until the call is settled.
    #[error("the tool of call {id} refused its key: {result}")]
    KeyRefused {
        /// The id of the call.
        id: String,
        /// The tool's answer, or `null`.
        result: Box<RawValue>,
    },
    /// The agent does something else than before, so the call is not made, or the turn is not committed.
    #[error("the call {id:?} {why}")]
    Diverged {
        /// The id of the call.
        id: String,
        /// What differs.
        why: Divergence,
    },
    /// A step of a turn failed. It can be taken again.
    #[error("step {name} failed")]
    Step {
        /// The name of the step.
        name: String,
        /// The step's error.
        source: Box<dyn StdError + Send + Sync>,
    },
    /// The chunks of a blob are not what was stored under its key: it was written while it was read. Read it again.
    #[error("the chunks of a blob are not what was stored")]
    BlobChanged,
    /// The key of a blob has more than 481 bytes: those of its chunks would be too long.
    #[error("the key of a blob has at most 481 bytes")]
    BlobKeyTooLong,
    /// The call cannot be completed: this process did not claim it, or it is already complete.
    #[error("call {id} is not open in this process")]
    NotClaimed {
        /// The id of the call.
        id: String,
    },
    /// A boundary has taken the message that answered this wait: another message needs another id.
    #[error("a boundary has taken the message of this wait")]
    MessageTaken,
    /// The tool returned an error, so it is unknown whether it took effect.
    #[error("the tool of call {id} left its outcome unknown")]
    Tool {
        /// The id of the call.
        id: String,
        /// The tool's error.
        source: Box<dyn StdError + Send + Sync>,
    },
}

/// How an agent has diverged from what it did before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Divergence {
    /// The id is stored with other arguments, another policy or another key.
    OtherCall,
    /// An earlier try of the turn made the call, in this process or before it, and this one did not.
    NotRepeated,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OtherCall => {
                "is stored with other arguments, another policy or another key: give another effect another id"
            }
            Self::NotRepeated => {
                "was made by an earlier try of this turn, and not by this one: what decides about a call belongs into \
                 Turn::step; if the call shall stay as it is, name it in Turn::accept"
            }
        })
    }
}

/// Why a tool gave no result. `?` turns any error into [`ToolError::Unknown`], which is the safe assumption.
#[derive(Debug)]
pub enum ToolError {
    /// The tool refused and changed nothing. This is recorded as the outcome of the call, which is not made again.
    ///
    /// It carries no usage. If the refusal cost something, as the answer of a model does, add it to the boundary's
    /// [`crate::Commit::usage`].
    Refused(String),
    /// The tool refused the key because another call has used it, as HTTP APIs do with 422. This is recorded; a person
    /// has to settle the call. It carries no usage either.
    KeyRefused(String),
    /// The tool may have taken effect. The call stays open, and its policy decides what happens next.
    Unknown(Box<dyn StdError + Send + Sync>),
}

impl<E: StdError + Send + Sync + 'static> From<E> for ToolError {
    fn from(error: E) -> Self {
        Self::Unknown(error.into())
    }
}
