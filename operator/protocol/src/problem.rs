//! Refusals: RFC 9457 problem documents with a stable code.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Why a call was refused. Stable: a worker may switch on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Code {
    /// 400: the body or the path is not what the contract says.
    Invalid,
    /// 401: no token, no capability, or not one for this run.
    Unauthenticated,
    /// 403: the token is real, and of a pod in another namespace than the run.
    Forbidden,
    /// 404: nothing of this name.
    NotFound,
    /// 409: another attempt has taken over, or the run was cancelled or deleted: exit.
    Fenced,
    /// 409: another process of this attempt attached before: exit.
    AttemptSpent,
    /// 409: the run does not go on under this image: exit.
    VersionIncompatible,
    /// 409: the state at the head cannot be rebuilt from the store; the run does not go on from it: exit.
    CheckpointCorrupt,
    /// 409: this turn is there already with other bytes, or is not the next one.
    Conflict,
    /// 409: a call of an earlier attempt is unsettled; claim or settle it first. Or the key of a call was refused: exit.
    UnsettledCalls,
    /// 409: the run is over.
    Finished,
    /// 413: larger than the table of limits allows.
    TooLarge,
    /// 429: too many calls of this run at once; send the same bytes again.
    TooManyRequests,
    /// 503: the pod is not recorded yet; send the same bytes again.
    NotReady,
    /// 503: the image's version is not judged yet; send the same bytes again.
    VersionPending,
    /// 503: the store, or who reviews tokens, cannot be reached; the gateway is full or stopping, or lacks a key; the body did
    /// not come whole. Send the same bytes again.
    Unavailable,
    /// 500: a defect of the gateway; send the same bytes again.
    Internal,
}

impl Code {
    /// Every code, in the order of the documentation.
    pub const ALL: [Self; 17] = [
        Self::Invalid,
        Self::Unauthenticated,
        Self::Forbidden,
        Self::NotFound,
        Self::Fenced,
        Self::AttemptSpent,
        Self::VersionIncompatible,
        Self::CheckpointCorrupt,
        Self::Conflict,
        Self::UnsettledCalls,
        Self::Finished,
        Self::TooLarge,
        Self::TooManyRequests,
        Self::NotReady,
        Self::VersionPending,
        Self::Unavailable,
        Self::Internal,
    ];

    /// The HTTP status that goes with it.
    pub fn status(self) -> u16 {
        match self {
            Self::Invalid => 400,
            Self::Unauthenticated => 401,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::Fenced
            | Self::AttemptSpent
            | Self::VersionIncompatible
            | Self::CheckpointCorrupt
            | Self::Conflict
            | Self::UnsettledCalls
            | Self::Finished => 409,
            Self::TooLarge => 413,
            Self::TooManyRequests => 429,
            Self::NotReady | Self::VersionPending | Self::Unavailable => 503,
            Self::Internal => 500,
        }
    }

    /// Whether sending the same bytes again can help.
    pub fn is_retryable(self) -> bool {
        self.status() == 429 || self.status() >= 500
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// An RFC 9457 problem document, `application/problem+json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Problem {
    /// Always `about:blank`; the code says which problem it is.
    #[serde(rename = "type", default = "about_blank")]
    pub kind: String,
    /// The HTTP status.
    pub status: u16,
    /// The stable code.
    pub code: Code,
    /// What was wrong and what to do, for a person.
    pub detail: String,
    /// With [`Code::Fenced`]: whether this commit stands on the live branch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub committed: Option<bool>,
}

fn about_blank() -> String {
    "about:blank".into()
}

impl Problem {
    /// A problem of this code.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self { kind: about_blank(), status: code.status(), code, detail: detail.into(), committed: None }
    }
}
