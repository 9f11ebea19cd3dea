//! Which nodes the next pod avoids, because the latest attempts failed there.
//!
//! One failure makes the pod prefer other nodes. A repeated failure on one node excludes that node for some time: a
//! broken node fails pods fast, so it always has room for the next one.

use std::collections::BTreeSet;

use dalsegno_crds::{Cause, names};
use dalsegno_model::{Attempt, RunRecord};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::json::take_list;
use crate::observed::Observed;
use crate::pod;

const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";

/// What is said of a pod that no other node could run.
pub(crate) const NO_OTHER_NODE: &str =
    "no other node than one that failed could run the pod; the next pod may use that node again";

/// Number of failures on one node in a row after which the node is excluded.
const MAX_FAILURES: usize = 2;
/// How long a node is excluded after the last failure on it.
const EXCLUDED_FOR: SignedDuration = SignedDuration::from_mins(10);

/// Adds the nodes to avoid to a pod's affinity.
///
/// A node is excluded only if another node is Ready, and if no other node failed in between: else the node is not the
/// cause. The pod says in an annotation until when, since a pod without another node would wait for ever.
pub(crate) fn apply(pod: &mut Value, row: &RunRecord, observed: &Observed) {
    let failures: Vec<&Attempt> = row
        .past
        .iter()
        .filter(|it| !has_ended_by(it, |cause| matches!(cause, Cause::NoOtherNode | Cause::NameInUse)))
        .take_while(|it| has_ended_by(it, may_be_the_nodes_fault))
        .collect();
    let nodes: BTreeSet<&str> = failures.iter().filter_map(|it| it.node.as_deref()).collect();
    if nodes.is_empty() {
        return;
    }
    // Kubernetes allows only one name in a requirement on `metadata.name`.
    let not_on = |node: &&str| json!({ "key": "metadata.name", "operator": "NotIn", "values": [node] });
    let fields: Vec<Value> = nodes.iter().map(not_on).collect();
    let affinity = &mut pod["spec"]["affinity"]["nodeAffinity"];
    let mut preferred = take_list(affinity, PREFERRED);
    preferred.push(json!({ "weight": 100, "preference": { "matchFields": fields } }));
    affinity[PREFERRED] = preferred.into();
    let is_one_node = nodes.len() == 1 && failures.len() >= MAX_FAILURES;
    let until = excluded_until(failures.first().copied()).filter(|until| *until > row.now);
    if let Some(until) = until.filter(|_| is_one_node && observed.ready_nodes > 1) {
        exclude(&mut affinity[REQUIRED], &fields);
        pod["metadata"]["annotations"][names::ANNOTATION_AVOIDS_UNTIL] = until.to_string().into();
    }
}

/// Until when this pod excludes a node, if it does and has no node yet.
pub(crate) fn pending_until(pod: &Pod) -> Option<Timestamp> {
    let until = pod::annotation(pod, names::ANNOTATION_AVOIDS_UNTIL).filter(|_| pod::node(pod).is_none());
    until?.parse().ok()
}

fn excluded_until(last: Option<&Attempt>) -> Option<Timestamp> {
    last?.ended_at?.checked_add(EXCLUDED_FOR).ok()
}

fn has_ended_by(attempt: &Attempt, is: impl Fn(Cause) -> bool) -> bool {
    attempt.end.as_ref().is_some_and(|end| is(end.cause))
}

/// The ends that a broken node may cause: it is lost, or its disk, network or device plugin does not work.
fn may_be_the_nodes_fault(cause: Cause) -> bool {
    matches!(
        cause,
        Cause::NodeLost
            | Cause::Silent
            | Cause::PodFailed
            | Cause::StartDeadline
            | Cause::VolumeUnavailable
            | Cause::ImageUnavailable
            | Cause::NodePressure
    )
}

/// Requires that no term of the node affinity matches these nodes. Terms are alternatives, so each of them gets the
/// requirement.
fn exclude(required: &mut Value, nodes: &[Value]) {
    let mut terms = take_list(required, "nodeSelectorTerms");
    if terms.is_empty() {
        terms.push(json!({}));
    }
    for term in &mut terms {
        let mut fields = take_list(term, "matchFields");
        fields.extend_from_slice(nodes);
        term["matchFields"] = fields.into();
    }
    required["nodeSelectorTerms"] = terms.into();
}
