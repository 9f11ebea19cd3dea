//! Anchors together: those that the store keeps, or a copy of them from outside.

use std::collections::BTreeMap;

use dalsegno_model::{Digest, RunId};
use jiff::Timestamp;

use super::anchor::Anchor;
use super::marks::Marks;
use super::problem::Problem;
use super::signing::PublicKey;

/// Anchors as they are found, in whatever order and among whatever lines: a log of the operator will do. Costs about
/// 200 bytes for each time that one names a run.
#[derive(Clone, Debug, Default)]
pub struct Anchors {
    /// One of them must have signed each; none: whoever it names.
    keys: Vec<PublicKey>,
    /// Hash of the one before and their own, by their numbers.
    links: BTreeMap<i64, (Digest, Digest)>,
    pub(super) marks: Marks,
}

impl Anchors {
    /// None yet. `keys`: one of them must have signed each; without any, whoever it names.
    pub fn signed_by(keys: Vec<PublicKey>) -> Self {
        Self { keys, ..Self::default() }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.links.len()
    }

    /// Takes the anchor in a line of a log; other lines are passed over. `place`: where the line stands, for people.
    pub fn take(&mut self, place: &str, line: &str) -> Option<Problem> {
        self.add(place, Anchor::find(line)?)
    }

    /// Takes the anchor that the store keeps as this line.
    pub(super) fn take_kept(&mut self, place: &str, line: &str) -> Option<Problem> {
        self.add(place, Anchor::parse(line)?)
    }

    fn add(&mut self, place: &str, parsed: Result<Anchor, String>) -> Option<Problem> {
        let anchor = match parsed {
            Ok(anchor) => anchor,
            Err(what) => return Some(Problem::at(place, what)),
        };
        if !self.keys.is_empty() && !self.keys.contains(&anchor.public_key()) {
            return Some(Problem::at(place, "it names another public key than it must be signed by"));
        }
        let link = (anchor.parent_hash(), anchor.hash());
        if self.links.insert(anchor.seq(), link).is_some_and(|before| before != link) {
            return Some(Problem::at(place, format!("there is another anchor {}", anchor.seq())));
        }
        self.marks.take(&anchor);
        None
    }

    /// The last row of a run's audit that one of them named before this time, of those before row `seq`; and its hash.
    pub fn last_named(&self, run: RunId, before: Timestamp, seq: i64) -> Option<(i64, Digest)> {
        self.marks.last(run, before.as_millisecond(), seq)
    }

    /// Where they do not follow from each other. One that is missing is a problem too if they must be `whole`, and then
    /// they begin with 1.
    pub(super) fn breaks(&self, whole: bool) -> Vec<Problem> {
        let mut problems = Vec::new();
        // What follows the last of all numbers is never there.
        let (mut next, mut before) = (1, dalsegno_format::header::NO_PARENT);
        for (seq, (parent, hash)) in &self.links {
            if whole && *seq != next {
                problems.push(Problem::at(
                    format!("anchor {seq}"),
                    format!("anchor {next} was expected: some are missing"),
                ));
            } else if *seq == next && *parent != before {
                problems.push(Problem::at(format!("anchor {seq}"), "it does not follow from the one before"));
            }
            (next, before) = (seq.saturating_add(1), *hash);
        }
        problems
    }

    /// Which of these, a copy from outside, the store does not keep.
    pub(super) fn missing_from(&self, kept: &Self) -> Option<Problem> {
        let mut missing = self.links.iter().filter(|(seq, link)| kept.links.get(seq) != Some(link));
        let (first, _) = missing.next()?;
        let more = match missing.count() {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        Some(Problem::at(
            format!("anchor {first}"),
            format!("the copy has it, and the store has not, or another{more}"),
        ))
    }
}
