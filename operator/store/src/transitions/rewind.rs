//! Rewinds the run to an earlier boundary of its live branch.

use dalsegno_protocol::Boundary;
use serde_json::{Value as Json, json};

use super::end::{end_with_audit, fence, neutral_ending, reserve_next};
use super::waits::undo_waits;
use super::{Change, Decision, Needs, Rows, Transition, text};
use crate::db_error::DbResult;
use crate::reads::{HeadPoint, LiveBoundary, TakenSince};
use dalsegno_format::header;
use dalsegno_model::audit::kind;
use dalsegno_model::{AttemptState, BoundaryId, Cause, Rewind, Rewound};

impl Transition for Rewind {
    type Answer = Rewound;
    const OPERATION: &'static str = "rewinding a run";

    fn needs(&self) -> Needs<'_> {
        Needs::BoundariesFrom(self.to)
    }

    fn decide(&self, mut rows: Rows) -> DbResult<Decision<Rewound>> {
        let Self { epoch, to, reason, actor } = self;
        let boundaries = std::mem::take(&mut rows.boundaries);
        let taken = rows.taken_since;
        let mut change = Change::of(rows);
        let target = boundaries.iter().find(|it| it.id == *to).map(LiveBoundary::head_point).transpose()?;
        let from = change.row().head();
        let point = |head: HeadPoint| (head.turn, head.boundary, head.epoch, head.hash);
        if target.is_some() && from.map(point) == target.map(point) {
            let answer = Rewound::Done(change.record()?);
            return Ok(change.decide(answer));
        }
        let is_before = |head: HeadPoint| (to.turn, to.boundary) <= (head.turn, head.boundary);
        let has_payloads = has_payloads(&change, *to);
        let is_allowed =
            change.is_live() && change.row().epoch == *epoch && has_payloads && from.is_none_or(is_before);
        let Some(target) = target.filter(|_| is_allowed) else {
            let answer = Rewound::Refused(change.record()?);
            return Ok(change.decide(answer));
        };
        let undo = Undo { target, boundaries: &boundaries, taken };
        undo.apply(&mut change, actor, json!({ "reason": text(reason) }))?;
        let answer = Rewound::Done(change.record()?);
        Ok(change.decide(answer))
    }
}

/// Whether the state after this boundary was not dropped.
pub(super) fn has_payloads(change: &Change, to: BoundaryId) -> bool {
    change.row().dropped_to().is_none_or(|last| (to.turn, to.boundary) >= (last.turn, last.boundary))
}

/// What a rewind undoes.
#[derive(Clone, Debug)]
pub(super) struct Undo<'a> {
    /// The boundary of the live branch that becomes the head.
    pub target: HeadPoint,
    /// The boundaries of the live branch from the target on.
    pub boundaries: &'a [LiveBoundary],
    /// The messages that later boundaries have taken.
    pub taken: TakenSince,
}

impl Undo<'_> {
    /// Makes the target the head, in a new epoch. `detail`: what the audit says besides what was undone.
    pub fn apply(self, change: &mut Change, actor: &str, mut detail: Json) -> DbResult<()> {
        let Self { target, boundaries, taken } = self;
        let to = BoundaryId { turn: target.turn, boundary: target.boundary, epoch: target.epoch };
        let (from, state) = (change.row().head(), change.row().attempt_state.0);
        // Also boundaries with the target's turn and boundary under another epoch.
        let undone: Vec<_> = boundaries.iter().filter(|it| it.id != to).map(in_audit).collect();
        change.undo_after(to);
        undo_waits(change, to);
        let has_pod = matches!(state, AttemptState::Created | AttemptState::Attached);
        if has_pod {
            let ending = neutral_ending(change.row().attempt, Cause::Rewound);
            end_with_audit(change, &ending)?;
        } else {
            fence(change);
        }
        if state == AttemptState::Reserved {
            let epoch = change.row().epoch;
            let attempt = change.attempt()?;
            (attempt.epoch, attempt.turn_at_start) = (epoch, to.turn);
        }
        // Positions of events never decrease.
        let position = change.row().head_position;
        let now = change.now();
        change.run().set_head(target, position);
        change.run().check_usage_limits(now);
        change.run().records_digest = None;
        change.run().rewinds += 1;
        change.run().unread += taken.messages;
        change.run().unread_bytes += taken.bytes;
        change.notify();
        detail["from"] = from.map(|from| boundary_json(from.turn, from.boundary, &from.hash)).into();
        detail["to"] = boundary_json(to.turn, to.boundary, &target.hash);
        detail["epoch"] = change.row().epoch.into();
        detail["undone"] = undone.into();
        change.audit(kind::REWOUND, actor, detail);
        if has_pod {
            reserve_next(change);
        }
        Ok(())
    }
}

/// A boundary in the detail of an audit row. Its hash is rendered as it is stored, even if it is damaged.
fn in_audit(boundary: &LiveBoundary) -> Json {
    boundary_json(boundary.id.turn, boundary.id.boundary, &boundary.hash)
}

fn boundary_json(turn: i32, boundary: Boundary, hash: &[u8]) -> Json {
    json!({ "turn": turn, "boundary": boundary, "hash": header::render(hash) })
}
