//! A reserved attempt: it has a number and no recorded pod.

use dalsegno_core::{NameHolder, PodCreateError};
use dalsegno_crds::ConditionType::{Reconciling, WorkerReady};
use dalsegno_crds::{Cause, Reason, Summary};
use dalsegno_model::Class;
use serde_json::json;

use crate::fixtures::{
    Case, Expect, Given, ago, case, check_all, crashed, disrupted, expect_effect, expect_end, expect_status,
    image_by_digest, pod, run,
};

pub fn cases() -> Vec<Case> {
    [existing_pods(), create_errors(), rejections(), templates()].into_iter().flatten().collect()
}

#[test]
fn an_attempt_gets_one_pod_and_an_existing_pod_is_recorded_first() {
    check_all(cases());
}

fn existing_pods() -> Vec<Case> {
    let recorded = || expect_effect("record pod pod-3 of attempt 3");
    let reserved = || run().reserved(3).head(7);
    vec![
        case("a running pod is recorded", reserved().pod(pod(3)), recorded()),
        case("a pod that is being deleted is recorded", reserved().pod(pod(3).deleted(1)), recorded()),
        case("an ended pod is recorded before its end is judged", reserved().pod(pod(3).oom()), recorded()),
        case(
            "a pod that is gone is recorded, because it was an attempt",
            reserved().pod(pod(3).gone()),
            recorded(),
        ),
        case("a pod of a run at its limit is recorded", reserved().crashes(3, 3).pod(pod(3)), recorded()),
        case(
            "a pod is recorded during the backoff",
            reserved().after(crashed(2, Cause::OOMKilled).ago(0)).pod(pod(3)),
            recorded(),
        ),
        case(
            "a pod whose image is named by digest is recorded with the verdict",
            reserved().pod(pod(3).named_by_digest('a')),
            expect_effect("record pod pod-3 of attempt 3, Accepted"),
        ),
        case(
            "a refusal of the version is recorded with the pod",
            reserved().pod(pod(3).named_by_digest('b')),
            expect_effect("record pod pod-3 of attempt 3, Refused"),
        ),
        case(
            "a pod of an earlier attempt is not recorded",
            reserved().pod(pod(2).oom()),
            expect_effect("create triage-3"),
        ),
        case(
            "a pod of another owner with the same name and labels is not recorded",
            reserved().pod(pod(3).of_other_owner()),
            expect_effect("create triage-3"),
        ),
        case(
            "a pod of another namespace with an owner reference to the run is not recorded",
            reserved().pod(pod(3).of_another_namespace()),
            expect_effect("create triage-3"),
        ),
        case(
            "a pod with the nonce of the attempt is recorded",
            reserved().nonce("n-3").pod(pod(3).nonce("n-3")),
            recorded(),
        ),
        case(
            "a pod with another nonce is not recorded, although it names the run as its owner",
            reserved().nonce("n-3").pod(pod(3).nonce("n-4")),
            expect_effect("create triage-3"),
        ),
        case(
            "a pod without a nonce is not recorded",
            reserved().nonce("n-3").pod(pod(3)),
            expect_effect("create triage-3"),
        ),
        case(
            "before the nonce is drawn, no pod can be the attempt's",
            reserved().nonce("").pod(pod(3).nonce("")),
            expect_effect("create triage-3"),
        ),
        case(
            "if the name is taken, the next number is used without a charge",
            reserved().name_taken(NameHolder::AnotherOwner),
            expect_end(3, Cause::NameTaken, Class::Neutral)
                .message_contains("a pod of another owner has the name triage-3"),
        ),
        case(
            "if a deleted run of the same name still has the name, the next number is used",
            reserved().name_taken(NameHolder::DeletedRun),
            expect_end(3, Cause::NameInUse, Class::Neutral)
                .message_contains("a pod of a deleted run of this name has the name triage-3"),
        ),
    ]
}

/// The API server's message for a pod over quota.
const QUOTA: &str = "pods \"triage-1\" is forbidden: exceeded quota: none, requested: pods=1, used: pods=0";

fn pending(reason: Reason) -> Expect {
    expect_status(Summary::Pending, reason)
}

fn create_errors() -> Vec<Case> {
    let over_quota = |times: u32| run().pod_rejected(403, QUOTA, times, 0);
    vec![
        case(
            "a pod over quota is tried again with the same attempt",
            over_quota(1),
            pending(Reason::QuotaExceeded)
                .requeue_after(2)
                .condition(WorkerReady, "False", Reason::QuotaExceeded)
                .condition(Reconciling, "True", Reason::QuotaExceeded)
                .message_contains(QUOTA),
        ),
        case("the delay doubles", over_quota(3), pending(Reason::QuotaExceeded).requeue_after(8)),
        case(
            "the longest delay of a refusal is 15 minutes",
            over_quota(40),
            pending(Reason::QuotaExceeded).requeue_after(900),
        ),
        case(
            "the time since the error counts",
            run().pod_rejected(403, QUOTA, 3, 5),
            pending(Reason::QuotaExceeded).requeue_after(3),
        ),
        case(
            "after the delay the pod is created",
            run().pod_rejected(403, QUOTA, 3, 8),
            expect_effect("create triage-1"),
        ),
        case(
            "a template that the API server rejects as invalid holds the run",
            run().pod_rejected(422, "spec.containers[0].image: Required value", 1, 0),
            expect_status(Summary::Held, Reason::TemplateInvalid)
                .requeue_after(2)
                .message_contains("image: Required value. Correct the template"),
        ),
        case(
            "a changed template is tried at once",
            run().pod_rejected(422, "invalid", 9, 0).image(&image_by_digest('b')),
            expect_effect("create triage-1"),
        ),
    ]
}

