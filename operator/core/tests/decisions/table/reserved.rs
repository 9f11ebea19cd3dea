//! An attempt with a number and no recorded pod.

use dalsegno_crds::ConditionType::{Reconciling, WorkerReady};
use dalsegno_crds::{Cause, Reason, Summary};
use dalsegno_model::Class;
use serde_json::json;

use crate::words::{Case, Given, acts, by_digest, case, crashed, disrupted, ends, pod, rests, run, try_all};

pub fn cases() -> Vec<Case> {
    [pods_that_are_there(), refusals(), templates()].into_iter().flatten().collect()
}

#[test]
fn an_attempt_gets_one_pod_and_whatever_was_made_is_recorded_first() {
    try_all(cases());
}

fn pods_that_are_there() -> Vec<Case> {
    let recorded = || acts("record pod pod-3 of attempt 3");
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
            reserved().pod(pod(3).named_by('a')),
            acts("record pod pod-3 of attempt 3, Accepted"),
        ),
        case(
            "a verdict against it is recorded too",
            reserved().pod(pod(3).named_by('b')),
            acts("record pod pod-3 of attempt 3, Refused"),
        ),
        case(
            "an earlier attempt's pod is not taken for it",
            reserved().pod(pod(2).oom()),
            acts("create triage-3"),
        ),
        case(
            "a look-alike of another owner is not recorded, though it has the name and the labels",
            reserved().pod(pod(3).of_somebody_else()),
            acts("create triage-3"),
        ),
        case(
            "a pod of another namespace is not recorded, though it names the run as its owner",
            reserved().pod(pod(3).of_another_namespace()),
            acts("create triage-3"),
        ),
        case(
            "a name that is taken takes the next number, uncharged",
            reserved().name_taken(),
            ends(3, Cause::NameTaken, Class::Neutral)
                .says("a pod named triage-3 is there that is not this run's"),
        ),
    ]
}

fn refusals() -> Vec<Case> {
    let quota = "pods \"triage-1\" is forbidden: exceeded quota: none, requested: pods=1, used: pods=0";
    let terminating = "unable to create new content in namespace prod because it is being terminated";
    let pausing = |times: u32| run().refused(403, quota, times, 0);
    let pending = |reason: Reason| rests(Summary::Pending, reason);
    vec![
        case(
            "a pod over quota is tried again, and no attempt is spent on it",
            pausing(1),
            pending(Reason::QuotaExceeded)
                .again(2)
                .is(WorkerReady, "False", Reason::QuotaExceeded)
                .is(Reconciling, "True", Reason::QuotaExceeded)
                .says(quota),
        ),
        case("the pause doubles", pausing(3), pending(Reason::QuotaExceeded).again(8)),
        case("up to a minute", pausing(40), pending(Reason::QuotaExceeded).again(60)),
        case(
            "what has passed of it counts",
            run().refused(403, quota, 3, 5),
            pending(Reason::QuotaExceeded).again(3),
        ),
        case("then it is tried again", run().refused(403, quota, 3, 8), acts("create triage-1")),
        case(
            "a template that the API server finds invalid is told",
            run().refused(422, "spec.containers[0].image: Required value", 1, 0),
            rests(Summary::Held, Reason::TemplateInvalid)
                .again(2)
                .says("image: Required value. Correct the template"),
        ),
        case(
            "one that was changed since is tried at once",
            run().refused(422, "invalid", 9, 0).image(&by_digest('b')),
            acts("create triage-1"),
        ),
        case(
            "a namespace that is being deleted",
            run().refused(403, terminating, 1, 0),
            pending(Reason::NamespaceTerminating),
        ),
        case(
            "a policy that refuses the pod",
            run().refused(403, "violates PodSecurity \"restricted\"", 1, 0),
            pending(Reason::PodRefused).again(2).says("PodSecurity"),
        ),
        case(
            "a ServiceAccount that is missing",
            run().refused(404, "serviceaccount not found", 1, 0),
            pending(Reason::PodRefused),
        ),
        case(
            "an API server that fails at it, as by a webhook that is broken",
            run().refused(500, "failed calling webhook \"pods.example.com\"", 1, 0),
            pending(Reason::PodRefused).again(2).says("failed calling webhook"),
        ),
        case(
            "a run that was under way is told why it recovers",
            {
                let attached = run().attached(1).pod(pod(1)).written();
                let past = disrupted(1, Cause::Evicted).attached(50);
                Given { seen: run().seen, ..attached }.reserved(2).after(past).refused(403, quota, 1, 0)
            },
            pending(Reason::QuotaExceeded).is(dalsegno_crds::ConditionType::Ready, "True", Reason::Disrupted),
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
            rests(Summary::Held, Reason::TemplateInvalid).says("the template is no pod template"),
        ),
        case(
            "a template without a worker is told",
            run().agent(two),
            rests(Summary::Held, Reason::TemplateInvalid)
                .says("none of the template's containers is named agent"),
        ),
        case(
            "a definition that is missing is told",
            run().no_definition(),
            rests(Summary::Held, Reason::AgentNotFound).again(60),
        ),
    ]
}
