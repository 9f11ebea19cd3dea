//! What is done when a run cannot go on from its head: never a pod, never turn 0.

use dalsegno_crds::{OnCorruptCheckpoint, Reason};
use dalsegno_model::audit::actor;
use dalsegno_model::checkpoint::{Checkpoint, Corruption, LastGood};
use dalsegno_model::{CallCounts, Rewind, RunRecord};

use crate::HeadSight;
use crate::recovery::Hold;

/// Calls that a message names.
const NAMED: usize = 10;

/// What comes of looking at the head.
#[derive(Debug)]
pub(crate) enum Footing {
    /// A pod may be made.
    Firm,
    /// Nobody has looked yet, for this attempt.
    Unknown,
    /// A person is needed.
    Lost(Hold),
    /// The policy gives up what came after the last good checkpoint.
    Behind(Rewind),
}

/// Whether the reserved attempt may go on from its head.
pub(crate) fn footing(row: &RunRecord, seen: Option<&HeadSight>, policy: OnCorruptCheckpoint) -> Footing {
    if row.head.is_none() && row.highest_turn == 0 && row.calls == CallCounts::default() {
        return Footing::Firm;
    }
    match seen.filter(|seen| seen.is_of(row)).map(|seen| &seen.found) {
        None => Footing::Unknown,
        Some(Checkpoint::Sound) => Footing::Firm,
        Some(Checkpoint::Corrupt(corruption)) => answer(row, corruption, policy),
    }
}

fn answer(row: &RunRecord, corruption: &Corruption, policy: OnCorruptCheckpoint) -> Footing {
    let Corruption { detail, last_good } = corruption;
    let held =
        |rest: String| Footing::Lost(Hold::new(Reason::CheckpointCorrupt, format!("{detail}; {rest}")));
    let Some(LastGood { place, effects }) = last_good else {
        return held("no earlier checkpoint mends it".into());
    };
    match policy {
        OnCorruptCheckpoint::Hold => held(format!("the last good checkpoint is {place}")),
        OnCorruptCheckpoint::LastGood if effects.is_empty() => Footing::Behind(Rewind {
            epoch: row.epoch,
            to: *place,
            reason: detail.clone(),
            actor: actor::OPERATOR.to_owned(),
        }),
        OnCorruptCheckpoint::LastGood => {
            let more = effects.len().saturating_sub(NAMED);
            let named = effects.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
            let more = if more == 0 { String::new() } else { format!(" and {more} more") };
            held(format!(
                "going back to the last good checkpoint, {place}, might repeat what these calls did: {named}{more}"
            ))
        }
    }
}
