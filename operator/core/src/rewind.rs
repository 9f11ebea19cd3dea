//! Rewinds that a person requests, and the step back before the last try at one checkpoint.
//!
//! # Invariant
//!
//! A request is obeyed or refused once: the store keeps its number. A refusal changes nothing else.

use dalsegno_crds::{AgentRun, OnSameCheckpoint, Reason};
use dalsegno_model::{
    AvailableTurns, BoundaryId, Class, Effects, RewindRefusal, RewindRequest, RewindResult, RunRecord,
    StepBack,
};

use crate::attribution::{self, Request};
use crate::recovery::counted_attempts;
use crate::settings::Settings;
use crate::text::counted;

/// Calls that a message lists.
const LISTED_CALLS: usize = 10;

/// The rewind that the spec asks for, if the store has not observed it.
pub(crate) fn requested(run: &AgentRun, row: &RunRecord) -> Option<RewindRequest> {
    let rewind = run.spec.rewind.as_ref().filter(|it| it.generation > row.observed_rewind_generation)?;
    Some(RewindRequest {
        generation: rewind.generation,
        to_turn: rewind.to_turn,
        if_head: rewind.if_head.clone(),
        accept_effects: rewind.accept_effects.clone(),
        requested_by: attribution::of(&run.metadata, Request::Rewind, attribution::observed(run)),
    })
}

/// One turn back, if the next attempt is the last try and the last attempt has crashed at the head. After it the head
/// is another one, so that it is made once.
pub(crate) fn step_back(row: &RunRecord, settings: &Settings) -> Option<StepBack> {
    let crashes = row.counters.attempts_without_progress;
    let is_last_try = crashes > 0 && crashes.saturating_add(1) == settings.max_attempts_without_progress;
    let head = row.head.as_ref().filter(|head| head.turn > 1 && is_last_try)?;
    let last = counted_attempts(row).next()?;
    let has_crashed = last.end.as_ref().is_some_and(|end| end.class == Class::Crash);
    let is_due = settings.on_same_checkpoint == OnSameCheckpoint::Rewind
        && has_crashed
        && last.turn_at_end == Some(head.turn);
    let from = BoundaryId { turn: head.turn, boundary: head.boundary, epoch: head.epoch };
    is_due.then_some(StepBack { epoch: row.epoch, from })
}

/// What became of the last request, as people read it.
pub(crate) struct Outcome {
    /// Whether the rewind was made.
    pub is_done: bool,
    /// Why, in one word.
    pub reason: Reason,
    /// Why, and what to do.
    pub message: String,
}

/// What became of the last request. `None`: there was none.
pub(crate) fn outcome(run: &AgentRun, row: &RunRecord) -> Option<Outcome> {
    let refused = |reason, message| Some(Outcome { is_done: false, reason, message });
    if let Some(unseen) = run.spec.rewind.as_ref().filter(|it| it.generation > row.observed_rewind_generation)
        && row.finish.is_some()
    {
        let name = run.metadata.name.as_deref().unwrap_or_default();
        let (generation, turn) = (unseen.generation, unseen.to_turn);
        return refused(
            Reason::RewindRefused,
            format!(
                "generation {generation}: the run has ended, and an end is final. To go on after turn {turn}, fork it: create \
                 an AgentRun with spec.resumeFrom.runName {name} and spec.resumeFrom.turn {turn}"
            ),
        );
    }
    let RewindResult { generation, to_turn, refused: why } = row.rewind.as_ref()?;
    match why {
        None => Some(Outcome {
            is_done: true,
            reason: Reason::Rewound,
            message: format!("generation {generation}: the run went back to turn {to_turn}"),
        }),
        Some(RewindRefusal::TurnNotAvailable(turns)) => refused(
            Reason::TurnNotAvailable,
            format!(
                "generation {generation}: turn {to_turn} is not available; {}",
                match row.is_external {
                    true => "the agent has checkpointing: External, and its own engine keeps its checkpoints"
                        .to_owned(),
                    false => describe_turns(turns),
                }
            ),
        ),
        Some(RewindRefusal::HeadChanged { head }) => refused(
            Reason::RewindRefused,
            format!(
                "generation {generation}: the checkpoint in spec.rewind.ifHead is not the latest one or an earlier one of it; \
                 the latest one is {}. Look at the run again, then raise spec.rewind.generation",
                head.as_deref().unwrap_or("none")
            ),
        ),
        Some(RewindRefusal::Effects(effects)) => refused(
            Reason::RewindRefused,
            format!(
                "generation {generation}: {} of the turns after turn {to_turn} may have changed something: {}. If they may be \
                 made again, name them in spec.rewind.acceptEffects, and raise spec.rewind.generation",
                calls(effects),
                list(effects)
            ),
        ),
    }
}

/// Which turns there are, for a message.
pub(crate) fn describe_turns(turns: &AvailableTurns) -> String {
    let AvailableTurns { first, last } = turns;
    match last - first {
        ..0 => "no turn has ended".to_owned(),
        0 => format!("only turn {first} is"),
        1.. => format!("turns {first} to {last} are"),
    }
}

/// How many calls these are.
pub(crate) fn calls(effects: &Effects) -> String {
    counted((effects.calls.len() + effects.further) as i64, "call", "calls")
}

/// The ids of the first of these calls, and how many there are besides.
pub(crate) fn list(effects: &Effects) -> String {
    let listed: Vec<_> = effects.calls.iter().take(LISTED_CALLS).cloned().collect();
    let further = effects.calls.len() - listed.len() + effects.further;
    let more = if further == 0 { String::new() } else { format!(" and {further} more") };
    format!("{}{more}", listed.join(", "))
}
