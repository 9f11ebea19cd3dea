//! Ended runs, retention, and orphaned pods.

use dalsegno_core::Rule;
use dalsegno_crds::ConditionType::{Finished, Held, Ready, Stalled, Succeeded};
use dalsegno_crds::{Reason, Summary};
use dalsegno_model::RunOutcome::{Failed, Succeeded as Done};
use serde_json::json;
use uuid::Uuid;

use crate::fixtures::{Case, Expect, Given, case, check_all, expect_effect, expect_status, pod, run};

#[test]
fn ended_runs_and_orphaned_pods_are_cleaned_up() {
    check_all(ends());
    check_all(the_last_worker());
    check_all(kept_pods());
    check_all(times_to_live());
    check_all(retention());
    check_all(orphaned_pods());
}

fn succeeded() -> Expect {
    expect_status(Summary::Succeeded, Reason::Completed)
}

fn running() -> Expect {
    expect_status(Summary::Running, Reason::UnderControl)
}

fn ends() -> Vec<Case> {
    let attached = || run().attached(3).head(7);
    vec![
        case(
            "a run whose agent reached its goal",
            attached().finished(Done, 60),
            succeeded()
                .condition(Finished, "True", Reason::Completed)
                .condition(Succeeded, "True", Reason::Completed)
                .condition(Ready, "True", Reason::Succeeded)
                .condition(Held, "False", Reason::NotHeld)
                .no_condition(Stalled)
                .events(&[&Reason::Completed]),
        ),
        case(
            "a run whose agent did not reach its goal",
            attached().finished(Failed, 60),
            expect_status(Summary::Failed, Reason::AgentFailed)
                .condition(Succeeded, "False", Reason::AgentFailed)
                .condition(Ready, "False", Reason::Failed)
                .condition(Stalled, "True", Reason::Failed),
        ),
        case(
            "an agent may use one of the operator's reasons",
            {
                let mut it = attached().finished(Failed, 60);
                it.row.finish.as_mut().unwrap().reason = "RecoveryLoop".into();
                it
            },
            expect_status(Summary::Failed, Reason::AgentFailed),
        ),
        case(
            "a run whose recovery is exhausted",
            attached().ended_by_operator(Failed, 60),
            expect_status(Summary::Failed, Reason::RecoveryFailed).condition(Stalled, "True", Reason::Failed),
        ),
        case(
            "a run that failed at the deadline of a wait",
            {
                let mut it = run().reserved(4).ended_by_operator(Failed, 60);
                it.row.finish.as_mut().unwrap().reason = "WaitTimedOut".into();
                it
            },
            expect_status(Summary::Failed, Reason::WaitTimedOut).condition(Stalled, "True", Reason::Failed),
        ),
        case(
            "an exit with 0 after the finish does not change the result",
            attached().finished(Done, 5).pod(pod(3).terminated(0)),
            succeeded(),
        ),
        case(
            "any other exit after the finish does not change the result",
            attached().finished(Done, 5).pod(pod(3).terminated(143).deleted(6)),
            succeeded(),
        ),
        case(
            "an ended run does not need its definition",
            attached().finished(Done, 60).no_definition(),
            succeeded(),
        ),
    ]
}

fn the_last_worker() -> Vec<Case> {
    let done = |seconds_ago: i64| run().attached(3).head(7).finished(Done, seconds_ago);
    vec![
        case("a worker that finished has 30 s to exit", done(10).pod(pod(3)), succeeded().requeue_after(20)),
        case("after 30 s it is deleted", done(30).pod(pod(3)), succeeded().deletes_pod("triage-3")),
        case(
            "a worker that is being deleted is not deleted again",
            done(30).pod(pod(3).deleted(1)),
            succeeded(),
        ),
        case("an ended worker's pod is kept for its log", done(10).pod(pod(3).terminated(0)), succeeded()),
        case(
            "with keepPods: 0 it is deleted",
            done(10).pod(pod(3).terminated(0)).spec(json!({ "retention": { "keepPods": 0 } })),
            succeeded().deletes_pod("triage-3"),
        ),
        case(
            "a pod whose helper is still running is deleted",
            done(10).pod(pod(3).terminated(0).with_helper()),
            succeeded().deletes_pod("triage-3"),
        ),
        case(
            "if the last attempt has no pod, the previous attempt's pod is kept for its log",
            run().reserved(4).ended_by_operator(Failed, 5).pod(pod(3).terminated(1).phase("Failed")),
            expect_status(Summary::Failed, Reason::RecoveryFailed),
        ),
    ]
}

fn retention() -> Vec<Case> {
    let keep = |given: Given, days: i32| Given {
        row: given.row.clone(),
        ..given.spec(json!({ "retention": { "retentionDays": days } }))
    };
    let attached = || run().attached(3).head(7).pod(pod(3));
    let done = || run().attached(3).head(7).finished(Done, 60);
    vec![
        case("changed retentionDays apply at once", keep(attached(), 7), expect_effect("keep 7 days")),
        case(
            "a changed keepLast applies at once",
            Given { row: attached().row, ..attached().spec(json!({ "retention": { "keepLast": 20 } })) },
            expect_effect("keep 30 days and the last 20"),
        ),
        case(
            "a changed snapshotEvery applies at once",
            Given {
                row: attached().row,
                ..attached().spec(json!({ "checkpoints": { "snapshotEvery": 3 } }))
            },
            expect_effect("keep 30 days, a snapshot every 3"),
        ),
        case(
            "the definition's snapshotEvery applies to a run without one",
            Given {
                row: attached().row,
                ..attached().defaults(json!({ "checkpoints": { "snapshotEvery": 4 } }))
            },
            expect_effect("keep 30 days, a snapshot every 4"),
        ),
        case("changed retentionDays apply to an ended run", keep(done(), 7), expect_effect("keep 7 days")),
        case("30 days are built in", keep(done(), 30), succeeded()),
        case(
            "without the definition the retention is not changed",
            keep(done(), 7).no_definition(),
            succeeded(),
        ),
    ]
}

