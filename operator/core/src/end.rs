//! The end of an attempt: its cause and who is to blame, before the store records it.

use dalsegno_crds::Cause;
use dalsegno_model::{Attempt, Class, Ending};

use crate::text;

/// Why an attempt ended.
#[derive(Clone, Debug, PartialEq)]
pub struct End {
    /// What ended the attempt.
    pub cause: Cause,
    /// Who caused it.
    pub class: Class,
    /// Exit code of the worker.
    pub exit_code: Option<i32>,
    /// Details for people, of any length.
    pub message: String,
}

impl End {
    /// An end without an exit code.
    pub fn new(cause: Cause, class: Class, message: impl Into<String>) -> Self {
        Self { cause, class, exit_code: None, message: message.into() }
    }

    pub(crate) fn with_exit_code(self, exit_code: Option<i32>) -> Self {
        Self { exit_code, ..self }
    }

    /// Converts to the store's type. The message is cut to 512 bytes. Its end is kept, because it may be a log.
    pub fn into_ending(self, attempt: i32) -> Ending {
        let Self { cause, class, exit_code, message } = self;
        let message = text::keep_end(&message, text::END_MESSAGE_BYTES);
        Ending { attempt, cause, class, exit_code, message, ran: None }
    }
}

/// The end that the store has already recorded for an attempt.
pub(crate) fn recorded_end(attempt: &Attempt) -> Ending {
    let end = attempt.end.as_ref();
    Ending {
        attempt: attempt.number,
        cause: end.map_or(Cause::Finished, |it| it.cause),
        class: end.map_or(Class::Neutral, |it| it.class),
        exit_code: end.and_then(|it| it.exit_code),
        message: end.map_or_else(String::new, |it| it.message.clone()),
        ran: None,
    }
}