fn rejections() -> Vec<Case> {
    let terminating = "unable to create new content in namespace prod because it is being terminated";
    vec![
        case(
            "a namespace that is being deleted",
            run().pod_rejected(403, terminating, 1, 0),
            pending(Reason::NamespaceTerminating),
        ),
        case(
            "a policy that rejects the pod",
            run().pod_rejected(403, "violates PodSecurity \"restricted\"", 1, 0),
            pending(Reason::PodRefused).requeue_after(2).message_contains("PodSecurity"),
        ),
        case(
            "the eighth identical refusal holds the run, and it is still tried again",
            run().pod_rejected(403, "violates PodSecurity \"restricted\"", 8, 0),
            expect_status(Summary::Held, Reason::PodRefused)
                .requeue_after(256)
                .message_contains("PodSecurity \"restricted\". The next try is at"),
        ),
        case(
            "a failing webhook holds the run too",
            run().pod_rejected(500, "failed calling webhook", 8, 0),
            expect_status(Summary::Held, Reason::PodRefused).requeue_after(256),
        ),
        case(
            "an overloaded API server holds no run, and is tried again within a minute",
            run().pod_rejected(429, "too many requests", 40, 0),
            pending(Reason::PodRefused).requeue_after(60),
        ),
        case(
            "a hold for refusals is not forgotten by a new operator",
            run().pod_rejected(403, "violates PodSecurity", 8, 0).status_written().pod_rejected(
                403,
                "violates PodSecurity",
                1,
                0,
            ),
            expect_status(Summary::Held, Reason::PodRefused).requeue_after(2),
        ),
        case(
            "the hold lifts itself when the pod is created",
            run().pod_rejected(403, "violates PodSecurity", 8, 0).status_written().created(1).pod(pod(1)),
            expect_status(Summary::Starting, Reason::Starting),
        ),
        case(
            "a missing ServiceAccount",
            run().pod_rejected(404, "serviceaccount not found", 1, 0),
            pending(Reason::PodRefused),
        ),
        case(
            "a failing webhook",
            run().pod_rejected(500, "failed calling webhook \"pods.example.com\"", 1, 0),
            pending(Reason::PodRefused).requeue_after(2).message_contains("failed calling webhook"),
        ),
        case(
            "the condition Ready of a recovering run keeps the cause of its recovery",
            {
                let attached = run().attached(1).pod(pod(1)).status_written();
                let past = disrupted(1, Cause::Evicted).attached(50);
                Given { seen: run().seen, ..attached }.reserved(2).after(past).pod_rejected(403, QUOTA, 1, 0)
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
            "an invalid template holds the run",
            run().agent(json!({ "spec": { "containers": [{ "name": "agent", "image": 7 }] } })),
            expect_status(Summary::Held, Reason::TemplateInvalid)
                .message_contains("the template is not a valid pod template"),
        ),
        case(
            "a template without a worker holds the run",
            run().agent(two),
            expect_status(Summary::Held, Reason::TemplateInvalid)
                .message_contains("none of the template's containers is named agent"),
        ),
        case(
            "a missing definition holds the run",
            run().no_definition(),
            expect_status(Summary::Held, Reason::AgentNotFound).requeue_after(60),
        ),
    ]
}

#[test]
fn refusals_are_identical_if_only_their_numbers_differ() {
    let error = |code: u16, message: &str, revision: &str| {
        PodCreateError::first(code, message, revision.to_owned(), ago(0))
    };
    let first = error(500, "dial 10.0.0.1:443: refused", "a");
    let second = error(500, "dial 10.0.0.27:443: refused", "a").after(Some(&first));
    assert_eq!((second.times, second.identical), (2, 2));
    let other = error(500, "dial 10.0.0.27:443: timeout", "a").after(Some(&second));
    assert_eq!((other.times, other.identical), (3, 1), "another message");
    let other = error(403, "dial 10.0.0.27:443: refused", "a").after(Some(&second));
    assert_eq!((other.times, other.identical), (3, 1), "another code");
    let other = error(500, "dial 10.0.0.1:443: refused", "b").after(Some(&second));
    assert_eq!((other.times, other.identical), (1, 1), "another template");
}
