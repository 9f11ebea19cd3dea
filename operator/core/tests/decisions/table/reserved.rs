//! An attempt with a number and no recorded pod.

use dalsegno_crds::ConditionType::{Reconciling, WorkerReady};
use dalsegno_crds::{Cause, Reason, Summary};
use dalsegno_store::Class;
use serde_json::json;

use crate::fixtures::{
    Case, Given, case, check_all, crashed, disrupted, expect_effect, expect_end, expect_status,
    image_by_digest, pod, run,
};

pub fn cases() -> Vec<Case> {
    [pods_that_are_there(), refusals(), templates()].into_iter().flatten().collect()
}

#[test]
fn an_attempt_gets_one_pod_and_whatever_was_made_is_recorded_first() {
    check_all(cases());
}

fn pods_that_are_there() -> Vec<Case> {
    let recorded = || expect_effect("record pod pod-3 of attempt 3");
    let reserved = || run().reserved(3).head(7);
    vec![
        case("a pod that runs is recorded", reserved().pod(pod(3)), recorded()),
        case("a pod that is being deleted is recorded", reserved().pod(pod(3).deleted(1)), recorded()),
        case("a pod that has ended is recorded, and judged then", reserved().pod(pod(3).oom()), recorded()),
        case(
            "a pod that is gone already is recorded: it was a life",
            reserved().pod(pod(3).gone()),
            recorded(),
        ),
        case("even though the run would be held", reserved().crashes(3, 3).pod(pod(3)), recorded()),
        case(
            "even though its time has not come",
            reserved().after(crashed(2, Cause::OOMKilled).ago(0)).pod(pod(3)),
            recorded(),
        ),
        case(
            "with its verdict, where its image is named by digest",
            reserved().pod(pod(3).named_by_digest('a')),
            expect_effect("record pod pod-3 of attempt 3, Accepted"),
        ),
        case(
            "a verdict against it is recorded too",
            reserved().pod(pod(3).named_by_digest('b')),
            expect_effect("record pod pod-3 of attempt 3, Refused"),
        ),
        case(
            "an earlier attempt's pod is not taken for it",
            reserved().pod(pod(2).oom()),
            expect_effect("create triage-3"),
        ),
        case(
            "a look-alike of another owner is not recorded, though it has the name and the labels",
            reserved().pod(pod(3).of_other_owner()),
            expect_effect("create triage-3"),
        ),
        case(
            "a pod of another namespace is not recorded, though it names the run as its owner",
            reserved().pod(pod(3).of_another_namespace()),
            expect_effect("create triage-3"),
        ),
        case(
            "a name that is taken takes the next number, uncharged",
            reserved().name_taken(),
            expect_end(3, Cause::NameTaken, Class::Neutral)
                .message_contains("a pod of another owner has the name triage-3"),
        ),
    ]
}

fn refusals() -> Vec<Case> {
    let quota = "pods \"triage-1\" is forbidden: exceeded quota: none, requested: pods=1, used: pods=0";
    let terminating = "unable to create new content in namespace prod because it is being terminated";
    let pausing = |times: u32| run().pod_rejected(403, quota, times, 0);
    let pending = |reason: Reason| expect_status(Summary::Pending, reason);
    vec![
        case(
            "a pod over quota is tried again, and no attempt is spent on it",
            pausing(1),
            pending(Reason::QuotaExceeded)
                .requeue_after(2)
                .condition(WorkerReady, "False", Reason::QuotaExceeded)
                .condition(Reconciling, "True", Reason::QuotaExceeded)
                .message_contains(quota),
        ),
        case("the pause doubles", pausing(3), pending(Reason::QuotaExceeded).requeue_after(8)),
        case("up to a minute", pausing(40), pending(Reason::QuotaExceeded).requeue_after(60)),
        case(
            "what has passed of it counts",
            run().pod_rejected(403, quota, 3, 5),
            pending(Reason::QuotaExceeded).requeue_after(3),
        ),
        case(
            "then it is tried again",
            run().pod_rejected(403, quota, 3, 8),
            expect_effect("create triage-1"),
        ),
        case(
            "a template that the API server finds invalid is told",
            run().pod_rejected(422, "spec.containers[0].image: Required value", 1, 0),
            expect_status(Summary::Held, Reason::TemplateInvalid)
                .requeue_after(2)
                .message_contains("image: Required value. Correct the template"),
        ),
        case(
            "one that was changed since is tried at once",
            run().pod_rejected(422, "invalid", 9, 0).image(&image_by_digest('b')),
            expect_effect("create triage-1"),
        ),
        case(
            "a namespace that is being deleted",
            run().pod_rejected(403, terminating, 1, 0),
            pending(Reason::NamespaceTerminating),
        ),
        case(
            "a policy that refuses the pod",
            run().pod_rejected(403, "violates PodSecurity \"restricted\"", 1, 0),
            pending(Reason::PodRefused).requeue_after(2).message_contains("PodSecurity"),
        ),
        case(
            "a ServiceAccount that is missing",
            run().pod_rejected(404, "serviceaccount not found", 1, 0),
            pending(Reason::PodRefused),
        ),
        case(
            "an API server that fails at it, as by a webhook that is broken",
            run().pod_rejected(500, "failed calling webhook \"pods.example.com\"", 1, 0),
            pending(Reason::PodRefused).requeue_after(2).message_contains("failed calling webhook"),
        ),
        case(
            "a run that was under way is told why it recovers",
            {
                let attached = run().attached(1).pod(pod(1)).status_written();
                let past = disrupted(1, Cause::Evicted).attached(50);
                Given { seen: run().seen, ..attached }.reserved(2).after(past).pod_rejected(403, quota, 1, 0)
            },
            pending(Reason::QuotaExceeded).condition(
                dalsegno_crds::ConditionType::Ready,
                "True",
                Reason::Disrupted,
            ),
        ),
    ]
}

fn templates() -> Vec<Case> {
    let two =
        json!({ "spec": { "containers": [{ "name": "a", "image": "x" }, { "name": "b", "image": "y" }] } });
    vec![
        case(
            "a template that is none is told",
            run().agent(json!({ "spec": { "containers": [{ "name": "agent", "image": 7 }] } })),
            expect_status(Summary::Held, Reason::TemplateInvalid)
                .message_contains("the template is not a valid pod template"),
        ),
        case(
            "a template without a worker is told",
            run().agent(two),
            expect_status(Summary::Held, Reason::TemplateInvalid)
                .message_contains("none of the template's containers is named agent"),
        ),
        case(
            "a definition that is missing is told",
            run().no_definition(),
            expect_status(Summary::Held, Reason::AgentNotFound).requeue_after(60),
        ),
    ]
}
