//! The check of a run's head before its next attempt gets a pod.
//!
//! # Invariant
//!
//! A run whose state at the head cannot be rebuilt gets no pod, and never starts again at turn 1.

use dalsegno_crds::{OnCorruptCheckpoint, Reason};
use dalsegno_model::audit::actor;
use dalsegno_model::checkpoint::{Checkpoint, CheckpointCorruption, LastGood};
use dalsegno_model::{CallCounts, Rewind, RunRecord};

use crate::observed::ObservedHead;
use crate::recovery::Hold;

/// Highest number of calls that a message lists.
const LISTED_CALLS: usize = 10;

/// The result of the check.
#[derive(Debug)]
pub(crate) enum HeadCheck {
    /// The head is valid, or there is nothing to resume from. A pod may be created.
    Valid,
    /// The head has not been verified for this attempt yet.
    Unverified,
    /// The head is corrupt. A person must act.
    Hold(Hold),
    /// The head is corrupt, and the policy allows the run to go back to the last good checkpoint.
    RewindTo(Rewind),
}

/// Checks whether the reserved attempt may resume from the head.
pub(crate) fn check(row: &RunRecord, seen: Option<&ObservedHead>, policy: OnCorruptCheckpoint) -> HeadCheck {
    if row.head.is_none() && row.highest_turn == 0 && row.calls == CallCounts::default() {
        return HeadCheck::Valid;
    }
    match seen.filter(|seen| seen.is_of(row)).map(|seen| &seen.found) {
        None => HeadCheck::Unverified,
        Some(Checkpoint::Valid) => HeadCheck::Valid,
        Some(Checkpoint::Corrupt(corruption)) => apply_policy(row, corruption, policy),
    }
}

fn apply_policy(
    row: &RunRecord,
    corruption: &CheckpointCorruption,
    policy: OnCorruptCheckpoint,
) -> HeadCheck {
    let CheckpointCorruption { detail, last_good } = corruption;
    let hold =
        |rest: String| HeadCheck::Hold(Hold::new(Reason::CheckpointCorrupt, format!("{detail}; {rest}")));
    let Some(LastGood { boundary: boundary_id, effects }) = last_good else {
        return hold("no earlier checkpoint can be rebuilt".into());
    };
    match policy {
        OnCorruptCheckpoint::Hold => hold(format!("the last good checkpoint is {boundary_id}")),
        OnCorruptCheckpoint::LastGood if effects.is_empty() => HeadCheck::RewindTo(Rewind {
            epoch: row.epoch,
            to: *boundary_id,
            reason: detail.clone(),
            actor: actor::OPERATOR.to_owned(),
        }),
        OnCorruptCheckpoint::LastGood => {
            let more = effects.len().saturating_sub(LISTED_CALLS);
            let listed = effects.iter().take(LISTED_CALLS).cloned().collect::<Vec<_>>().join(", ");
            let more = if more == 0 { String::new() } else { format!(" and {more} more") };
            hold(format!(
                "going back to the last good checkpoint, {boundary_id}, might repeat the effects of these calls: {listed}{more}"
            ))
        }
    }
}
