//! What the audit of a run says of its boundaries and of the run's own row.

use std::collections::BTreeSet;

use dalsegno_model::audit::kind;
use dalsegno_model::reading::{RunHead, StoredBoundary};
use dalsegno_model::{AuditRow, Digest, Lifecycle, Place, RunId, RunOutcome};
use dalsegno_protocol::Boundary;
use serde::{Deserialize, Deserializer};

use super::problem::Problem;
use super::texts::Hash;

/// What was said last, or, of boundaries that a rewind undid, ever. The fields are those of the rows' details, as
/// far as they have them.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Said {
    tenant: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
    #[serde(rename = "objectUID")]
    object_uid: Option<String>,
    lifecycle: Option<Lifecycle>,
    outcome: Option<RunOutcome>,
    undone: BTreeSet<Point>,
}

/// A boundary as a rewind tells of it. The hash has its epoch in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub(super) struct Point {
    turn: i32,
    boundary: Boundary,
    #[serde(deserialize_with = "digest")]
    hash: Digest,
}

/// A change of hands.
#[derive(Deserialize)]
struct Handed {
    to: String,
}

impl Said {
    /// Takes a row; the later one counts. One whose words cannot be read tells of nothing.
    pub fn see(&mut self, row: &AuditRow) {
        let handed = || serde_json::from_str(&row.detail).ok().map(|Handed { to }| to);
        match row.kind.as_str() {
            kind::CREATED => self.take(row, Some(Lifecycle::Live)),
            kind::REWOUND | kind::PRUNED => self.take(row, None),
            kind::FINISHED => self.take(row, Some(Lifecycle::Finished)),
            kind::CANCELLED => {
                (self.lifecycle, self.outcome) = (Some(Lifecycle::Finished), Some(RunOutcome::Cancelled));
            }
            kind::DELETED => self.lifecycle = Some(Lifecycle::Deleted),
            kind::ABANDONED => self.lifecycle = Some(Lifecycle::Abandoned),
            kind::ADOPTED => self.object_uid = handed().or(self.object_uid.take()),
            kind::NAMESPACE_ADOPTED => self.tenant = handed().or(self.tenant.take()),
            _ => {}
        }
    }

    fn take(&mut self, row: &AuditRow, becomes: Option<Lifecycle>) {
        let Ok(said) = serde_json::from_str(&row.detail) else { return };
        let Self { tenant, namespace, name, object_uid, lifecycle, outcome, undone } = said;
        self.tenant = tenant.or(self.tenant.take());
        self.namespace = namespace.or(self.namespace.take());
        self.name = name.or(self.name.take());
        self.object_uid = object_uid.or(self.object_uid.take());
        self.lifecycle = becomes.or(lifecycle).or(self.lifecycle);
        self.outcome = outcome.or(self.outcome);
        self.undone.extend(undone);
    }

    /// Where the boundaries that are marked as undone are not those that were told; of each kind the first.
    pub fn undone(&self, run: RunId, marked: &BTreeSet<Point>) -> impl Iterator<Item = Problem> {
        let problem = |point: &Point, what: &str| Problem::of(run, point.to_string(), what);
        let untold = "it is marked as undone, and the audit does not say that a rewind undid it";
        let untold = marked.difference(&self.undone).next().map(|point| problem(point, untold));
        let unmarked = "the audit says that a rewind undid it, and it is not marked so, or not there";
        let unmarked = self.undone.difference(marked).next().map(|point| problem(point, unmarked));
        untold.into_iter().chain(unmarked)
    }

    /// Where the run's own row says something else.
    pub fn differs(&self, head: &RunHead) -> impl Iterator<Item = Problem> {
        let texts = [
            ("tenant", &self.tenant, &head.tenant),
            ("namespace", &self.namespace, &head.namespace),
            ("name", &self.name, &head.name),
            ("objectUID", &self.object_uid, &head.object_uid),
        ];
        let others =
            texts.into_iter().filter(|(_, said, kept)| said.as_ref().is_some_and(|said| said != *kept));
        let ends = self.lifecycle.filter(|said| *said != head.lifecycle).map(|_| "lifecycle");
        let run = head.id;
        others.map(|(column, ..)| column).chain(ends).map(move |column| other(run, column))
    }

    /// Whether the run's own row says another outcome, or one where there is none.
    pub fn outcome_differs(&self, head: &RunHead) -> Option<Problem> {
        (self.lifecycle.is_some() && self.outcome != head.outcome).then(|| other(head.id, "outcome"))
    }
}

fn other(run: RunId, column: &str) -> Problem {
    Problem::of(run, "runs", format!("its {column} is not what the audit says"))
}

impl Point {
    /// That of a boundary which is there.
    pub fn of(boundary: &StoredBoundary) -> Self {
        let row = &boundary.kept.row;
        Self { turn: row.turn, boundary: row.boundary, hash: row.content_hash }
    }
}

impl std::fmt::Display for Point {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { turn, boundary, hash: _ } = *self;
        Place { turn, boundary, epoch: 0 }.fmt(f)
    }
}

fn digest<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Digest, D::Error> {
    Hash::deserialize(deserializer).map(|hash| hash.0)
}
