//! Payloads that were dropped: the audit says so, and names the snapshot that stands for those of a run that goes on.

use std::collections::BTreeMap;

use dalsegno_model::audit::kind;
use dalsegno_model::reading::{StoredBoundary, StoredSnapshot};
use dalsegno_model::{AuditRow, Digest, Gone, Place, RunId};
use dalsegno_protocol::Boundary;
use serde::Deserialize;

use super::problem::Problem;
use super::texts::Hash;

/// What is seen of a run's retention, whichever rows come first.
#[derive(Clone, Debug, Default)]
pub(super) struct Retention {
    /// Whether all may be gone.
    is_over: bool,
    /// What the last row says that tells of boundaries before the last.
    told: Option<Told>,
    /// The last dropped boundary of each epoch.
    dropped: BTreeMap<i64, Place>,
    snapshots: Vec<(Place, Option<Digest>)>,
}

/// Up to where, and what stands for it.
#[derive(Clone, Copy, Debug)]
struct Told {
    to: Place,
    snapshot: Digest,
}

#[derive(Deserialize)]
struct Detail {
    to: To,
    epoch: i64,
    snapshot: Hash,
}

#[derive(Deserialize)]
struct To {
    turn: i32,
    boundary: Boundary,
}

impl Retention {
    /// Whether all may be gone.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// A row of the run's audit is there. One whose words cannot be read tells of nothing.
    pub fn see_audit(&mut self, row: &AuditRow) {
        match row.kind.as_str() {
            kind::EXPIRED => self.is_over = true,
            kind::DROPPED => {
                let detail = serde_json::from_str(&row.detail).ok();
                self.told = detail.map(|Detail { to, epoch, snapshot }| Told {
                    to: Place { turn: to.turn, boundary: to.boundary, epoch },
                    snapshot: snapshot.0,
                });
            }
            _ => {}
        }
    }

    /// A boundary of the run is there.
    pub fn see_boundary(&mut self, boundary: &StoredBoundary) {
        if boundary.gone == Some(Gone::Dropped) {
            let place = boundary.kept.place();
            self.dropped.insert(place.epoch, place);
        }
    }

    /// A snapshot of the run is there.
    pub fn see_snapshot(&mut self, snapshot: &StoredSnapshot) {
        self.snapshots.push((snapshot.place, snapshot.digest));
    }

    /// After the last boundary and row.
    pub fn end(&self, run: RunId) -> Option<Problem> {
        let is_told = |place: &Place| {
            self.told.is_some_and(|Told { to, .. }| {
                (place.turn, place.boundary) <= (to.turn, to.boundary) || place.epoch < to.epoch
            })
        };
        let place = self.dropped.values().find(|place| !self.is_over && !is_told(place))?;
        let what = "its payloads are gone, and the audit does not say that they were dropped";
        Some(Problem::of(run, place.to_string(), what))
    }

    /// After the last snapshot.
    pub fn end_snapshots(&self, run: RunId) -> Option<Problem> {
        let Told { to, snapshot } = self.told.filter(|_| !self.is_over)?;
        let what = match self.snapshots.iter().find(|(place, _)| *place == to) {
            None => "it stands for what was dropped before it, and is not there",
            // What is wrong with it is told already, or it was shredded.
            Some((_, None)) => return None,
            Some((_, Some(digest))) if *digest == snapshot => return None,
            Some(_) => "it is not the one that stood for what was dropped before it",
        };
        Some(Problem::of(run, format!("snapshot after {to}"), what))
    }
}
