//! Texts for people. They are cut at a character boundary, with an ellipsis where something was cut off.

use dalsegno_protocol::printable;

/// Longest message of an attempt's end, in bytes.
pub(crate) const END_MESSAGE_BYTES: usize = 512;

/// Longest message of a condition, in bytes.
pub(crate) const CONDITION_MESSAGE_BYTES: usize = 2_048;

/// Longest note of an event, in bytes. The API server accepts 1,024.
pub(crate) const EVENT_NOTE_BYTES: usize = 1_000;

const ELLIPSIS: char = '…';

/// Where a run or an attempt is: before its first turn, or after the turn that it has committed last.
pub fn position(turn: i32) -> String {
    if turn == 0 { "before its first turn".to_owned() } else { format!("after turn {turn}") }
}

/// Keeps the beginning of a text.
pub(crate) fn keep_start(text: &str, bytes: usize) -> String {
    let text = printable(text);
    if text.len() <= bytes {
        return text;
    }
    let to = text.floor_char_boundary(bytes.saturating_sub(ELLIPSIS.len_utf8()));
    format!("{}{ELLIPSIS}", &text[..to])
}

/// Keeps the beginning and the end of a text. Use it for messages that end with what to do.
pub(crate) fn keep_both_ends(text: &str, bytes: usize) -> String {
    let text = printable(text);
    if text.len() <= bytes {
        return text;
    }
    let end = keep_end(&text, bytes * 3 / 4);
    let start = text.floor_char_boundary(bytes.saturating_sub(end.len()));
    format!("{}{end}", &text[..start])
}

/// Keeps the end of a text. Use it for logs, whose end says more than their beginning.
pub(crate) fn keep_end(text: &str, bytes: usize) -> String {
    let text = printable(text);
    if text.len() <= bytes {
        return text;
    }
    let from = text.ceil_char_boundary(text.len() + ELLIPSIS.len_utf8() - bytes.max(ELLIPSIS.len_utf8()));
    format!("{ELLIPSIS}{}", &text[from..])
}

/// Appends the last lines of a log to a description. The result fits into [`END_MESSAGE_BYTES`] if the description
/// does.
pub(crate) fn with_log(description: &str, log: &str) -> String {
    let log = log.trim();
    if log.is_empty() {
        return description.to_owned();
    }
    format!("{description}: {}", keep_end(log, END_MESSAGE_BYTES.saturating_sub(description.len() + 2)))
}

/// A number with the word for what it counts.
pub fn counted(number: impl TryInto<i64>, one: &str, many: &str) -> String {
    let number = number.try_into().unwrap_or(i64::MAX);
    format!("{number} {}", if number == 1 { one } else { many })
}

/// A word, quoted for a shell if necessary.
pub fn shell_quoted(word: &str) -> String {
    let is_plain = |it: char| it.is_ascii_alphanumeric() || "/:._-".contains(it);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// Joins a reason and a message. Either may be empty.
pub(crate) fn reason_and_message(reason: &str, message: &str) -> String {
    match (reason.trim(), message.trim()) {
        ("", message) => message.to_owned(),
        (reason, "") => reason.to_owned(),
        (reason, message) => format!("{reason}: {message}"),
    }
}
