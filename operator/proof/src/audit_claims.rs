//! What the audit of a run says about its boundaries and the run's own row.

use std::collections::BTreeSet;

use dalsegno_model::audit::kind;
use dalsegno_model::read_transaction::{RunHead, StoredBoundary};
use dalsegno_model::{AuditRow, BoundaryId, Digest, Lifecycle, RunId, RunOutcome};
use dalsegno_protocol::Boundary;
use serde::{Deserialize, Deserializer};

use super::encoding::Hash;
use super::problem::Problem;

/// The latest value of each field in the audit; for undone boundaries all of them. The fields are those of the rows'
/// details, as far as they contain them.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct AuditClaims {
    tenant: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
    #[serde(rename = "objectUID")]
    object_uid: Option<String>,
    lifecycle: Option<Lifecycle>,
    outcome: Option<RunOutcome>,
    undone: BTreeSet<UndoneBoundary>,
}

/// A boundary as a rewind names it. The hash covers the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub(super) struct UndoneBoundary {
    turn: i32,
    boundary: Boundary,
    #[serde(deserialize_with = "digest")]
    hash: Digest,
}

/// A transfer to another owner.
#[derive(Deserialize)]
struct Transfer {
    to: String,
}

impl AuditClaims {
    /// Adds a row. Later rows replace earlier ones. A row with an unreadable detail is ignored.
    pub fn add_row(&mut self, row: &AuditRow) {
        let new_owner = || serde_json::from_str(&row.detail).ok().map(|Transfer { to }| to);
        match row.kind.as_str() {
            kind::CREATED => self.merge(row, Some(Lifecycle::Live)),
            kind::REWOUND | kind::PRUNED => self.merge(row, None),
            kind::FINISHED => self.merge(row, Some(Lifecycle::Finished)),
            kind::CANCELLED => {
                (self.lifecycle, self.outcome) = (Some(Lifecycle::Finished), Some(RunOutcome::Cancelled));
            }
            kind::DELETED => self.lifecycle = Some(Lifecycle::Deleted),
            kind::ABANDONED => self.lifecycle = Some(Lifecycle::Abandoned),
            kind::ADOPTED => self.object_uid = new_owner().or(self.object_uid.take()),
            kind::NAMESPACE_ADOPTED => self.tenant = new_owner().or(self.tenant.take()),
            _ => {}
        }
    }

    fn merge(&mut self, row: &AuditRow, becomes: Option<Lifecycle>) {
        let Ok(claims) = serde_json::from_str(&row.detail) else { return };
        let Self { tenant, namespace, name, object_uid, lifecycle, outcome, undone } = claims;
        self.tenant = tenant.or(self.tenant.take());
        self.namespace = namespace.or(self.namespace.take());
        self.name = name.or(self.name.take());
        self.object_uid = object_uid.or(self.object_uid.take());
        self.lifecycle = becomes.or(lifecycle).or(self.lifecycle);
        self.outcome = outcome.or(self.outcome);
        self.undone.extend(undone);
    }

    /// Where the boundaries marked as undone differ from those in the audit; at most one problem in each direction.
    pub fn undone(&self, run: RunId, marked: &BTreeSet<UndoneBoundary>) -> impl Iterator<Item = Problem> {
        let problem = |boundary: &UndoneBoundary, what: &str| Problem::of(run, boundary.to_string(), what);
        let unaudited = "it is marked as undone, and the audit does not say that a rewind undid it";
        let unaudited = marked.difference(&self.undone).next().map(|boundary| problem(boundary, unaudited));
        let unmarked = "the audit says that a rewind undid it, and it is not marked as undone, or is missing";
        let unmarked = self.undone.difference(marked).next().map(|boundary| problem(boundary, unmarked));
        unaudited.into_iter().chain(unmarked)
    }

    /// Where the run's own row differs from the audit.
    pub fn mismatches(&self, head: &RunHead) -> impl Iterator<Item = Problem> {
        let texts = [
            ("tenant", &self.tenant, &head.tenant),
            ("namespace", &self.namespace, &head.namespace),
            ("name", &self.name, &head.name),
            ("objectUID", &self.object_uid, &head.object_uid),
        ];
        let others = texts
            .into_iter()
            .filter(|(_, claimed, stored)| claimed.as_ref().is_some_and(|claimed| claimed != *stored));
        let ends = self.lifecycle.filter(|claimed| *claimed != head.lifecycle).map(|_| "lifecycle");
        let run = head.id;
        others.map(|(column, ..)| column).chain(ends).map(move |column| mismatch(run, column))
    }

    /// Whether the outcome in the run's own row differs from the audit.
    pub fn outcome_mismatch(&self, head: &RunHead) -> Option<Problem> {
        (self.lifecycle.is_some() && self.outcome != head.outcome).then(|| mismatch(head.id, "outcome"))
    }
}

fn mismatch(run: RunId, column: &str) -> Problem {
    Problem::of(run, "runs", format!("its {column} is not what the audit says"))
}

impl UndoneBoundary {
    /// An existing boundary.
    pub fn of(boundary: &StoredBoundary) -> Self {
        let row = &boundary.decoded.row;
        Self { turn: row.turn, boundary: row.boundary, hash: row.content_hash }
    }
}

impl std::fmt::Display for UndoneBoundary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { turn, boundary, hash: _ } = *self;
        BoundaryId { turn, boundary, epoch: 0 }.fmt(f)
    }
}

fn digest<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Digest, D::Error> {
    Hash::deserialize(deserializer).map(|hash| hash.0)
}
