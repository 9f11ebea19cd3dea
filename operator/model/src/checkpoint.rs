//! Whether a run can go on from its head; and if not, from where it could. `dalsegno_proof::verify` finds it out.

use crate::Place;

/// Whether a run can go on from its head. A store that does not answer is an [`crate::Error`], and neither.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checkpoint {
    /// The state at the head can be rebuilt, and every boundary that it is made of is what its hash says, or nothing was
    /// ever committed; and the calls that the next attempt may be handed can be read.
    Sound,
    /// It cannot.
    Corrupt(Corruption),
}

/// Why a run cannot go on from its head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corruption {
    /// What is wrong, and where.
    pub detail: String,
    /// The last boundary from which it could go on, if there is one, and going back there mends it.
    pub last_good: Option<LastGood>,
}

/// A boundary from which a run could go on, and what would then be done again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastGood {
    /// Where it stands.
    pub place: Place,
    /// Calls of the turns after it that may have changed something: begun, and not `readOnly`.
    pub effects: Vec<String>,
}
