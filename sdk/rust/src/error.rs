//! What can go wrong, in the agent's terms.

use std::error::Error as StdError;
use std::io;
use std::path::PathBuf;

use dalsegno_protocol::{Call, Problem, RawValue};

/// What every call of this crate answers with.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call of this crate failed. A gateway that does not answer is no error: the same bytes are sent again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The process was not started as a worker.
    #[error("{0} is not set: only a worker of Dal Segno can attach")]
    NotAWorker(&'static str),
    /// A file that the operator mounts cannot be read.
    #[error("cannot read {}", path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A value cannot be written as JSON, or read from it as the type that was asked for.
    #[error("cannot {doing}")]
    Json {
        /// Which value, and which way.
        doing: &'static str,
        /// Why.
        source: serde_json::Error,
    },
    /// A channel holds something else than JSON: read it from [`crate::Run::channels`].
    #[error("the channel holds {media_type}, not JSON")]
    NotJson {
        /// What it holds.
        media_type: String,
    },
    /// The handler of SIGTERM cannot be installed.
    #[error("cannot listen for SIGTERM")]
    Signal(#[source] io::Error),
    /// It is no request that HTTP knows, or of a scheme that this crate does not speak: look at the environment.
    #[error("{path}: cannot be sent")]
    Unsendable {
        /// The call, relative to the run, without an id in it and without its query.
        path: String,
        /// Why.
        source: Box<dyn StdError + Send + Sync>,
    },
    /// The gateway refused for good; `problem.code` is stable.
    #[error("{path}: {}: {}", problem.code, problem.detail)]
    Refused {
        /// The call, relative to the run, without an id in it and without its query.
        path: String,
        /// Why.
        problem: Problem,
    },
    /// Somebody else answered.
    #[error("{path}: answered {status}, and not as the contract says: {answer}")]
    Unexpected {
        /// The call, relative to the run, without an id in it and without its query.
        path: String,
        /// The HTTP status.
        status: u16,
        /// The beginning of what came.
        answer: String,
    },
    /// Nothing more is accepted of this process. Only seen where [`crate::Builder::on_over`] returns.
    #[error("{}: {}", .0.code, .0.detail)]
    Over(Problem),
    /// The call may have taken effect: find out by its key and [`crate::Run::settle`] it. Neither the key nor the arguments
    /// are in the text of the error.
    #[error("call {} may have taken effect", .0.id)]
    Uncertain(Box<Call>),
    /// The tool refused, now or in an earlier attempt, and nothing took effect. What it said may end in a log.
    #[error("the tool of call {id} refused: {result}")]
    CallFailed {
        /// Which call.
        id: String,
        /// What the tool said; `null` where it said nothing.
        result: Box<RawValue>,
    },
    /// The tool refused the key of the call, now or before: nobody but a person can tell what took effect. Leave: no
    /// boundary is accepted, and the run is held until the call is settled.
    #[error("the tool of call {id} refused its key: {result}")]
    KeyRefused {
        /// Which call.
        id: String,
        /// What the tool said; `null` where it said nothing.
        result: Box<RawValue>,
    },
    /// There is nothing to complete: this process did not claim the call, or it is over.
    #[error("call {id} is not open in this process")]
    NotClaimed {
        /// Which call.
        id: String,
    },
    /// The tool ended with an error, so nobody knows whether it took effect.
    #[error("the tool of call {id} left its outcome unknown")]
    Tool {
        /// Which call.
        id: String,
        /// Why.
        source: Box<dyn StdError + Send + Sync>,
    },
}

/// Why a tool gave no result. `?` makes any error [`ToolError::Unknown`], the one that is safe to assume.
#[derive(Debug)]
pub enum ToolError {
    /// It refused and changed nothing. Recorded as the outcome of the call, which is not made again.
    Refused(String),
    /// It refused the key itself, as HTTP APIs do with 422, because it knows the key from another call. Recorded; a person
    /// has to look.
    KeyRefused(String),
    /// It may have taken effect. The call stays open, and its policy says what comes next.
    Unknown(Box<dyn StdError + Send + Sync>),
}

impl<E: StdError + Send + Sync + 'static> From<E> for ToolError {
    fn from(error: E) -> Self {
        Self::Unknown(error.into())
    }
}
