//! Cancelled runs.

use dalsegno_crds::ConditionType::{Finished, Ready, Succeeded};
use dalsegno_crds::{Cause, Reason, Summary};
use dalsegno_model::RunOutcome;
use serde_json::json;

use crate::fixtures::{
    Case, Expect, case, check_all, crashed, expect_effect, expect_finish, expect_status, pod, run,
};

pub fn cases() -> Vec<Case> {
    [before_any_worker(), with_a_worker(), ends()].into_iter().flatten().collect()
}

#[test]
fn a_cancelled_run_ends_in_every_stage() {
    check_all(cases());
}

fn end(attempt: i32) -> Expect {
    expect_finish(attempt, Cause::Cancelled, RunOutcome::Cancelled, Reason::Cancelled)
}

fn before_any_worker() -> Vec<Case> {
    let reserved = || run().cancelled().cancel(1, None);
    vec![
        case("the cancel is recorded in the store first", run().cancelled(), expect_effect("request cancel")),
        case(
            "the cancel is recorded even if the worker has just ended",
            run().attached(3).pod(pod(3).oom()).cancelled(),
            expect_effect("request cancel"),
        ),
        case(
            "an attempt without a pod is ended",
            reserved(),
            end(1).message_contains("before it had a worker"),
        ),
        case(
            "an attempt that is backing off is ended",
            reserved().reserved(4).crashes(2, 2).after(crashed(3, Cause::OOMKilled).ago(0)),
            end(4),
        ),
        case("an attempt of a held run is ended", reserved().reserved(4).crashes(3, 3), end(4)),
        case("an attempt without a definition is ended", reserved().no_definition(), end(1)),
        case(
            "an attempt whose pod the API server rejects is ended",
            reserved().pod_rejected(403, "exceeded quota", 1, 0),
            end(1),
        ),
        case(
            "an existing pod that is not recorded is recorded first",
            reserved().pod(pod(1)),
            expect_effect("record pod pod-1 of attempt 1"),
        ),
        case(
            "an attempt whose worker has not attached is ended",
            run().created(3).pod(pod(3)).cancelled().cancel(1, None),
            end(3).message_contains("before its worker attached"),
        ),
    ]
}

fn with_a_worker() -> Vec<Case> {
    let cancelled = |requested: i64, learned: Option<i64>| {
        run().attached(3).head(7).heartbeat(2).pod(pod(3)).cancelled().cancel(requested, learned)
    };
    let waits =
        || expect_status(Summary::Running, Reason::Cancelling).condition(Ready, "True", Reason::Cancelling);
    vec![
        case("a worker that learned of the cancel has 30 s", cancelled(60, Some(30)), waits()),
        case(
            "after 30 s it is fenced",
            cancelled(60, Some(31)),
            end(3).message_contains("its worker did not acknowledge the cancel"),
        ),
        case("a worker that has not learned of the cancel has 90 s", cancelled(90, None), waits()),
        case("after 90 s it is fenced", cancelled(91, None), end(3)),
        case(
            "the time starts again after an outage of the gateways",
            cancelled(600, Some(600)).gateway_outage(600, 30),
            waits(),
        ),
        case(
            "a worker that crashes after the cancel is not charged",
            run().attached(3).head(7).pod(pod(3).terminated(1)).cancelled().cancel(5, None),
            end(3).message_contains("and its worker ended: ExitedWithError: exit code 1"),
        ),
        case(
            "a long termination message does not make the run's end too long for the status",
            run()
                .attached(3)
                .head(7)
                .pod(pod(3).terminated(1).message(&long_termination_message()))
                .cancelled()
                .cancel(5, None),
            end(3),
        ),
        case(
            "the operator does not wait for a worker whose pod is gone",
            run().attached(3).head(7).cancelled().cancel(5, None),
            end(3).message_contains("PodVanished"),
        ),
    ]
}

/// A termination message of about the size that the kubelet allows.
fn long_termination_message() -> String {
    let message = "é\0".repeat(400);
    json!({ "dalsegno": 1, "class": "crash", "message": message }).to_string()
}

fn ends() -> Vec<Case> {
    vec![
        case(
            "a finish that was committed before the cancel is kept",
            run().attached(3).head(7).pod(pod(3)).cancelled().finished(RunOutcome::Succeeded, 5),
            expect_status(Summary::Succeeded, Reason::Completed).condition(
                Succeeded,
                "True",
                Reason::Completed,
            ),
        ),
        case(
            "a cancelled run is Ready",
            run().attached(3).cancelled().ended_by_operator(RunOutcome::Cancelled, 5),
            expect_status(Summary::Cancelled, Reason::Cancelled)
                .condition(Finished, "True", Reason::Cancelled)
                .condition(Succeeded, "False", Reason::Cancelled)
                .condition(Ready, "True", Reason::Cancelled),
        ),
        case(
            "a worker that did not acknowledge the cancel is deleted at once",
            run().attached(3).pod(pod(3)).cancelled().ended_by_operator(RunOutcome::Cancelled, 1),
            expect_status(Summary::Cancelled, Reason::Cancelled).deletes_pod("triage-3"),
        ),
        case(
            "a worker that acknowledged the cancel has time to exit",
            run().attached(3).pod(pod(3)).cancelled().acknowledged(10),
            expect_status(Summary::Cancelled, Reason::Cancelled).requeue_after(20),
        ),
        case(
            "after 30 s it is deleted",
            run().attached(3).pod(pod(3)).cancelled().acknowledged(30),
            expect_status(Summary::Cancelled, Reason::Cancelled).deletes_pod("triage-3"),
        ),
    ]
}
