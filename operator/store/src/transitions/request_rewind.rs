//! Rewinds by turns: one that a person requests, and the step back before the last try at a checkpoint.

use dalsegno_protocol::Boundary;
use serde_json::json;

use super::rewind::{Undo, has_payloads};
use super::{Change, Decision, Needs, Rows, Transition, text, with_attribution};
use crate::db_error::{DbError, DbResult};
use crate::reads::{HeadPoint, LiveBoundary};
use dalsegno_format::header;
use dalsegno_model::audit::{actor, kind};
use dalsegno_model::{
    AttemptState, AvailableTurns, BoundaryId, Digest, Effects, RewindRefusal, RewindRequest, RewindResult,
    Rewound, RunRecord, StepBack,
};

/// What a rewind by turns reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UndoQuery {
    /// The turn whose result becomes the head. The boundaries of the live branch are read from it on, and the calls of
    /// later turns that may have changed something.
    pub to_turn: i32,
    /// A boundary that must be on the live branch.
    pub if_head: Option<Digest>,
}

/// [`dalsegno_model::Operator::request_rewind`].
#[derive(Clone, Debug)]
pub(crate) struct RequestRewind(pub RewindRequest);

impl Transition for RequestRewind {
    type Answer = RunRecord;
    const OPERATION: &'static str = "rewinding a run";

    fn needs(&self) -> Needs<'_> {
        let if_head = self.0.if_head.as_deref().and_then(header::parse);
        Needs::Undo(UndoQuery { to_turn: self.0.to_turn, if_head })
    }

    fn decide(&self, mut rows: Rows) -> DbResult<Decision<RunRecord>> {
        let RewindRequest { generation, to_turn, requested_by, .. } = &self.0;
        let boundaries = std::mem::take(&mut rows.boundaries);
        let effects = std::mem::take(&mut rows.effects);
        let (taken, has_if_head) = (rows.taken_since, rows.has_if_head);
        let mut change = Change::of(rows);
        if !change.is_live() || *generation <= change.row().observed_rewind_generation {
            return change.with_record();
        }
        change.run().observed_rewind_generation = *generation;
        let judged =
            self.judge(&change, &Found { boundaries: &boundaries, effects: &effects, has_if_head })?;
        let refused = match judged {
            Ok(target) => {
                let accepted: Vec<_> = effects.iter().map(|id| text(id)).collect();
                let detail = json!({ "generation": generation, "acceptedEffects": accepted });
                let detail = with_attribution(requested_by, detail);
                Undo { target, boundaries: &boundaries, taken }.apply(
                    &mut change,
                    actor::OPERATOR,
                    detail,
                )?;
                None
            }
            Err(refused) => {
                let detail = json!({ "generation": generation, "toTurn": to_turn, "refused": refused });
                let detail = with_attribution(requested_by, detail);
                change.audit(kind::REWIND_REFUSED, actor::OPERATOR, detail);
                Some(refused)
            }
        };
        let result = RewindResult { generation: *generation, to_turn: *to_turn, refused };
        let result = serde_json::to_string(&result)
            .map_err(|error| DbError::Corrupt(format!("the result of a rewind: {error}")))?;
        change.run().rewind_result = Some(result);
        change.notify();
        change.with_record()
    }
}

/// What was read for a request.
struct Found<'a> {
    boundaries: &'a [LiveBoundary],
    effects: &'a [String],
    has_if_head: bool,
}

impl RequestRewind {
    /// The boundary that becomes the head, or why there is no rewind.
    fn judge(&self, change: &Change, found: &Found<'_>) -> DbResult<Result<HeadPoint, RewindRefusal>> {
        let RewindRequest { to_turn, if_head, accept_effects, .. } = &self.0;
        if if_head.is_some() && !found.has_if_head {
            let head = change.row().head().map(|head| header::render(&head.hash));
            return Ok(Err(RewindRefusal::HeadChanged { head }));
        }
        let Some(target) = result_of(change, *to_turn, found.boundaries)? else {
            return Ok(Err(RewindRefusal::TurnNotAvailable(available_turns(change))));
        };
        Ok(match Effects::missing(found.effects, accept_effects) {
            Some(effects) => Err(RewindRefusal::Effects(effects)),
            None => Ok(target),
        })
    }
}

/// The result of this turn on the live branch, if the state after it was not dropped.
fn result_of(change: &Change, turn: i32, boundaries: &[LiveBoundary]) -> DbResult<Option<HeadPoint>> {
    let is_it = |id: &BoundaryId| (id.turn, id.boundary) == (turn, Boundary::Result);
    let found = boundaries.iter().find(|it| is_it(&it.id) && has_payloads(change, it.id));
    found.map(LiveBoundary::head_point).transpose()
}

fn available_turns(change: &Change) -> AvailableTurns {
    let run = change.row();
    let last = run.head().map_or(0, |head| match head.boundary {
        Boundary::Plan => head.turn - 1,
        Boundary::Result => head.turn,
    });
    let first = run.dropped_to().map(|id| id.turn).or(run.fork_turn).unwrap_or(1);
    AvailableTurns { first, last }
}

impl Transition for StepBack {
    type Answer = Rewound;
    const OPERATION: &'static str = "going back one turn";

    fn needs(&self) -> Needs<'_> {
        Needs::Undo(UndoQuery { to_turn: self.from.turn - 1, if_head: None })
    }

    fn decide(&self, mut rows: Rows) -> DbResult<Decision<Rewound>> {
        let Self { epoch, from } = *self;
        let boundaries = std::mem::take(&mut rows.boundaries);
        let (taken, has_effects) = (rows.taken_since, !rows.effects.is_empty());
        let mut change = Change::of(rows);
        let run = change.row();
        let is_from = |head: HeadPoint| {
            (head.turn, head.boundary, head.epoch) == (from.turn, from.boundary, from.epoch)
        };
        let is_due = change.is_live()
            && run.epoch == epoch
            && run.attempt_state.0 == AttemptState::Reserved
            && run.head().is_some_and(is_from);
        let target = result_of(&change, from.turn - 1, &boundaries)?;
        let Some(target) = target.filter(|_| is_due && !has_effects) else {
            let answer = Rewound::Refused(change.record()?);
            return Ok(change.decide(answer));
        };
        let reason = "attempts keep dying at this checkpoint, and recovery.onSameCheckpoint is Rewind";
        let undo = Undo { target, boundaries: &boundaries, taken };
        undo.apply(&mut change, actor::OPERATOR, json!({ "reason": reason }))?;
        let answer = Rewound::Done(change.record()?);
        Ok(change.decide(answer))
    }
}
