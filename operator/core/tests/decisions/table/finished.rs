//! A run that has come to its end, and the pods that shall not be there.

use dalsegno_crds::ConditionType::{Finished, Held, Ready, Stalled, Succeeded};
use dalsegno_crds::{Reason, Summary};
use dalsegno_store::RunOutcome::{Failed, Succeeded as Done};
use serde_json::json;
use uuid::Uuid;

use crate::fixtures::{Case, Expect, Given, case, check_all, expect_effect, expect_status, pod, run};

#[test]
fn what_is_over_is_cleared_away_and_what_is_not_ours_is_left_alone() {
    check_all(ends());
    check_all(the_last_worker());
    check_all(kept_pods());
    check_all(times_to_live());
    check_all(retention());
    check_all(strays());
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
                .events(&["Completed"]),
        ),
        case(
            "a run whose agent did not",
            attached().finished(Failed, 60),
            expect_status(Summary::Failed, Reason::AgentFailed)
                .condition(Succeeded, "False", Reason::AgentFailed)
                .condition(Ready, "False", Reason::Failed)
                .condition(Stalled, "True", Reason::Failed),
        ),
        case(
            "an agent's word for its failure may be one of ours",
            {
                let mut it = attached().finished(Failed, 60);
                it.row.finish.as_mut().unwrap().reason = "RecoveryLoop".into();
                it
            },
            expect_status(Summary::Failed, Reason::AgentFailed),
        ),
        case(
            "a run that recovery could not save",
            attached().ended_by_operator(Failed, 60),
            expect_status(Summary::Failed, Reason::RecoveryFailed).condition(Stalled, "True", Reason::Failed),
        ),
        case(
            "an exit with 0 after the finish is as it should be",
            attached().finished(Done, 5).pod(pod(3).terminated(0)),
            succeeded(),
        ),
        case(
            "so is any other exit",
            attached().finished(Done, 5).pod(pod(3).terminated(143).deleted(6)),
            succeeded(),
        ),
        case(
            "nothing more is asked of the definition",
            attached().finished(Done, 60).no_definition(),
            succeeded(),
        ),
    ]
}

