//! What anchors say of each run, held to its rows.

use std::collections::{BTreeMap, BTreeSet};

use dalsegno_model::anchor::Standing;
use dalsegno_model::reading::StoredBoundary;
use dalsegno_model::{AuditRow, Digest, Place, RunId};

use super::anchor::Anchor;
use super::problem::Problem;

/// All that anchors say of each run: a chain that was built anew is contradicted by the anchors from before, and not by
/// those from after.
#[derive(Clone, Debug, Default)]
pub(super) struct Marks(BTreeMap<RunId, Mark>);

/// Of one run. What is seen is taken away: what is left at the end is not there.
#[derive(Clone, Debug, Default)]
pub(super) struct Mark {
    audit: BTreeMap<(i64, Digest), Named>,
    boundaries: BTreeSet<(Place, Digest)>,
}

/// A row of an audit that an anchor names.
#[derive(Clone, Copy, Debug)]
struct Named {
    /// When one first did.
    at: i64,
    /// Whether it may stand for the rows up to it.
    stands: bool,
}

impl Marks {
    /// Takes what an anchor says.
    pub fn take(&mut self, anchor: &Anchor) {
        for Standing { run, audit_seq, audit_hash, head } in anchor.standings() {
            let mark = self.0.entry(run).or_default();
            if audit_seq > 0 {
                let first = Named { at: anchor.at(), stands: true };
                let named = mark.audit.entry((audit_seq, audit_hash)).or_insert(first);
                named.at = named.at.min(first.at);
            }
            mark.boundaries.extend(head);
        }
    }

    /// Takes what others say too. `stand`: whether rows that only they name may stand for those up to them.
    pub fn add(&mut self, others: Self, stand: bool) {
        for (run, Mark { audit, boundaries }) in others.0 {
            let mark = self.0.entry(run).or_default();
            for (row, Named { at, stands: _ }) in audit {
                mark.audit.entry(row).or_insert(Named { at, stands: stand });
            }
            mark.boundaries.extend(boundaries);
        }
    }

    /// The last of a run's audit rows that was named before a time, in milliseconds, and stands before row `seq`.
    pub fn last(&self, run: RunId, before: i64, seq: i64) -> Option<(i64, Digest)> {
        let named = self.0.get(&run)?.audit.iter().rev();
        named.filter(|((row, _), named)| *row < seq && named.at < before).map(|(row, _)| *row).next()
    }

    /// What is said of a run, which is there.
    pub fn of(&mut self, run: RunId) -> Mark {
        self.0.remove(&run).unwrap_or_default()
    }

    /// Runs that were not asked for.
    pub fn rest(&self) -> impl Iterator<Item = Problem> + '_ {
        self.0.keys().map(|run| Problem::of(*run, "runs", "anchors name the run, and it is not there"))
    }
}

impl Mark {
    /// A row of the run's audit is there.
    pub fn see_audit(&mut self, row: &AuditRow) {
        self.audit.remove(&(row.seq, row.hash));
    }

    /// The rows up to this one were pruned, if an anchor stands for them: then none of those before it can be there. Where two
    /// anchors name one place differently, one names what was never pruned.
    pub fn see_pruned(&mut self, run: RunId, last: (i64, Digest)) -> Option<Problem> {
        let what = match self.audit.get(&last) {
            Some(Named { stands: true, .. }) => {
                let mut before = None;
                self.audit.retain(|row, _| {
                    let again = before.replace(row.0) == Some(row.0);
                    row.0 > last.0 || (*row != last && (row.0 == last.0 || again))
                });
                return None;
            }
            Some(_) => {
                self.audit.retain(|row, named| row.0 > last.0 || named.stands);
                "the rows up to it were pruned, and only the store's own anchors name it"
            }
            None => "the rows up to it were pruned, and no anchor names it",
        };
        Some(Problem::of(run, format!("audit row {}", last.0), what))
    }

    /// A boundary of the run is there.
    pub fn see_boundary(&mut self, boundary: &StoredBoundary) {
        self.boundaries.remove(&(boundary.kept.place(), boundary.kept.row.content_hash));
    }

    /// What was not there.
    pub fn rest(&self, run: RunId) -> impl Iterator<Item = Problem> + '_ {
        let audit = self.audit.keys().map(|(seq, _)| format!("audit row {seq}"));
        let boundaries = self.boundaries.iter().map(|(place, _)| place.to_string());
        let what = "an anchor names it, and it is not there, or is another";
        audit.chain(boundaries).map(move |place| Problem::of(run, place, what))
    }
}
