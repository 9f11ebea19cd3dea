//! How a run's boundaries hang together: each by itself, and each with the one before. Pure; the databases only read the
//! rows.

use std::fmt;

use dalsegno_protocol::Boundary;

use crate::header::{Header, NO_PARENT};
use crate::survey::Sound;
use crate::{BoundaryRow, Digest, RunId, header};

/// Where a boundary stands in its run: the key of its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Number of the turn.
    pub turn: i32,
    /// Which boundary of it.
    pub boundary: Boundary,
    /// The epoch it was committed under.
    pub epoch: i64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { turn, boundary, epoch: _ } = self;
        match boundary {
            Boundary::Plan => write!(f, "turn {turn} (plan)"),
            Boundary::Result => write!(f, "turn {turn} (result)"),
        }
    }
}

/// A boundary as it is kept, payloads decoded.
#[derive(Clone, Debug)]
pub struct Kept {
    /// What it says.
    pub row: BoundaryRow,
    /// The one before; `None` for the first.
    pub parent: Option<Place>,
    /// Digest of its operations, as it is kept.
    pub ops_digest: Option<Digest>,
    /// Digest of its events, as it is kept.
    pub events_digest: Option<Digest>,
    /// Whether the payloads were read: without them only the header is judged.
    pub has_payloads: bool,
}

impl Kept {
    /// Where it stands.
    pub fn place(&self) -> Place {
        let BoundaryRow { turn, boundary, epoch, .. } = self.row;
        Place { turn, boundary, epoch }
    }

    /// What is wrong with the row, whatever stands around it.
    pub fn fault(&self, run: RunId) -> Option<&'static str> {
        if self.content_hash(run) != self.row.content_hash {
            return Some("it does not have the hash it must have");
        }
        let ops = header::ops_digest(self.row.ops.as_deref().map(str::as_bytes));
        let events = header::events_digest(&self.row.events);
        if self.has_payloads && (ops != self.ops_digest || events != self.events_digest) {
            return Some("it has another payload than was committed");
        }
        if self.parent.is_none() != (self.row.parent_hash == NO_PARENT) {
            return Some("its hash and its place disagree on whether it is the first");
        }
        (!self.follows_closely()).then_some("it names a parent that is not the boundary before it")
    }

    /// Turns have no gaps: before a result stands its plan, or the turn before; before a plan the turn before.
    fn follows_closely(&self) -> bool {
        let Place { turn, boundary, .. } = self.place();
        match self.parent {
            None => turn == 1,
            Some(Place { boundary: Boundary::Plan, turn: before, .. }) => {
                before == turn && boundary == Boundary::Result
            }
            Some(Place { boundary: Boundary::Result, turn: before, .. }) => before == turn - 1,
        }
    }

    /// What it is linked by, or what is wrong with it.
    pub fn sound(&self, run: RunId) -> Result<Sound, String> {
        if let Some(fault) = self.fault(run) {
            return Err(fault.into());
        }
        let BoundaryRow { parent_hash, content_hash, full, position, .. } = self.row;
        Ok(Sound { parent: self.parent, parent_hash, content_hash, full, position })
    }

    fn content_hash(&self, run: RunId) -> Digest {
        let row = &self.row;
        Header {
            parent_hash: row.parent_hash,
            run,
            turn: row.turn,
            boundary: row.boundary,
            epoch: row.epoch,
            attempt: row.attempt,
            at: row.at.as_millisecond(),
            position: row.position,
            commit_id: row.commit_id,
            digest: row.digest,
            ops_digest: self.ops_digest,
            full: row.full,
            events_digest: self.events_digest,
            usage: row.usage,
            trigger: row.trigger.as_deref(),
            records_digest: row.records_digest,
        }
        .content_hash()
    }
}

/// Holds a piece of the live branch, the oldest first, to the hash of the head: each boundary must be sound, and have
/// the hash that its successor says it has.
///
/// # Errors
///
/// What is wrong, and where.
pub(crate) fn hold(run: RunId, head: &Digest, branch: &[Kept]) -> Result<(), String> {
    if branch.is_empty() {
        return Err("its head is not there".into());
    }
    let mut expected = *head;
    for kept in branch.iter().rev() {
        if kept.row.content_hash != expected {
            return Err(format!("{}: it is not the boundary that its successor names", kept.place()));
        }
        if let Some(fault) = kept.fault(run) {
            return Err(format!("{}: {fault}", kept.place()));
        }
        expected = kept.row.parent_hash;
    }
    Ok(())
}
