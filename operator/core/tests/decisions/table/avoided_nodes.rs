//! The nodes that the next pod prefers to avoid or excludes.

use dalsegno_core::Effect;
use dalsegno_crds::{Cause, Reason, Summary};
use dalsegno_model::Class;
use serde_json::{Value, json};

use crate::fixtures::{
    Case, Given, PastAttempt, ago, case, check_all, crashed, disrupted, expect_end, expect_status, neutral,
    pod, run,
};

/// The pod that the decision creates.
fn created(given: &Given) -> Value {
    let effect = given.decide().effects.remove(0);
    let Effect::CreateWorker { pod, .. } = effect else { panic!("no pod is created: {effect:?}") };
    json!(pod)
}

fn nodes(fields: &Value) -> Vec<String> {
    let fields = fields.as_array().cloned().unwrap_or_default();
    fields.iter().map(|it| it["values"][0].as_str().unwrap().to_owned()).collect()
}

fn avoided(given: &Given) -> Vec<String> {
    let affinity = &created(given)["spec"]["affinity"]["nodeAffinity"];
    nodes(&affinity["preferredDuringSchedulingIgnoredDuringExecution"][0]["preference"]["matchFields"])
}

/// The nodes that each term of the required node affinity excludes.
fn excluded(given: &Given) -> Vec<Vec<String>> {
    let affinity = &created(given)["spec"]["affinity"]["nodeAffinity"];
    let terms = &affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
    terms.as_array().into_iter().flatten().map(|term| nodes(&term["matchFields"])).collect()
}

fn lost(number: i32, node: &str) -> PastAttempt {
    disrupted(number, Cause::NodeLost).on(node).ago(900)
}

#[test]
fn only_the_nodes_that_were_just_lost_are_avoided() {
    assert_eq!(avoided(&run().reserved(3).after(lost(2, "n2")).after(lost(1, "n1"))), ["n1", "n2"]);
    assert_eq!(avoided(&run().reserved(3).after(lost(2, "n1")).after(lost(1, "n1"))), ["n1"]);
    let missed_heartbeat = crashed(2, Cause::Silent).on("n4").ago(900);
    assert_eq!(avoided(&run().reserved(3).after(missed_heartbeat)), ["n4"]);
    let evicted = disrupted(2, Cause::Evicted).on("n3").ago(900);
    assert!(
        avoided(&run().reserved(3).after(evicted).after(lost(1, "n1"))).is_empty(),
        "an eviction happened since the node was lost"
    );
}

/// Two attempts failed on the node `n1`, the last one this many seconds ago.
fn failed_twice(cause: Cause, seconds_ago: i64) -> Given {
    run()
        .reserved(3)
        .after(disrupted(2, cause).on("n1").ago(seconds_ago))
        .after(disrupted(1, cause).on("n1").ago(seconds_ago + 60))
}

#[test]
fn a_node_whose_fault_it_may_be_is_avoided_after_one_failure_and_excluded_after_two_in_a_row() {
    for cause in [
        Cause::NodeLost,
        Cause::Silent,
        Cause::PodFailed,
        Cause::StartDeadline,
        Cause::ImageUnavailable,
        Cause::NodePressure,
    ] {
        let once = run().reserved(2).after(neutral(1, cause).on("n1").ago(400));
        assert_eq!((avoided(&once), excluded(&once)), (vec!["n1".to_owned()], vec![]), "{cause}");
        let twice = failed_twice(cause, 400);
        assert_eq!(excluded(&twice), [["n1"]], "{cause}");
    }
    let evicted = failed_twice(Cause::Evicted, 400);
    assert_eq!(
        (avoided(&evicted), excluded(&evicted)),
        (vec![], vec![]),
        "an eviction is not the node's fault"
    );
}

#[test]
fn a_node_is_excluded_only_for_a_while_and_only_if_it_seems_to_be_the_cause() {
    let none: Vec<Vec<String>> = Vec::new();
    assert_eq!(excluded(&failed_twice(Cause::PodFailed, 600)), none, "ten minutes are over");
    let mut only_node = failed_twice(Cause::PodFailed, 400);
    only_node.seen.ready_nodes = 1;
    assert_eq!(excluded(&only_node), none, "there is no other node");
    let elsewhere = failed_twice(Cause::PodFailed, 400).after(lost(1, "n2"));
    assert_eq!(excluded(&elsewhere), none, "attempts failed on another node too");
}

#[test]
fn every_alternative_of_the_templates_own_node_affinity_excludes_the_node() {
    let own = |key: &str| json!({ "matchExpressions": [{ "key": key, "operator": "Exists" }] });
    let affinity = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [own("gpu"), own("tpu")] } } });
    let given = failed_twice(Cause::PodFailed, 400).agent(json!({
        "spec": { "affinity": affinity, "containers": [{ "name": "agent", "image": "x" }] },
    }));
    assert_eq!(excluded(&given), [["n1"], ["n1"]]);
}

#[test]
fn a_pod_that_excludes_a_node_waits_for_another_node_only_until_the_exclusion_ends() {
    check_all(cases());
    let json = created(&failed_twice(Cause::PodFailed, 400));
    let until = json["metadata"]["annotations"]["dalsegno.dev/avoids-until"].as_str();
    assert_eq!(until, Some(ago(-200).to_string().as_str()));
}

pub fn cases() -> Vec<Case> {
    let waiting = |until: i64| {
        let mut seen = pod(3).unscheduled("0/2 nodes are available");
        let annotations = seen.0.pod.metadata.annotations.get_or_insert_default();
        annotations.insert("dalsegno.dev/avoids-until".to_owned(), ago(until).to_string());
        run().created(3).no_node_yet().pod(seen)
    };
    vec![
        case(
            "before that time it waits",
            waiting(-60),
            expect_status(Summary::Pending, Reason::Unschedulable).requeue_after(60),
        ),
        case("at that time the attempt ends", waiting(0), expect_end(3, Cause::NoOtherNode, Class::Neutral)),
        case(
            "such an end does not interrupt a row of attempts that did not attach",
            run()
                .reserved(5)
                .after(neutral(4, Cause::NoOtherNode).ago(5))
                .after(neutral(3, Cause::StartDeadline).ago(700))
                .after(neutral(2, Cause::StartDeadline).ago(800))
                .after(neutral(1, Cause::StartDeadline).ago(900)),
            expect_status(Summary::Held, Reason::CannotStart),
        ),
    ]
}
