//! The id of a boundary in its run, and why its payloads may be missing.

use std::fmt;

use dalsegno_protocol::Boundary;
use serde::{Deserialize, Serialize};

/// The message for data that was shredded.
pub const SHREDDED: &str = "it was shredded: the data key of its run is deleted, and nobody can read it";

/// Why a boundary's payloads are missing on purpose. This is not corruption, but no run can continue from such a
/// boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadLoss {
    /// They were dropped as the run's retention requires.
    Dropped,
    /// The data key of the run was deleted.
    Shredded,
}

impl fmt::Display for PayloadLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dropped => "its payloads were dropped, as the run's retention says",
            Self::Shredded => SHREDDED,
        })
    }
}

/// The id of a boundary in its run: the key of its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BoundaryId {
    /// Number of the turn.
    pub turn: i32,
    /// Which boundary of it.
    pub boundary: Boundary,
    /// The epoch it was committed under.
    pub epoch: i64,
}

impl BoundaryId {
    /// The id of the checkpoint for people: the turn, the number of the boundary ([`boundary_number`]) and the epoch,
    /// such as `7.2.3`.
    pub fn checkpoint_id(&self) -> String {
        format!("{}.{}.{}", self.turn, boundary_number(self.boundary), self.epoch)
    }

    /// Parses a [`Self::checkpoint_id`].
    pub fn parse(id: &str) -> Option<Self> {
        let mut parts = id.split('.');
        let turn = parts.next()?.parse().ok()?;
        let boundary = boundary_of(parts.next()?.parse().ok()?)?;
        let epoch = parts.next()?.parse().ok()?;
        parts.next().is_none().then_some(Self { turn, boundary, epoch })
    }
}

impl fmt::Display for BoundaryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { turn, boundary, epoch: _ } = self;
        match boundary {
            Boundary::Plan => write!(f, "turn {turn} (plan)"),
            Boundary::Result => write!(f, "turn {turn} (result)"),
        }
    }
}

/// The number of a boundary in rows and hashes: 1 plan, 2 result.
pub fn boundary_number(boundary: Boundary) -> u8 {
    match boundary {
        Boundary::Plan => 1,
        Boundary::Result => 2,
    }
}

/// The boundary for a stored number; `None` for any other number.
pub fn boundary_of(number: i64) -> Option<Boundary> {
    match number {
        1 => Some(Boundary::Plan),
        2 => Some(Boundary::Result),
        _ => None,
    }
}
