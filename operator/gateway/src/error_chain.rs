//! An error as one log line. A file of its own, so that every other file can use it.

use std::error::Error;

/// The error and its sources, joined by `: `.
pub(crate) fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(": ");
        text.push_str(&source.to_string());
        next = source.source();
    }
    text
}
