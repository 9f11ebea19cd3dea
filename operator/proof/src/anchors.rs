//! A copy of the anchors from outside of the store.

use std::collections::BTreeMap;

use super::anchor::AnchorLine;
use super::problem::Problem;
use super::signing::PublicKey;

/// Lines of anchors in any order, found among any other lines, for example in a log of the operator.
#[derive(Clone, Debug, Default)]
pub struct Anchors {
    /// The keys that may have signed them. If empty, each line must be exactly that of the store.
    keys: Vec<PublicKey>,
    lines: BTreeMap<i64, AnchorLine>,
}

impl Anchors {
    /// An empty set. Each anchor must be signed with one of `keys`; if that is empty, with the key that the store has
    /// beside it.
    pub fn signed_by(keys: Vec<PublicKey>) -> Self {
        Self { keys, lines: BTreeMap::new() }
    }

    /// The number of anchors.
    pub fn count(&self) -> usize {
        self.lines.len()
    }

    /// Adds the anchor in a line of a log; other lines are ignored. `location` is the line's position, for people.
    pub fn take(&mut self, location: &str, line: &str) -> Option<Problem> {
        let line = match AnchorLine::find(line)? {
            Ok(line) => line,
            Err(what) => return Some(Problem::at(location, what)),
        };
        if !self.keys.is_empty() && !self.keys.iter().any(|key| line.is_signed_by(key)) {
            return Some(Problem::at(location, "it is not signed by the key that it must be signed by"));
        }
        let seq = line.seq();
        if self.lines.get(&seq).is_some_and(|before| *before != line) {
            return Some(Problem::at(location, format!("there is another anchor {seq}")));
        }
        self.lines.insert(seq, line);
        None
    }

    /// Number of the first anchor that the store keeps, as the copy announces it.
    pub fn announced(&self) -> i64 {
        self.lines.values().map(AnchorLine::first).max().unwrap_or(1)
    }

    /// The line with this number.
    pub(super) fn line(&self, seq: i64) -> Option<&AnchorLine> {
        self.lines.get(&seq)
    }

    /// The numbers of the anchors.
    pub(super) fn numbers(&self) -> impl Iterator<Item = i64> + '_ {
        self.lines.keys().copied()
    }
}
