//! Pages of records: where each begins and ends. Pure.

use dalsegno_model::{RecordKeyPage, RecordPage, RecordQuery};
use dalsegno_protocol::{Limits, Record, RecordOrder};

/// The smallest text greater than all keys with this prefix. A statement with a bound finds the end of the prefix by an
/// index; one without a bound would read the rest of the space.
pub fn after_prefix(prefix: &str) -> String {
    let mut letters: Vec<char> = prefix.chars().collect();
    while let Some(last) = letters.pop() {
        // The range skips the surrogates, which are not characters.
        if let Some(next) = (last..=char::MAX).nth(1) {
            letters.push(next);
            return letters.into_iter().collect();
        }
    }
    // One byte longer than the longest key, and no character is greater.
    char::MAX.to_string().repeat(Limits::RECORD_NAME_BYTES / char::MAX.len_utf8() + 1)
}

/// A page of these records, each with its number within its key. `found` is how many records were available.
pub fn page(mut entries: Vec<(Record, i64)>, found: i64, limit: u32) -> RecordPage {
    entries.truncate(limit as usize);
    let last = entries.last().map(|(record, seq)| (record.key.clone(), *seq));
    let next = last.filter(|_| (entries.len() as i64) < found);
    RecordPage { records: entries.into_iter().map(|(record, _)| record).collect(), next }
}

/// A page of these keys, each with the number of its last entry. There may be one more than the page holds.
pub fn key_page(mut keys: Vec<(String, i64)>, limit: u32) -> RecordKeyPage {
    let is_last = keys.len() <= limit as usize;
    keys.truncate(limit as usize);
    let next = keys.last().cloned().filter(|_| !is_last);
    RecordKeyPage { keys: keys.into_iter().map(|(key, _)| key).collect(), next }
}

/// The bounds of a page of records: from a position on, or up to one. Numbers within a key start at 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageBounds {
    /// The smallest key.
    pub first: String,
    /// A key that is greater than all keys of the page, or the last of them.
    pub end: String,
    /// In ascending order: of `first` only greater numbers. In descending order: of `end` only smaller ones.
    pub seq: i64,
}

impl PageBounds {
    /// The bounds of the page that the query asks for.
    pub fn of(query: &RecordQuery) -> Self {
        let (first, end) = (query.prefix.clone(), after_prefix(&query.prefix));
        match (&query.after, query.order) {
            (Some((key, seq)), RecordOrder::Asc) if *key >= first => {
                Self { first: key.clone(), end, seq: *seq }
            }
            (Some((key, seq)), RecordOrder::Desc) if *key < end => {
                Self { first, end: key.clone(), seq: *seq }
            }
            _ => Self { first, end, seq: 0 },
        }
    }

    /// The bounds of one key, after this entry.
    pub fn of_key(key: &str, after: i64) -> Self {
        // No text is between a key and the same with one NUL.
        Self { first: key.to_owned(), end: format!("{key}\0"), seq: after }
    }
}
