//! Records: what the keys of a run hold must be what its batches say, and these must stand in the hashes of its boundaries.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};

use dalsegno_format::records::{Listed, link, listed};
use dalsegno_model::reading::{RunHead, StoredBatch, StoredBoundary, StoredRecord};
use dalsegno_model::{Digest, Place, RunId};
use dalsegno_protocol::Boundary;

use super::problem::Problem;

/// What the batches of a run say, and what is wrong with them and with what its keys hold.
#[derive(Clone, Debug, Default)]
pub(super) struct Records {
    /// Boundaries of the live branch that have records in their hash, those before which no batch has come yet.
    boundaries: VecDeque<(Place, Digest)>,
    /// Of the batches since the boundary before.
    linked: Option<Digest>,
    keys: BTreeMap<(String, String), Key>,
    /// Keys of which something is told already: of one that is wrong nothing that follows need be right.
    wrong: BTreeSet<(String, String)>,
    problems: Vec<(String, String)>,
}

/// What a key holds, in order.
#[derive(Clone, Debug, Default)]
struct Key {
    entries: VecDeque<Entry>,
    /// A key may hold a long list.
    ids: HashSet<String>,
}

#[derive(Clone, Debug)]
struct Entry {
    /// Empty where it was not appended.
    id: String,
    place: Place,
    value: Option<Digest>,
}

impl Records {
    /// A boundary is there; they come in the order of their places.
    pub fn see_boundary(&mut self, boundary: &StoredBoundary) {
        if let (false, Some(digest)) = (boundary.undone, boundary.kept.row.records_digest) {
            self.boundaries.push_back((boundary.kept.place(), digest));
        }
    }

    /// A batch is there, after all boundaries; they come in their order.
    pub fn see_batch(&mut self, batch: StoredBatch) {
        let StoredBatch { seq, place, undone, digest, batch, is_whole } = batch;
        if undone {
            return;
        }
        while let Some((boundary, digest)) = self.boundaries.pop_front_if(|(it, _)| point(it) < point(&place))
        {
            self.close(boundary, digest);
        }
        self.linked = Some(link(self.linked, &digest));
        match listed(&batch).filter(|_| is_whole) {
            Some(all) => all.into_iter().for_each(|change| self.apply(place, change)),
            None => self.tell(format!("batch {seq} of records"), "it does not have the digest it must have"),
        }
    }

    /// After the last batch: all that is wrong with them. `head`: the run's own row, unless that is gone.
    pub fn end_batches(&mut self, head: Option<&RunHead>) {
        while let Some((boundary, digest)) = self.boundaries.pop_front() {
            self.close(boundary, digest);
        }
        if head.is_some_and(|head| head.records_digest != self.linked) {
            self.tell("records".into(), "the run's row has other batches since its head than there are");
        }
    }

    /// A record is there, after all batches; they come in the order of their keys.
    pub fn see_record(&mut self, record: StoredRecord) {
        let StoredRecord { at, entry_id, place, value, damage } = record;
        let key = (at.space, at.key);
        if self.wrong.contains(&key) {
            return;
        }
        let held = self.keys.get_mut(&key).and_then(|key| key.entries.pop_front());
        let is_it = held.is_some_and(|entry| {
            // Of what was shredded nobody knows the value.
            (entry.id.as_str(), entry.place) == (entry_id.as_deref().unwrap_or_default(), place)
                && (value.is_none() || entry.value == value)
        });
        if is_it && damage.is_none() {
            return;
        }
        let what = damage.as_deref().unwrap_or("it does not hold what the batches say");
        self.tell(named(&key), what);
        self.keys.remove(&key);
        self.wrong.insert(key);
    }

    /// After the last record.
    pub fn end(self, run: RunId) -> impl Iterator<Item = Problem> {
        let missing = self.keys.into_iter().filter(|(_, key)| !key.entries.is_empty());
        let missing = missing.map(|(key, _)| (named(&key), "it lacks what the batches say".into()));
        self.problems.into_iter().chain(missing).map(move |(place, what)| Problem::of(run, place, what))
    }

    /// No further batch is in the hash of this boundary.
    fn close(&mut self, boundary: Place, digest: Digest) {
        if self.linked.take() != Some(digest) {
            self.tell(format!("records of {boundary}"), "they are not the batches that stand in its hash");
        }
    }

    fn apply(&mut self, place: Place, change: Listed) {
        let Listed { word, space, key, entry_id, value } = change;
        let held = self.keys.entry((space, key)).or_default();
        let takes_effect = match word.as_str() {
            "putIfAbsent" => held.entries.is_empty(),
            "append" => held.ids.insert(entry_id.clone()),
            _ => {
                *held = Key::default();
                word != "delete"
            }
        };
        if takes_effect {
            held.entries.push_back(Entry { id: entry_id, place, value });
        }
    }

    fn tell(&mut self, place: String, what: &str) {
        self.problems.push((place, what.to_owned()));
    }
}

fn named((space, key): &(String, String)) -> String {
    format!("records of {key:?} in {space:?}")
}

/// The order of places on one branch.
fn point(place: &Place) -> (i32, Boundary) {
    (place.turn, place.boundary)
}
