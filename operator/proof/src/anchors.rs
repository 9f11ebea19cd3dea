//! A set of anchors: those that the store has, or a copy from outside.

use std::collections::BTreeMap;

use dalsegno_model::{Digest, RunId};
use jiff::Timestamp;

use super::anchor::Anchor;
use super::anchor_index::AnchorIndex;
use super::problem::Problem;
use super::signing::PublicKey;

/// Anchors in any order, found among any other lines, for example in a log of the operator. Needs about 200 bytes for
/// each time that an anchor names a run.
#[derive(Clone, Debug, Default)]
pub struct Anchors {
    /// The keys that may have signed them. If empty, each anchor is checked with the key that it names.
    keys: Vec<PublicKey>,
    /// The parent hash and the hash of each anchor, by number.
    links: BTreeMap<i64, (Digest, Digest)>,
    pub(super) index: AnchorIndex,
}

impl Anchors {
    /// An empty set. Each anchor must be signed with one of `keys`; if that is empty, with the key that it names.
    pub fn signed_by(keys: Vec<PublicKey>) -> Self {
        Self { keys, ..Self::default() }
    }

    /// The number of anchors.
    pub fn count(&self) -> usize {
        self.links.len()
    }

    /// Adds the anchor in a line of a log; other lines are ignored. `location` is the line's position, for people.
    pub fn take(&mut self, location: &str, line: &str) -> Option<Problem> {
        self.add(location, Anchor::find(line)?)
    }

    /// Adds an anchor from its line in the store.
    pub(super) fn add_stored(&mut self, location: &str, line: &str) -> Option<Problem> {
        self.add(location, Anchor::parse(line)?)
    }

    fn add(&mut self, location: &str, parsed: Result<Anchor, String>) -> Option<Problem> {
        let anchor = match parsed {
            Ok(anchor) => anchor,
            Err(what) => return Some(Problem::at(location, what)),
        };
        if !self.keys.is_empty() && !self.keys.contains(&anchor.public_key()) {
            return Some(Problem::at(location, "it names another public key than it must be signed by"));
        }
        let link = (anchor.parent_hash(), anchor.hash());
        if self.links.insert(anchor.seq(), link).is_some_and(|before| before != link) {
            return Some(Problem::at(location, format!("there is another anchor {}", anchor.seq())));
        }
        self.index.add(&anchor);
        None
    }

    /// The last audit row of a run below number `seq` that an anchor named before this time: its number and hash.
    pub fn last_named(&self, run: RunId, before: Timestamp, seq: i64) -> Option<(i64, Digest)> {
        self.index.last(run, before.as_millisecond(), seq)
    }

    /// Where anchors do not follow from each other. If the set must be `whole`, it must also begin with 1 and have no
    /// gap.
    pub(super) fn breaks(&self, whole: bool) -> Vec<Problem> {
        let mut problems = Vec::new();
        // No anchor follows the highest possible number.
        let (mut next, mut before) = (1, dalsegno_format::header::NO_PARENT);
        for (seq, (parent, hash)) in &self.links {
            if whole && *seq != next {
                problems.push(Problem::at(
                    format!("anchor {seq}"),
                    format!("anchor {next} was expected: some are missing"),
                ));
            } else if *seq == next && *parent != before {
                problems
                    .push(Problem::at(format!("anchor {seq}"), "it does not follow from the anchor before"));
            }
            (next, before) = (seq.saturating_add(1), *hash);
        }
        problems
    }

    /// Whether the store lacks any of these anchors, which are a copy from outside.
    pub(super) fn missing_from(&self, kept: &Self) -> Option<Problem> {
        let mut missing = self.links.iter().filter(|(seq, link)| kept.links.get(seq) != Some(link));
        let (first, _) = missing.next()?;
        let more = match missing.count() {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        Some(Problem::at(
            format!("anchor {first}"),
            format!("the copy has it, and it is missing or different in the store{more}"),
        ))
    }
}
