//! Errors: RFC 9457 problem documents with a stable code.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Why a call was refused. Codes are stable: a worker may branch on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Code {
    /// 400: the body or the path violates the contract.
    Invalid,
    /// 401: the call has no valid token or capability.
    Unauthenticated,
    /// 403: the token is valid, and its pod is in another namespace than the run, or its user may not read the run.
    Forbidden,
    /// 404: there is no such run, turn, call or path, or its data was deleted.
    NotFound,
    /// 409: another attempt has taken over, or the run was cancelled or deleted: exit.
    Fenced,
    /// 409: another process of this attempt has attached before: exit.
    AttemptSpent,
    /// 409: the run must not continue with this image's version: exit.
    VersionIncompatible,
    /// 409: data that the call needs is damaged in the store; the run cannot continue from it: exit.
    CheckpointCorrupt,
    /// 409: this turn was committed with other bytes, or is not the next one.
    Conflict,
    /// 409: a call of an earlier attempt is unsettled: claim or settle it first. Or a tool refused the key of a call:
    /// exit.
    UnsettledCalls,
    /// 409: the run is finished.
    Finished,
    /// 409: the approval that the claim names is open, denied, timed out or withdrawn, or the run has none of this id.
    ApprovalNotGranted,
    /// 409: another call has used the approval that the claim names: ask for another one.
    ApprovalSpent,
    /// 409: the run has as many open waits as it may have: park on them, or finish.
    TooManyWaits,
    /// 404: the run has no wait with this id on its live branch.
    NoSuchWait,
    /// 413: above one of the [`Limits`](crate::Limits).
    TooLarge,
    /// 429: too many calls of this run at once: send the same bytes again.
    TooManyRequests,
    /// 429: as many messages as may wait for the run's worker, or as many bytes of them, wait already: send the same bytes
    /// again once the worker has taken some.
    TooManyMessages,
    /// 503: the operator has not recorded the pod yet: send the same bytes again.
    NotReady,
    /// 503: the operator has not checked the image's version yet: send the same bytes again.
    VersionPending,
    /// 503: the store's volume is almost full, so it accepts no new data: send the same bytes again.
    StorageFull,
    /// 503: the store or the token review is unavailable; the gateway is overloaded or stopping, or lacks a key; or the
    /// body was incomplete. Send the same bytes again.
    Unavailable,
    /// 500: a defect of the gateway: send the same bytes again.
    Internal,
}

impl Code {
    /// Every code, in the order of the documentation.
    pub const ALL: [Self; 23] = [
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
        Self::ApprovalNotGranted,
        Self::ApprovalSpent,
        Self::TooManyWaits,
        Self::NoSuchWait,
        Self::TooLarge,
        Self::TooManyRequests,
        Self::TooManyMessages,
        Self::NotReady,
        Self::VersionPending,
        Self::StorageFull,
        Self::Unavailable,
        Self::Internal,
    ];

    /// The HTTP status of this code.
    pub fn status(self) -> u16 {
        match self {
            Self::Invalid => 400,
            Self::Unauthenticated => 401,
            Self::Forbidden => 403,
            Self::NotFound | Self::NoSuchWait => 404,
            Self::Fenced
            | Self::AttemptSpent
            | Self::VersionIncompatible
            | Self::CheckpointCorrupt
            | Self::Conflict
            | Self::UnsettledCalls
            | Self::Finished
            | Self::ApprovalNotGranted
            | Self::ApprovalSpent
            | Self::TooManyWaits => 409,
            Self::TooLarge => 413,
            Self::TooManyRequests | Self::TooManyMessages => 429,
            Self::NotReady | Self::VersionPending | Self::StorageFull | Self::Unavailable => 503,
            Self::Internal => 500,
        }
    }

    /// Whether a retry with the same bytes can help.
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
    /// Always `about:blank`; `code` identifies the problem.
    #[serde(rename = "type", default = "about_blank")]
    pub kind: String,
    /// The HTTP status.
    pub status: u16,
    /// The stable code.
    pub code: Code,
    /// What is wrong and what to do, for people.
    pub detail: String,
    /// With [`Code::Fenced`]: whether this commit is on the live branch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub committed: Option<bool>,
}

fn about_blank() -> String {
    "about:blank".into()
}

impl Problem {
    /// A problem with this code.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self { kind: about_blank(), status: code.status(), code, detail: detail.into(), committed: None }
    }
}
