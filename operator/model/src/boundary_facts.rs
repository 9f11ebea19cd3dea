//! What is known of a boundary besides its own row.

use dalsegno_protocol::{Call, Usage};
use jiff::Timestamp;

use crate::BoundaryId;

/// A boundary to look up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundaryQuery {
    /// The latest boundary of this turn of the live branch.
    Turn(i32),
    /// This boundary, on any branch.
    Id(BoundaryId),
}

/// What is known of a boundary besides its own row. It is computed when it is read.
#[derive(Clone, Debug)]
pub struct BoundaryFacts {
    /// Whether a rewind undid it.
    pub undone: bool,
    /// Number of its events.
    pub events: i64,
    /// The time of the result of the turn before, on the same branch. `None`: there is none.
    pub turn_began_at: Option<Timestamp>,
    /// What the run had used up to and including this boundary, in all attempts. What was undone before it counts.
    pub usage: Usage,
    /// How many earlier attempts were charged.
    pub recovery_attempts: i64,
    /// How many earlier attempts a disruption ended.
    pub disruptions: i64,
    /// Number of all calls that were first seen in its turn or an earlier one.
    pub call_count: i64,
    /// The latest of these calls, in order, as they are stored now: at most
    /// [`dalsegno_protocol::Limits::CHECKPOINT_CALLS`], with payloads of at most
    /// [`dalsegno_protocol::Limits::CHECKPOINT_CALLS_BYTES`].
    pub calls: Vec<PastCall>,
    /// What led to it.
    pub led_by: LedBy,
}

/// A call that was first seen up to a boundary.
#[derive(Clone, Debug)]
pub struct PastCall {
    /// The call. A payload that was shredded, dropped or damaged is absent.
    pub call: Call,
    /// The attempt that claimed it last.
    pub attempt: Option<i32>,
    /// Whether its payloads were not read, because those of later calls are large.
    pub omitted: bool,
    /// Whether a payload cannot be decoded.
    pub damaged: bool,
}

/// What led to a boundary: what came to the run since the boundary before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LedBy {
    /// Ids of the calls of its turn that had ended.
    pub calls: Vec<String>,
    /// Ids of the waits that were answered.
    pub waits: Vec<String>,
    /// Positions of the messages that it has taken.
    pub messages: Vec<i64>,
}
