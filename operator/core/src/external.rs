//! Runs whose agent keeps its own checkpoints (`checkpointing: External`): when the worker has ended, and when nobody can say.
//!
//! # Invariants
//!
//! - Nothing fences such a worker, so two of them must never run at once. An attempt ends only once its end is confirmed: the
//!   pod's status shows it, or the pod is gone. Silence of a node or of a worker ends nothing.
//! - The pod has a finalizer, so the API server keeps it until the operator has recorded the end. A pod that is deleted by force
//!   stays too. Its object is gone only if somebody removes the finalizer, which confirms the end by hand.
//!
//! Who writes the status: the kubelet; or the API server's pod garbage collector, once the Node is deleted or has the taint
//! `node.kubernetes.io/out-of-service`.

use dalsegno_crds::{AgentRun, Reason, unsupported_fields};
use dalsegno_model::RunRecord;
use jiff::{SignedDuration, Timestamp};

use crate::end::End;
use crate::evidence::{forgive_lost_node, vanished};
use crate::observed::{Observed, ObservedAgent, ObservedNode, ObservedPod};
use crate::pod;
use crate::pod_end::{self, disruption};
use crate::recovery::Hold;

/// The operator reports a node that is silent for longer than this, and a pod that terminates so much later than it should.
const SILENCE: SignedDuration = SignedDuration::from_secs(60);

/// The confirmed end of an attempt.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ConfirmedEnd {
    /// The worker exited with 0, and nothing had asked it to.
    Succeeded,
    /// Anything else.
    Ended(End),
}

/// The end of the current attempt, if it is confirmed. `None`: the worker runs, or may run.
pub(crate) fn confirmed_end(
    run: &RunRecord,
    seen: Option<&ObservedPod>,
    node: Option<ObservedNode>,
) -> Option<ConfirmedEnd> {
    let Some(seen) = seen else { return Some(ConfirmedEnd::Ended(vanished())) };
    if let Some(end) = pod_end::of(&run.attempt, seen) {
        return Some(match pod_end::is_exit_with_0(&end) {
            true => ConfirmedEnd::Succeeded,
            false => ConfirmedEnd::Ended(forgive_lost_node(end, pod::finished_at(&seen.pod), node)),
        });
    }
    has_ended(seen).then(|| ConfirmedEnd::Ended(disruption(seen).unwrap_or_else(vanished)))
}

/// Whether the worker of this pod has ended, or never runs.
pub(crate) fn has_ended(seen: &ObservedPod) -> bool {
    // The scheduler assigns no node to a pod that is being deleted, so such a pod never runs.
    let never_runs = seen.pod.metadata.deletion_timestamp.is_some() && pod::node(&seen.pod).is_none();
    seen.gone || never_runs || pod::worker_has_ended(&seen.pod)
}

/// How long the worker ran. The container has both times, by the clock of its node. If it has no end, the worker ran at least
/// until its node fell silent.
pub(crate) fn worker_ran(seen: &ObservedPod, node: Option<ObservedNode>) -> Option<SignedDuration> {
    let silent_since = node.filter(|it| !it.ready).map(|it| it.since);
    let until = pod::finished_at(&seen.pod).or(silent_since)?;
    Some(until.duration_since(pod::started_at(&seen.pod)?).max(SignedDuration::ZERO))
}

/// Whether nobody confirms the end of the attempt, and a person should know.
pub(crate) enum Silence {
    /// The kubelet reports.
    None,
    /// It does not, for less than [`SILENCE`]. Holds the rest.
    Short(SignedDuration),
    /// A person must look. Holds why.
    Long(Hold),
}

/// Looks for a kubelet that does not report: its node is not Ready, or the pod should have ended.
pub(crate) fn silence(seen: &ObservedPod, node: Option<ObservedNode>, now: Timestamp) -> Silence {
    let name = seen.name();
    let on = pod::node(&seen.pod).unwrap_or("none");
    let node = node.filter(|it| !it.ready).map(|it| {
        let why = format!("the node {on} has not been Ready since {}", seconds(it.since));
        (it.since, format!("{why}, and nobody can say whether the worker in the pod {name} has ended"))
    });
    // The API server stores the time at which the pod should be gone.
    let late = seen.pod.metadata.deletion_timestamp.as_ref().map(|it| {
        let why = format!("the pod {name} should have ended by {}", seconds(it.0));
        (it.0, format!("{why}, and the kubelet of the node {on} does not confirm that it has"))
    });
    let left = |since: Timestamp| SILENCE - now.duration_since(since);
    let longest = [node, late].into_iter().flatten().min_by_key(|(since, _)| *since);
    match longest.map(|(since, why)| (left(since), why)) {
        None => Silence::None,
        Some((left, _)) if left.is_positive() => Silence::Short(left),
        Some((_, why)) => Silence::Long(Hold::new(Reason::EndNotConfirmed, why)),
    }
}

fn seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

/// The hold of a run that sets what its agent does not support, or whose definition has another `checkpointing` than the run
/// began with. `row`: `None` if the run is not in the store yet.
pub(crate) fn unsupported(run: &AgentRun, observed: &Observed, row: Option<&RunRecord>) -> Option<Hold> {
    let ObservedAgent::Found { agent, defaults } = &observed.agent else { return None };
    let is_external = agent.is_external();
    if let Some(row) = row.filter(|row| row.is_external != is_external) {
        let word = |is_external: bool| if is_external { "External" } else { "Gateway" };
        let (began, now) = (word(row.is_external), word(is_external));
        let message =
            format!("the run began with checkpointing: {began}, and its agent now has checkpointing: {now}");
        return Some(Hold::new(Reason::NotSupported, message));
    }
    let fields = if is_external { unsupported_fields(&run.spec, defaults) } else { Vec::new() };
    let message = format!("checkpointing: External does not support {}", fields.join(", "));
    (!fields.is_empty()).then(|| Hold::new(Reason::NotSupported, message))
}
