//! A pod that never starts, because it has lost its sandbox.
//!
//! A node that loses its power may lose it between the creation and the start of a container. So may a container runtime
//! that does not answer in time. For a pod with `restartPolicy: Never` that has had a container, the kubelet creates no
//! second sandbox. Such a pod stays `Pending` for ever (<https://github.com/kubernetes/kubernetes/issues/118321>).

use dalsegno_crds::Cause;
use dalsegno_model::Class;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;

use crate::end::End;
use crate::pod;

/// A kubelet that does create a second sandbox has done so by then.
const PATIENCE: SignedDuration = SignedDuration::from_secs(30);

/// The end of an attempt whose pod lost its sandbox, if the kubelet has had the time to create another one, or the pod was
/// deleted after that.
pub(crate) fn end_of(pod: &Pod, now: Timestamp) -> Option<End> {
    let message = "the pod lost its sandbox before the worker started, and the kubelet creates no other one";
    let since = pod::without_sandbox_since(pod)?;
    let is_lost = match pod::deletion_began(pod) {
        Some(began) => since < began,
        None => patience_left(pod, now).is_some_and(|left| left.is_negative()),
    };
    is_lost.then(|| End::new(Cause::NodeLost, Class::Disruption, message))
}

/// Time that the kubelet has to create another sandbox. `None`: the pod has one, or its worker has started.
pub(crate) fn patience_left(pod: &Pod, now: Timestamp) -> Option<SignedDuration> {
    // The kubelet's clock gives the one time, and the operator's the other.
    pod::without_sandbox_since(pod).map(|since| PATIENCE - now.duration_since(since))
}
