//! A start that takes long: whether the pod may wait for a volume, and when that is looked at.
//!
//! No field of a pod says that it waits for a volume; only events do. A volume that one node at a time may have stays
//! attached to a lost node for minutes. The pod that replaces the worker waits for it, wherever it is created.

use dalsegno_model::{AttemptState, RunRecord};
use jiff::SignedDuration;

use crate::observed::{ObservedPod, VolumeProblem};
use crate::pod;

/// A start that takes longer is looked at.
const SLOW: SignedDuration = SignedDuration::from_secs(30);
/// Interval of these looks.
const INTERVAL: SignedDuration = SignedDuration::from_secs(60);

/// Whether this pod of the current attempt has had a node for a while, and none of its containers has begun, for no reason
/// that the pod shows.
pub fn may_wait_for_volume(row: &RunRecord, seen: &ObservedPod) -> bool {
    waits_for(row, seen).is_some_and(|waits| waits >= SLOW)
}

/// When to look at the pod again, if it may wait for a volume then.
pub(crate) fn next_look(row: &RunRecord, seen: &ObservedPod) -> Option<SignedDuration> {
    waits_for(row, seen).map(|waits| if waits < SLOW { SLOW - waits } else { INTERVAL })
}

/// How long the pod has waited since it got its node.
fn waits_for(row: &RunRecord, seen: &ObservedPod) -> Option<SignedDuration> {
    let is_current = row.attempt.state == AttemptState::Created
        && row.attempt.pod_uid.as_deref() == Some(seen.uid())
        && !seen.gone;
    let waits = is_current && !pod::has_begun(&seen.pod) && pod::waiting(&seen.pod).is_none();
    row.attempt.scheduled_at.filter(|_| waits).map(|since| row.now.duration_since(since))
}

/// Whether an event with this reason is about a volume of the pod.
pub fn is_volume_event(reason: &str) -> bool {
    matches!(reason, "FailedAttachVolume" | "SuccessfulAttachVolume" | "FailedMount" | "FailedMapVolume")
}

/// The problem that a pod's latest event about a volume reports, by its reason and its message.
pub fn volume_problem(reason: &str, message: &str) -> Option<VolumeProblem> {
    let is_attach = match reason {
        "FailedAttachVolume" => true,
        "FailedMount" | "FailedMapVolume" => false,
        _ => return None,
    };
    Some(VolumeProblem { is_attach, message: format!("{reason}: {message}") })
}
