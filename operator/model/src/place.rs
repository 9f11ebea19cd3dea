//! Where a boundary stands in its run, and why its payloads may not be there any more.

use std::fmt;

use dalsegno_protocol::Boundary;
use serde::{Deserialize, Serialize};

/// What nobody can read any more.
pub const SHREDDED: &str = "it was shredded: the data key of its run is deleted, and nobody can read it";

/// Why a boundary's payloads are not there any more, which is no damage; nobody can go on from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// As the run's retention says.
    Dropped,
    /// The data key of the run was deleted.
    Shredded,
}

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dropped => "its payloads were dropped, as the run's retention says",
            Self::Shredded => SHREDDED,
        })
    }
}

/// Where a boundary stands in its run: the key of its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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

/// The number by which a boundary is stored and hashed: 1 plan, 2 result.
pub fn boundary_number(boundary: Boundary) -> u8 {
    match boundary {
        Boundary::Plan => 1,
        Boundary::Result => 2,
    }
}

/// The boundary that a stored number stands for.
pub fn boundary_of(number: i64) -> Option<Boundary> {
    match number {
        1 => Some(Boundary::Plan),
        2 => Some(Boundary::Result),
        _ => None,
    }
}