fn times_to_live() -> Vec<Case> {
    let ttl = |seconds: i32| json!({ "retention": { "ttlSecondsAfterFinished": seconds } });
    let done = |seconds_ago: i64| run().attached(3).head(7).finished(Done, seconds_ago);
    vec![
        case("an ended run is kept without a time to live", done(999_999).status_written(), succeeded()),
        case(
            "until its time to live expires, it is kept",
            done(60).spec(ttl(100)).status_written(),
            succeeded().requeue_after(40),
        ),
        case(
            "after its time to live it is deleted",
            done(100).spec(ttl(100)).status_written(),
            succeeded().deletes_run(),
        ),
        case(
            "it is not deleted before the status shows its end",
            done(100).spec(ttl(100)),
            succeeded().requeue_after(0),
        ),
        case(
            "it is not deleted before its worker has exited",
            done(10).spec(ttl(0)).pod(pod(3)).status_written(),
            succeeded().requeue_after(20),
        ),
        case(
            "the definition may set the time to live for all its runs",
            done(100).defaults(ttl(100)).status_written(),
            succeeded().deletes_run(),
        ),
        case(
            "a run may override the definition's time to live",
            done(100).defaults(ttl(100)).spec(ttl(160)).status_written(),
            succeeded().requeue_after(60),
        ),
        case(
            "the time to live applies to failed runs",
            run().attached(3).head(7).finished(Failed, 100).spec(ttl(100)).status_written(),
            expect_status(Summary::Failed, Reason::AgentFailed).deletes_run(),
        ),
        case(
            "the time to live does not apply to live runs",
            run().attached(3).head(7).pod(pod(3)).spec(ttl(0)),
            running(),
        ),
        case(
            "a run is not deleted while the store is unavailable",
            done(100).spec(ttl(100)).status_written().store_unavailable(),
            succeeded().requeue_after(60).follows(Rule::EndedElsewhere),
        ),
    ]
}

fn kept_pods() -> Vec<Case> {
    let four = || run().attached(4).head(7).pod(pod(4)).pod(pod(1).oom()).pod(pod(3).oom()).pod(pod(2).oom());
    let keep = |pods: i32| four().spec(json!({ "retention": { "keepPods": pods } }));
    vec![
        case(
            "the latest ended pod is kept",
            four(),
            running().deletes_pod("triage-2").deletes_pod("triage-1"),
        ),
        case("keepPods: 2 keeps the two latest", keep(2), running().deletes_pod("triage-1")),
        case(
            "keepPods: 0 keeps none",
            keep(0),
            running().deletes_pod("triage-3").deletes_pod("triage-2").deletes_pod("triage-1"),
        ),
        case(
            "keepPods can be a default of the definition",
            four().defaults(json!({ "retention": { "keepPods": 3 } })),
            running(),
        ),
        case("without the definition no ended pod is deleted", four().no_definition(), running()),
        case(
            "a pod that is being deleted does not count as kept",
            run().attached(3).pod(pod(3)).pod(pod(2).oom().deleted(1)).pod(pod(1).oom()),
            running(),
        ),
    ]
}

fn orphaned_pods() -> Vec<Case> {
    let attached = || run().attached(3).head(7).pod(pod(3));
    let with_zombie = |given: Given| given.pod(pod(2));
    vec![
        case(
            "a running pod of an earlier attempt is deleted",
            with_zombie(attached()),
            running().deletes_pod("triage-2"),
        ),
        case(
            "a second pod of the current attempt is deleted",
            attached().pod(pod(3).uid("another")),
            running().deletes_pod("triage-3"),
        ),
        case("a pod that is gone is not deleted", attached().pod(pod(2).gone()), running()),
        case(
            "the operator does not wait for a pod whose deletion is stuck",
            attached().pod(pod(2).deleted(99)),
            running(),
        ),
        case(
            "a running worker of a held run is deleted",
            with_zombie(run().reserved(4).crashes(3, 3)),
            expect_status(Summary::Held, Reason::RecoveryLoop).deletes_pod("triage-2"),
        ),
        case(
            "no pod is deleted while the store is unavailable",
            with_zombie(attached()).store_unavailable(),
            expect_status(Summary::Pending, Reason::StoreUnavailable),
        ),
        case(
            "no pod is deleted with a different store",
            with_zombie(attached()).status_knows_store(Uuid::from_u128(7)),
            expect_status(Summary::Held, Reason::StoreChanged),
        ),
        case(
            "no pod is deleted with a store that is behind",
            with_zombie(attached()).status_knows(4, 9, 90),
            expect_status(Summary::Held, Reason::StoreBehind),
        ),
    ]
}
