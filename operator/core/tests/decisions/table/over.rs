//! A run that has come to its end, and the pods that shall not be there.

use dalsegno_crds::ConditionType::{Finished, Held, Ready, Stalled, Succeeded};
use dalsegno_crds::{Reason, Summary};
use dalsegno_model::RunOutcome::{Failed, Succeeded as Done};
use serde_json::json;
use uuid::Uuid;

use crate::words::{Case, Expect, Given, acts, case, pod, rests, run, try_all};

#[test]
fn what_is_over_is_cleared_away_and_what_is_not_ours_is_left_alone() {
    try_all(ends());
    try_all(the_last_worker());
    try_all(kept_pods());
    try_all(times_to_live());
    try_all(retention());
    try_all(strays());
}

fn succeeded() -> Expect {
    rests(Summary::Succeeded, Reason::Completed)
}

fn running() -> Expect {
    rests(Summary::Running, Reason::UnderControl)
}

fn ends() -> Vec<Case> {
    let attached = || run().attached(3).head(7);
    vec![
        case(
            "a run whose agent reached its goal",
            attached().finished(Done, 60),
            succeeded()
                .is(Finished, "True", Reason::Completed)
                .is(Succeeded, "True", Reason::Completed)
                .is(Ready, "True", Reason::Succeeded)
                .is(Held, "False", Reason::NotHeld)
                .lacks(Stalled)
                .tells(&["Completed"]),
        ),
        case(
            "a run whose agent did not",
            attached().finished(Failed, 60),
            rests(Summary::Failed, Reason::AgentFailed)
                .is(Succeeded, "False", Reason::AgentFailed)
                .is(Ready, "False", Reason::Failed)
                .is(Stalled, "True", Reason::Failed),
        ),
        case(
            "an agent's word for its failure may be one of ours",
            {
                let mut it = attached().finished(Failed, 60);
                it.row.finish.as_mut().unwrap().reason = "RecoveryLoop".into();
                it
            },
            rests(Summary::Failed, Reason::AgentFailed),
        ),
        case(
            "a run that recovery could not save",
            attached().ended_by_operator(Failed, 60),
            rests(Summary::Failed, Reason::RecoveryFailed).is(Stalled, "True", Reason::Failed),
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
        case("a worker that finished has 30 s to exit", done(10).pod(pod(3)), succeeded().again(20)),
        case("then it is deleted", done(30).pod(pod(3)), succeeded().stops("triage-3")),
        case("one that is being deleted is not deleted again", done(30).pod(pod(3).deleted(1)), succeeded()),
        case("one that has ended stays to be read", done(10).pod(pod(3).terminated(0)), succeeded()),
        case(
            "unless none shall stay",
            done(10).pod(pod(3).terminated(0)).spec(json!({ "retention": { "keepPods": 0 } })),
            succeeded().stops("triage-3"),
        ),
        case(
            "a helper that outlives its worker is not kept",
            done(10).pod(pod(3).terminated(0).with_helper()),
            succeeded().stops("triage-3"),
        ),
        case(
            "an attempt that recovery ended never had a pod, and its predecessor's stays to be read",
            run().reserved(4).ended_by_operator(Failed, 5).pod(pod(3).terminated(1).phase("Failed")),
            rests(Summary::Failed, Reason::RecoveryFailed),
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
            acts("keep 7 days"),
        ),
        case(
            "and so is how many boundaries it keeps",
            Given { row: attached().row, ..attached().spec(json!({ "retention": { "keepLast": 20 } })) },
            acts("keep 30 days and the last 20"),
        ),
        case("also once it is over", keep(done(), 7), acts("keep 7 days")),
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
        case("a run that is over stays, if nothing is said", done(999_999).written(), succeeded()),
        case("until its time is over", done(60).spec(ttl(100)).written(), succeeded().again(40)),
        case("then it is deleted", done(100).spec(ttl(100)).written(), succeeded().deletes()),
        case("but not before its end is told", done(100).spec(ttl(100)), succeeded().again(0)),
        case(
            "nor before its worker has exited",
            done(10).spec(ttl(0)).pod(pod(3)).written(),
            succeeded().again(20),
        ),
        case(
            "the definition may say it for all its runs",
            done(100).defaults(ttl(100)).written(),
            succeeded().deletes(),
        ),
        case(
            "which a run may lengthen",
            done(100).defaults(ttl(100)).spec(ttl(160)).written(),
            succeeded().again(60),
        ),
        case(
            "a run that failed is no exception",
            run().attached(3).head(7).finished(Failed, 100).spec(ttl(100)).written(),
            rests(Summary::Failed, Reason::AgentFailed).deletes(),
        ),
        case(
            "a run that lives has no such time",
            run().attached(3).head(7).pod(pod(3)).spec(ttl(0)),
            running(),
        ),
        case(
            "nor one of which the store is not asked",
            done(100).spec(ttl(100)).written().store_unknown(),
            succeeded().again(60),
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
            running().stops("triage-2").stops("triage-1"),
        ),
        case("or as many as are asked for", keep(2), running().stops("triage-1")),
        case("or none", keep(0), running().stops("triage-3").stops("triage-2").stops("triage-1")),
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
            running().stops("triage-2"),
        ),
        case(
            "another pod of the current attempt than the recorded one is deleted",
            attached().pod(pod(3).uid("another")),
            running().stops("triage-3"),
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
            rests(Summary::Held, Reason::RecoveryLoop).stops("triage-2"),
        ),
        case(
            "a store that does not answer says of no pod that it is a stray",
            zombie(attached()).store_unknown(),
            rests(Summary::Pending, Reason::StoreUnavailable),
        ),
        case(
            "nor does another store",
            zombie(attached()).knows_store(Uuid::from_u128(7)),
            rests(Summary::Held, Reason::StoreChanged),
        ),
        case(
            "nor does one that is behind",
            zombie(attached()).knows(4, 9, 90),
            rests(Summary::Held, Reason::StoreBehind),
        ),
    ]
}