fn the_last_worker() -> Vec<Case> {
    let done = |seconds_ago: i64| run().attached(3).head(7).finished(Done, seconds_ago);
    vec![
        case("a worker that finished has 30 s to exit", done(10).pod(pod(3)), succeeded().requeue_after(20)),
        case("then it is deleted", done(30).pod(pod(3)), succeeded().deletes_pod("triage-3")),
        case("one that is being deleted is not deleted again", done(30).pod(pod(3).deleted(1)), succeeded()),
        case("one that has ended stays to be read", done(10).pod(pod(3).terminated(0)), succeeded()),
        case(
            "unless none shall stay",
            done(10).pod(pod(3).terminated(0)).spec(json!({ "retention": { "keepPods": 0 } })),
            succeeded().deletes_pod("triage-3"),
        ),
        case(
            "a helper that outlives its worker is not kept",
            done(10).pod(pod(3).terminated(0).with_helper()),
            succeeded().deletes_pod("triage-3"),
        ),
        case(
            "an attempt that recovery ended never had a pod, and its predecessor's stays to be read",
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
        case(
            "how long the store keeps what a run wrote is obeyed at once",
            keep(attached(), 7),
            expect_effect("keep 7 days"),
        ),
        case(
            "and so is how many boundaries it keeps",
            Given { row: attached().row, ..attached().spec(json!({ "retention": { "keepLast": 20 } })) },
            expect_effect("keep 30 days and the last 20"),
        ),
        case("also once it is over", keep(done(), 7), expect_effect("keep 7 days")),
        case("and 30 days are what it begins with", keep(done(), 30), succeeded()),
        case(
            "a definition that is missing may say otherwise: nothing is changed",
            keep(done(), 7).no_definition(),
            succeeded(),
        ),
    ]
}

fn times_to_live() -> Vec<Case> {
    let ttl = |seconds: i32| json!({ "retention": { "ttlSecondsAfterFinished": seconds } });
    let done = |seconds_ago: i64| run().attached(3).head(7).finished(Done, seconds_ago);
    vec![
        case("a run that is over stays, if nothing is said", done(999_999).status_written(), succeeded()),
        case(
            "until its time is over",
            done(60).spec(ttl(100)).status_written(),
            succeeded().requeue_after(40),
        ),
        case("then it is deleted", done(100).spec(ttl(100)).status_written(), succeeded().deletes_run()),
        case("but not before its end is told", done(100).spec(ttl(100)), succeeded().requeue_after(0)),
        case(
            "nor before its worker has exited",
            done(10).spec(ttl(0)).pod(pod(3)).status_written(),
            succeeded().requeue_after(20),
        ),
        case(
            "the definition may say it for all its runs",
            done(100).defaults(ttl(100)).status_written(),
            succeeded().deletes_run(),
        ),
        case(
            "which a run may lengthen",
            done(100).defaults(ttl(100)).spec(ttl(160)).status_written(),
            succeeded().requeue_after(60),
        ),
        case(
            "a run that failed is no exception",
            run().attached(3).head(7).finished(Failed, 100).spec(ttl(100)).status_written(),
            expect_status(Summary::Failed, Reason::AgentFailed).deletes_run(),
        ),
        case(
            "a run that lives has no such time",
            run().attached(3).head(7).pod(pod(3)).spec(ttl(0)),
            running(),
        ),
        case(
            "nor one of which the store is not asked",
            done(100).spec(ttl(100)).status_written().store_unavailable(),
            succeeded().requeue_after(60),
        ),
    ]
}

fn kept_pods() -> Vec<Case> {
    let four = || run().attached(4).head(7).pod(pod(4)).pod(pod(1).oom()).pod(pod(3).oom()).pod(pod(2).oom());
    let keep = |pods: i32| four().spec(json!({ "retention": { "keepPods": pods } }));
    vec![
        case(
            "one ended pod stays to be read, the latest",
            four(),
            running().deletes_pod("triage-2").deletes_pod("triage-1"),
        ),
        case("or as many as are asked for", keep(2), running().deletes_pod("triage-1")),
        case(
            "or none",
            keep(0),
            running().deletes_pod("triage-3").deletes_pod("triage-2").deletes_pod("triage-1"),
        ),
        case(
            "the number may stand in the definition",
            four().defaults(json!({ "retention": { "keepPods": 3 } })),
            running(),
        ),
        case("as long as that is missing nothing is cleared away", four().no_definition(), running()),
        case(
            "a pod that is being deleted is not one of those that stay",
            run().attached(3).pod(pod(3)).pod(pod(2).oom().deleted(1)).pod(pod(1).oom()),
            running(),
        ),
    ]
}

fn strays() -> Vec<Case> {
    let attached = || run().attached(3).head(7).pod(pod(3));
    let zombie = |given: Given| given.pod(pod(2));
    vec![
        case(
            "an earlier attempt's pod that still runs is deleted",
            zombie(attached()),
            running().deletes_pod("triage-2"),
        ),
        case(
            "another pod of the current attempt than the recorded one is deleted",
            attached().pod(pod(3).uid("another")),
            running().deletes_pod("triage-3"),
        ),
        case("one that is gone is not", attached().pod(pod(2).gone()), running()),
        case(
            "one that is stuck in its deletion is waited for by nobody",
            attached().pod(pod(2).deleted(99)),
            running(),
        ),
        case(
            "a held run keeps no worker",
            zombie(run().reserved(4).crashes(3, 3)),
            expect_status(Summary::Held, Reason::RecoveryLoop).deletes_pod("triage-2"),
        ),
        case(
            "a store that does not answer says of no pod that it is a stray",
            zombie(attached()).store_unavailable(),
            expect_status(Summary::Pending, Reason::StoreUnavailable),
        ),
        case(
            "nor does another store",
            zombie(attached()).status_knows_store(Uuid::from_u128(7)),
            expect_status(Summary::Held, Reason::StoreChanged),
        ),
        case(
            "nor does one that is behind",
            zombie(attached()).status_knows(4, 9, 90),
            expect_status(Summary::Held, Reason::StoreBehind),
        ),
    ]
}
