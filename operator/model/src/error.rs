//! What can go wrong when the store is asked.

/// The outcome of the call is unknown, or the store is not fit for use.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database did not answer, in time or at all. Send the same call again.
    #[error("the store did not answer while {doing}")]
    Unavailable {
        /// What we were doing.
        doing: &'static str,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The database answered something that this code does not understand.
    #[error("the store's answer makes no sense while {doing}: {detail}")]
    Corrupt {
        /// What we were doing.
        doing: &'static str,
        /// What was wrong.
        detail: String,
    },
    /// What was asked for was there, and was dropped as the run's retention says, or shredded.
    #[error("it is not there any more while {doing}: {detail}")]
    Gone {
        /// What we were doing.
        doing: &'static str,
        /// What is gone.
        detail: String,
    },
    /// The database is not as it must be; no retry helps.
    #[error("the store cannot be used: {0}")]
    Unfit(String),
}

/// A store's answer, or an unknown outcome.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a text is not what it must be, without a word of it: this ends in logs, and what a worker has sent does not.
pub fn misread(error: &serde_json::Error) -> String {
    match (error.is_data(), error.line()) {
        (false, _) => error.to_string(),
        (true, 0) => "it is none of the words that may stand there".into(),
        (true, line) => format!("what stands at line {line} column {} does not belong there", error.column()),
    }
}
