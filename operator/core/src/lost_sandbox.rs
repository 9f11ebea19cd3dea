//! A pod that never starts, because it has lost its sandbox: the network and the first process that its containers share.
//!
//! A node that loses its power may lose the sandbox between the creation and the start of a container. The kubelet then
//! creates no other sandbox for a pod with `restartPolicy: Never`, unless the runtime has forgotten the first one. Such a pod
//! stays `Pending` (<https://github.com/kubernetes/kubernetes/issues/118321>).

use dalsegno_crds::Cause;
use dalsegno_model::{Attempt, AttemptState, Class};
use jiff::{SignedDuration, Timestamp};

use crate::end::End;
use crate::observed::{ObservedNode, ObservedPod};
use crate::pod;
use crate::pod_end::CLOCK_SKEW_SECONDS;

/// A kubelet that creates another sandbox has done so by then.
const PATIENCE: SignedDuration = SignedDuration::from_secs(30);

/// The end of an attempt whose pod never starts. A pod that was deleted had lost its sandbox before, since the deletion
/// takes the sandbox as well.
pub(crate) fn end_of(
    attempt: &Attempt,
    seen: &ObservedPod,
    node: Option<ObservedNode>,
    now: Timestamp,
) -> Option<End> {
    let is_lost = match pod::deletion_began(&seen.pod) {
        Some(began) => began.duration_since(lost_at(attempt, seen)?).as_secs() > CLOCK_SKEW_SECONDS,
        None => patience_left(attempt, seen, node, now)?.is_negative(),
    };
    let message = "the pod lost its sandbox before the worker started, and the kubelet created no other one";
    is_lost.then(|| End::new(Cause::NodeLost, Class::Disruption, message))
}

/// Time that the kubelet still has to create another sandbox. It counts while the node is Ready and nobody deletes the pod.
pub(crate) fn patience_left(
    attempt: &Attempt,
    seen: &ObservedPod,
    node: Option<ObservedNode>,
    now: Timestamp,
) -> Option<SignedDuration> {
    let ready_since = match node {
        _ if pod::deletion_began(&seen.pod).is_some() => return None,
        Some(node) if !node.ready => return None,
        Some(node) => node.since,
        None => Timestamp::UNIX_EPOCH,
    };
    // The first time is by the kubelet's clock. The patience is longer or shorter by what that differs.
    let since = lost_at(attempt, seen)?.max(ready_since);
    Some(PATIENCE - now.duration_since(since))
}

/// The store knows of a worker that has started, even if the watch does not show it yet.
fn lost_at(attempt: &Attempt, seen: &ObservedPod) -> Option<Timestamp> {
    pod::sandbox_lost_at(&seen.pod).filter(|_| attempt.state == AttemptState::Created)
}
