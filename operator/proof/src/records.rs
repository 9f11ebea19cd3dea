//! Records: the stored records of a run must follow from its batches, and the batches must be in the hashes of its
//! boundaries.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};

use dalsegno_format::records::{BatchEntry, DELETE_PREFIX, link, parse_batch};
use dalsegno_model::read_transaction::{RunHead, StoredBatch, StoredBoundary, StoredRecord};
use dalsegno_model::{BoundaryId, Digest, RunId};
use dalsegno_protocol::Boundary;

use super::problem::Problem;

/// The records that follow from the batches of a run, and all problems of the batches and of the stored records.
#[derive(Clone, Debug, Default)]
pub(super) struct Records {
    /// Boundaries of the live branch with records in their hash that still wait for their batches.
    boundaries: VecDeque<(BoundaryId, Digest)>,
    /// Records digest of the batches since the boundary before.
    linked: Option<Digest>,
    keys: BTreeMap<(String, String), Key>,
    /// Keys with a reported problem. Later records of such a key are not checked.
    wrong: BTreeSet<(String, String)>,
    problems: Vec<(String, String)>,
}

/// The expected records of a key, in order.
#[derive(Clone, Debug, Default)]
struct Key {
    entries: VecDeque<Entry>,
    /// Entry ids as a set, because a key may have a long list.
    ids: HashSet<String>,
}

#[derive(Clone, Debug)]
struct Entry {
    /// The entry id; empty if the record was not appended.
    id: String,
    boundary: BoundaryId,
    value: Option<Digest>,
}

impl Records {
    /// Adds a boundary; in the order of turn, boundary and epoch.
    pub fn add_boundary(&mut self, boundary: &StoredBoundary) {
        if let (false, Some(digest)) = (boundary.undone, boundary.decoded.row.records_digest) {
            self.boundaries.push_back((boundary.decoded.id(), digest));
        }
    }

    /// Adds a batch; after all boundaries, in the order of their numbers.
    pub fn add_batch(&mut self, batch: StoredBatch) {
        let StoredBatch { seq, boundary: boundary_id, undone, digest, batch, is_whole } = batch;
        if undone {
            return;
        }
        while let Some((boundary, digest)) =
            self.boundaries.pop_front_if(|(it, _)| branch_order(it) < branch_order(&boundary_id))
        {
            self.check_boundary(boundary, digest);
        }
        self.linked = Some(link(self.linked, &digest));
        match parse_batch(&batch).filter(|_| is_whole) {
            Some(all) => all.into_iter().for_each(|change| self.apply(boundary_id, change)),
            None => {
                self.report(format!("batch {seq} of records"), "it does not have the digest it must have")
            }
        }
    }

    /// To be called after the last batch: completes the problems of batches. `head` is the run's own row; `None` if
    /// that is missing.
    pub fn end_batches(&mut self, head: Option<&RunHead>) {
        while let Some((boundary, digest)) = self.boundaries.pop_front() {
            self.check_boundary(boundary, digest);
        }
        if head.is_some_and(|head| head.records_digest != self.linked) {
            self.report("records".into(), "the run's row names other batches since its head than are stored");
        }
    }

    /// Adds a stored record; after all batches, in the order of the keys.
    pub fn add_record(&mut self, record: StoredRecord) {
        let StoredRecord { at, entry_id, boundary: boundary_id, value, text: _, damage } = record;
        let key = (at.space, at.key);
        if self.wrong.contains(&key) {
            return;
        }
        let expected = self.keys.get_mut(&key).and_then(|key| key.entries.pop_front());
        let matches = expected.is_some_and(|entry| {
            // The value of a shredded record is unknown.
            (entry.id.as_str(), entry.boundary) == (entry_id.as_deref().unwrap_or_default(), boundary_id)
                && (value.is_none() || entry.value == value)
        });
        if matches && damage.is_none() {
            return;
        }
        let what = damage.as_deref().unwrap_or("it differs from what the batches say");
        self.report(key_location(&key), what);
        self.keys.remove(&key);
        self.wrong.insert(key);
    }

    /// To be called after the last record.
    pub fn end(self, run: RunId) -> impl Iterator<Item = Problem> {
        let missing = self.keys.into_iter().filter(|(_, key)| !key.entries.is_empty());
        let missing =
            missing.map(|(key, _)| (key_location(&key), "records of its batches are missing".into()));
        self.problems
            .into_iter()
            .chain(missing)
            .map(move |(boundary_id, what)| Problem::of(run, boundary_id, what))
    }

    /// No further batch belongs to the hash of this boundary.
    fn check_boundary(&mut self, boundary: BoundaryId, digest: Digest) {
        if self.linked.take() != Some(digest) {
            self.report(format!("records of {boundary}"), "they are not the batches in its hash");
        }
    }

    fn apply(&mut self, boundary_id: BoundaryId, change: BatchEntry) {
        let BatchEntry { op, space, key, entry_id, value } = change;
        if op == DELETE_PREFIX {
            return self.delete_prefix(space, key);
        }
        let expected = self.keys.entry((space, key)).or_default();
        let takes_effect = match op.as_str() {
            "putIfAbsent" => expected.entries.is_empty(),
            "append" => expected.ids.insert(entry_id.clone()),
            _ => {
                *expected = Key::default();
                op != "delete"
            }
        };
        if takes_effect {
            expected.entries.push_back(Entry { id: entry_id, boundary: boundary_id, value });
        }
    }

    fn delete_prefix(&mut self, space: String, prefix: String) {
        let is_within = |(of, key): &(String, String)| *of == space && key.starts_with(&prefix);
        let from = self.keys.range((space.clone(), prefix.clone())..);
        let emptied: Vec<_> = from.map(|(key, _)| key.clone()).take_while(is_within).collect();
        for key in emptied {
            self.keys.remove(&key);
        }
    }

    fn report(&mut self, boundary_id: String, what: &str) {
        self.problems.push((boundary_id, what.to_owned()));
    }
}

fn key_location((space, key): &(String, String)) -> String {
    format!("records of {key:?} in {space:?}")
}

/// The order of positions on one branch.
fn branch_order(boundary_id: &BoundaryId) -> (i32, Boundary) {
    (boundary_id.turn, boundary_id.boundary)
}
