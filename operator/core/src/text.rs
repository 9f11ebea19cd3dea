//! Texts for people, cut to size: at the boundary of a character, with a mark where something is left out.

use dalsegno_protocol::printable;

/// Longest text of an attempt's end, in bytes.
pub(crate) const END_BYTES: usize = 512;

/// Longest message of a condition, in bytes.
pub(crate) const CONDITION_BYTES: usize = 2_048;

const MARK: char = '…';

/// The beginning of a text.
pub(crate) fn head(text: &str, bytes: usize) -> String {
    let text = printable(text);
    if text.len() <= bytes {
        return text;
    }
    let to = text.floor_char_boundary(bytes.saturating_sub(MARK.len_utf8()));
    format!("{}{MARK}", &text[..to])
}

/// The end of a text: of a log, that says more than its beginning.
pub(crate) fn tail(text: &str, bytes: usize) -> String {
    let text = printable(text);
    if text.len() <= bytes {
        return text;
    }
    let from = text.ceil_char_boundary(text.len() + MARK.len_utf8() - bytes.max(MARK.len_utf8()));
    format!("{MARK}{}", &text[from..])
}

/// What happened, and the last lines of the log that tell how: together no longer than an attempt's end may be.
pub(crate) fn with_log(what: &str, log: &str) -> String {
    let log = log.trim();
    if log.is_empty() {
        return what.to_owned();
    }
    format!("{what}: {}", tail(log, END_BYTES.saturating_sub(what.len() + 2)))
}

/// A reason and a message, of which either may be missing.
pub(crate) fn said(reason: &str, message: &str) -> String {
    match (reason.trim(), message.trim()) {
        ("", message) => message.to_owned(),
        (reason, "") => reason.to_owned(),
        (reason, message) => format!("{reason}: {message}"),
    }
}
