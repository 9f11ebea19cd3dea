//! The API server did not create a pod: why, how often, and when it is tried again.

use dalsegno_crds::Reason;
use jiff::{SignedDuration, Timestamp};

/// Number of identical errors in a row after which the run is held.
const MAX_IDENTICAL: u32 = 8;
/// First pause between two tries. It doubles with each error.
const FIRST_PAUSE: SignedDuration = SignedDuration::from_secs(2);

/// The API server did not create a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodCreateError {
    /// HTTP status code.
    pub code: u16,
    /// Message of the API server.
    pub message: String,
    /// Number of consecutive errors for this template.
    pub times: u32,
    /// How many of the latest errors are identical: they have this code and, but for its numbers, this message.
    pub identical: u32,
    /// Time of the last error, by the operator's clock.
    pub at: Timestamp,
    /// Hash of the template of the rejected pod. If the current template has another hash, the error is outdated.
    pub revision: String,
}

impl PodCreateError {
    /// A first error.
    pub fn first(code: u16, message: &str, revision: String, at: Timestamp) -> Self {
        Self { code, message: message.to_owned(), times: 1, identical: 1, at, revision }
    }

    /// This error, after the error before it.
    pub fn after(self, before: Option<&Self>) -> Self {
        let Some(before) = before.filter(|it| it.revision == self.revision) else { return self };
        let is_identical =
            self.code == before.code && without_digits(&self.message).eq(without_digits(&before.message));
        let identical = if is_identical { before.identical.saturating_add(1) } else { 1 };
        Self { times: before.times.saturating_add(1), identical, ..self }
    }

    /// The reason, if the API server rejects the pod because of its namespace and not because of the pod itself.
    pub fn namespace_reason(code: u16, message: &str) -> Option<Reason> {
        match code {
            403 if message.contains("exceeded quota") => Some(Reason::QuotaExceeded),
            403 if message.contains("because it is being terminated") => Some(Reason::NamespaceTerminating),
            _ => None,
        }
    }

    /// Whether the API server has refused the pod so often for one reason that a person should look at it.
    pub fn is_persistent(&self) -> bool {
        self.code != 429 && self.identical >= MAX_IDENTICAL
    }

    /// When the creation is tried again: after 2, 4, 8 … seconds. A refusal ends less often than an overload.
    pub fn retry_at(&self) -> Timestamp {
        let longest = match self.code {
            429 => SignedDuration::from_mins(1),
            500.. => SignedDuration::from_mins(5),
            _ => SignedDuration::from_mins(15),
        };
        let pause = FIRST_PAUSE * (1 << self.times.saturating_sub(1).min(16));
        self.at.checked_add(pause.min(longest)).unwrap_or(Timestamp::MAX)
    }
}

/// The quota of a namespace has no room for a pod. One run of the namespace tries again, and the others wait for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceQuota {
    /// Message of the API server.
    pub message: String,
    /// When the next try is due, by the operator's clock.
    pub retry_at: Timestamp,
    /// Whether this run tries next.
    pub is_next: bool,
}

fn without_digits(text: &str) -> impl Iterator<Item = char> {
    text.chars().filter(|it| !it.is_ascii_digit())
}
