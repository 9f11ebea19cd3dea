//! Errors of the store.

/// Either the outcome of the call is unknown, or the store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database did not respond, or not in time. Send the same call again.
    #[error("the store did not answer while {operation}")]
    Unavailable {
        /// The operation that failed.
        operation: &'static str,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The store's volume is full, or almost full: nothing was written. Send the same call again once there is space.
    #[error("the store's volume is full while {operation}")]
    StorageFull {
        /// The operation that failed.
        operation: &'static str,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The database returned data that this code cannot interpret.
    #[error("unexpected store response while {operation}: {detail}")]
    Corrupt {
        /// The operation that failed.
        operation: &'static str,
        /// What was wrong.
        detail: String,
    },
    /// The data existed, and was dropped as the run's retention requires, or shredded.
    #[error("the data is no longer available while {operation}: {detail}")]
    Gone {
        /// The operation that failed.
        operation: &'static str,
        /// What is missing.
        detail: String,
    },
    /// The database or its configuration is not as required. A retry does not help.
    #[error("the store cannot be used: {0}")]
    Unusable(String),
}

/// The store's answer, or an unknown outcome.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a JSON text could not be parsed, without any part of the text: this goes into logs, and what a worker sent
/// must not.
pub fn redacted_json_error(error: &serde_json::Error) -> String {
    match (error.is_data(), error.line()) {
        (false, _) => error.to_string(),
        (true, 0) => "it is not one of the allowed values".into(),
        (true, line) => format!("unexpected value at line {line} column {}", error.column()),
    }
}
