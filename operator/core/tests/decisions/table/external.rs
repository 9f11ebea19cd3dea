//! Agents that keep their own checkpoints: an attempt ends only with its pod.

use dalsegno_core::{Effect, Rule};
use dalsegno_crds::ConditionType::{
    CheckpointAvailable, Finished, Held, Ready, Stalled, Suspended, WorkerReady,
};
use dalsegno_crds::{Cause, Reason, Summary};
use dalsegno_model::{Class, RunOutcome};
use serde_json::json;
use uuid::Uuid;

use crate::fixtures::{
    Case, Expect, Given, case, check_all, crashed, digest, disrupted, expect_effect, expect_end,
    expect_finish, expect_status, pod, run,
};

#[test]
fn a_worker_of_an_external_agent_starts_and_ends_with_its_pod() {
    check_all([starts(), ends(), recoveries()].into_iter().flatten().collect());
}

#[test]
fn an_end_says_how_long_the_worker_ran_by_the_clock_of_its_node() {
    let told = |given: Given| {
        let effects = given.decide().effects;
        let Some(Effect::EndAttempt { ending, .. }) = effects.first() else { panic!("{effects:?}") };
        ending.ran.map(|it| it.as_secs())
    };
    let by_gc = || pod(3).disrupted("DeletionByPodGC", 5).phase("Failed");
    for (name, given, expected) in [
        ("a crash", with(pod(3).terminated(1)), Some(45)),
        ("success", with(pod(3).terminated(0)), Some(45)),
        ("a start that was recorded late", with(pod(3).terminated(1)).attached_ago(1), Some(45)),
        ("an end that was seen late", with(pod(3).terminated(1).finished(40)), Some(10)),
        ("a node that was lost, until it fell silent", with(by_gc()).node_not_ready(30), Some(20)),
        ("a pod that is gone", with(pod(3).gone()), None),
        ("a worker that attached", run().attached(3).pod(pod(3).terminated(1)), None),
    ] {
        assert_eq!(told(given), expected, "{name}");
    }
}

#[test]
fn a_person_stops_an_external_worker_by_its_pod_and_the_attempt_ends_after_it() {
    check_all([suspends(), cancels(), other_stops()].into_iter().flatten().collect());
}

/// The worker of attempt 3 runs.
pub(super) fn working() -> Given {
    run().attached(3).pod(pod(3)).external()
}

/// The pod of attempt 3 is as given, and the worker has started.
pub(super) fn with(fixture: crate::fixtures::PodFixture) -> Given {
    run().attached(3).pod(fixture).external()
}

/// As [`with`], and the version of the image is not recorded yet.
fn unidentified(fixture: crate::fixtures::PodFixture) -> Given {
    let mut given = with(fixture);
    given.row.attempt.identity = None;
    given
}

pub(super) fn running() -> Expect {
    expect_status(Summary::Running, Reason::UnderControl)
        .condition(WorkerReady, "True", Reason::Started)
        .condition(CheckpointAvailable, "Unknown", Reason::KeptByAgent)
        .condition(Ready, "True", Reason::UnderControl)
        .condition(Held, "False", Reason::NotHeld)
}

pub(super) fn held(reason: Reason) -> Expect {
    expect_status(Summary::Held, reason).condition(Stalled, "True", reason)
}

fn succeeded(attempt: i32) -> Expect {
    expect_finish(attempt, Cause::Finished, RunOutcome::Succeeded, Reason::Completed)
        .follows(Rule::WorkerCompleted)
}

fn starts() -> Vec<Case> {
    vec![
        case(
            "the run is created in the store as one whose worker does not attach",
            run().external().not_in_store(),
            expect_effect("create run, resetGeneration 0, external, prior runs: Hold"),
        ),
        case(
            "the start of the worker is recorded, since it does not attach",
            run().created(3).image_is('a').pod(pod(3)).external(),
            expect_effect("record start of attempt 3"),
        ),
        case(
            "a worker that has ended before anybody looked has started nevertheless",
            run().created(3).image_is('a').pod(pod(3).terminated(1)).external(),
            expect_effect("record start of attempt 3"),
        ),
        case(
            "and its version is checked before its end is judged",
            unidentified(pod(3).terminated(1).kubelet_shows('a')),
            expect_effect(format!("record identity {}: Accepted", digest('a'))),
        ),
        case(
            "an exit with 0 of another version is not taken for success",
            unidentified(pod(3).terminated(0).kubelet_shows('b'))
                .after(crashed(2, Cause::ExitedWithError).attached(1_100).used_template("sha256:old", 'a')),
            expect_effect(format!("record identity {}: Refused", digest('b'))),
        ),
        case(
            "an image whose digest nobody knows is not waited for",
            unidentified(pod(3).terminated(0)),
            succeeded(3),
        ),
        case("a worker that has started runs", working(), running()),
        case(
            "a worker runs for as long as it likes: no deadline of an attach, a heartbeat or a commit applies",
            working().attached_ago(1_000_000).scheduled(1_000_000),
            running(),
        ),
        case(
            "a pod that waits for its image is not replaced",
            run().created(3).scheduled(1_000_000).pod(pod(3).waiting("ContainerCreating", "")).external(),
            expect_status(Summary::Starting, Reason::Starting),
        ),
    ]
}

fn ends() -> Vec<Case> {
    vec![
        case("an exit with 0 is success", with(pod(3).terminated(0)), succeeded(3)),
        case(
            "an exit with 0 of a worker that was asked to stop is none: many programs exit with 0 on SIGTERM",
            with(pod(3).terminated(0).deleted(20)),
            expect_end(3, Cause::Deleted, Class::Disruption),
        ),
        case(
            "an exit with 0 before the deletion of the pod is success",
            with(pod(3).terminated(0).finished(60).deleted(5)),
            succeeded(3),
        ),
        case(
            "an exit with 0 of an evicted worker is a disruption",
            with(pod(3).terminated(0).disrupted("EvictionByEvictionAPI", 20)),
            expect_end(3, Cause::Evicted, Class::Disruption),
        ),
        case(
            "another exit is a crash",
            with(pod(3).terminated(1)),
            expect_end(3, Cause::ExitedWithError, Class::Crash),
        ),
        case(
            "a worker may say that another attempt is useless",
            with(pod(3).terminated(1).message(r#"{"dalsegno":1,"class":"fatal","message":"no such file"}"#)),
            expect_end(3, Cause::WorkerFatal, Class::Crash),
        ),
        case(
            "the kernel kills a worker at its memory limit",
            with(pod(3).oom()),
            expect_end(3, Cause::OOMKilled, Class::Crash),
        ),
        case(
            "a crash while no gateway was there is charged: the worker does not need one",
            with(pod(3).terminated(1)).last_beat(60),
            expect_end(3, Cause::ExitedWithError, Class::Crash),
        ),
        case(
            "the Node was deleted, and the API server ended the pod",
            with(pod(3).disrupted("DeletionByPodGC", 5).phase("Failed")).node_not_ready(300),
            expect_end(3, Cause::NodeLost, Class::Disruption),
        ),
        case(
            "a pod that is gone has ended: its finalizer is removed only after its end, or by a person",
            with(pod(3).gone()),
            expect_end(3, Cause::PodVanished, Class::Disruption),
        ),
        case(
            "a pod that was deleted before it had a node never runs",
            run().created(3).no_node_yet().pod(pod(3).unscheduled("no node").deleted(5)).external(),
            expect_end(3, Cause::Deleted, Class::Disruption),
        ),
    ]
}

fn recoveries() -> Vec<Case> {
    let reserved = || run().reserved(4).external();
    vec![
        case(
            "the next pod is created after a disruption",
            reserved().disruptions(1, 1).after(disrupted(3, Cause::Evicted)),
            expect_effect("create triage-4"),
        ),
        case(
            "the last pod is let go once its end is recorded",
            run()
                .attached(4)
                .after(disrupted(3, Cause::Evicted))
                .pod(pod(3).terminated(143).deleted(20))
                .pod(pod(4))
                .external(),
            running().releases_pod("triage-3"),
        ),
        case(
            "a loop of crashes holds the run",
            reserved().crashes(3, 3).after(crashed(3, Cause::ExitedWithError).exit_code(1)),
            held(Reason::RecoveryLoop)
                .message_contains("3 attempts in a row made no progress; attempt 3 ended: "),
        ),
        case(
            "the pod of a run that has ended is let go and kept for its log",
            {
                let given = run().attached(3).pod(pod(3).terminated(0)).external();
                given.ended_by_operator(RunOutcome::Succeeded, 5)
            },
            expect_status(Summary::Succeeded, Reason::Completed)
                .condition(Finished, "True", Reason::Completed)
                .releases_pod("triage-3"),
        ),
        case(
            "also if the store has lost the run: nobody waits for the end of a run that has ended",
            with(pod(3).terminated(0)).status_knows(3, 0, 0).status_succeeded().not_in_store(),
            expect_status(Summary::Succeeded, Reason::Completed)
                .follows(Rule::EndedElsewhere)
                .releases_pod("triage-3"),
        ),
        case(
            "but not while its worker may run",
            with(pod(3)).status_knows(3, 0, 0).status_succeeded().not_in_store(),
            expect_status(Summary::Succeeded, Reason::Completed).follows(Rule::EndedElsewhere),
        ),
        case(
            "nor while the store may have a run that goes on",
            with(pod(3).terminated(143).deleted(20)).status_knows_store(Uuid::nil()),
            held(Reason::StoreChanged),
        ),
        case(
            "the version that ran before is pinned, since it wrote the checkpoints",
            {
                let given = reserved().image(&crate::fixtures::image_by_digest('b')).external();
                let stored = run().document();
                let past = crashed(3, Cause::ExitedWithError).exit_code(1).ago(1_000);
                given
                    .template_stored(&stored)
                    .crashes(1, 1)
                    .after(past.attached(1_100).used_template(&stored.hash(), 'a'))
            },
            expect_effect("create triage-4, pinned"),
        ),
        case(
            "a version that was refused has written nothing, whatever ended its worker",
            {
                let given = reserved().image(&crate::fixtures::image_by_digest('b')).external();
                let stored = run().document();
                let refused = crashed(3, Cause::OOMKilled).exit_code(137).ago(1_000);
                let accepted = crashed(2, Cause::ExitedWithError).exit_code(1).ago(2_000);
                given
                    .template_stored(&stored)
                    .crashes(2, 2)
                    .after(refused.attached(1_100).used_template("sha256:other", 'b').refused())
                    .after(accepted.attached(2_100).used_template(&stored.hash(), 'a'))
            },
            expect_effect("create triage-4, pinned"),
        ),
        case(
            "two refusals hold the run, whatever ended the workers",
            {
                let refused = |number| {
                    let it = crashed(number, Cause::OOMKilled).exit_code(137).ago(1_000).attached(1_100);
                    it.used_template("sha256:other", 'b').refused()
                };
                reserved().crashes(2, 2).after(refused(3)).after(refused(2))
            },
            held(Reason::VersionBlocked).message_contains("the version was refused 2 times in a row"),
        ),
        case(
            "or the run is held, if the policy says so",
            {
                let given =
                    reserved().image(&crate::fixtures::image_by_digest('b')).external().on_mismatch("Block");
                let past = crashed(3, Cause::ExitedWithError).exit_code(1).ago(1_000);
                given.crashes(1, 1).after(past.attached(1_100).used_template("sha256:old", 'a'))
            },
            held(Reason::VersionBlocked)
                .message_contains(format!("attempt 3 had agent version {}", digest('a'))),
        ),
    ]
}

fn suspends() -> Vec<Case> {
    let asked = |given: Given| given.suspended().suspend(5, None);
    vec![
        case(
            "a suspend deletes the pod",
            asked(working()),
            expect_status(Summary::Running, Reason::Suspending)
                .condition(Suspended, "False", Reason::Suspending)
                .deletes_pod("triage-3")
                .follows(Rule::WorkerStopped),
        ),
        case(
            "and waits for its end",
            asked(with(pod(3).deleted(5))),
            expect_status(Summary::Running, Reason::Suspending),
        ),
        case(
            "the attempt ends after the pod, and is not charged",
            asked(with(pod(3).terminated(143).deleted(20))),
            expect_end(3, Cause::Suspended, Class::Neutral),
        ),
        case(
            "a worker that has just done its task has succeeded",
            asked(with(pod(3).terminated(0))),
            succeeded(3),
        ),
        case(
            "a worker that has just crashed has crashed",
            asked(with(pod(3).terminated(1))),
            expect_end(3, Cause::ExitedWithError, Class::Crash),
        ),
        case(
            "a pod without a worker is deleted as well",
            asked(run().created(3).pod(pod(3).waiting("ContainerCreating", "")).external()),
            expect_status(Summary::Starting, Reason::Starting)
                .deletes_pod("triage-3")
                .follows(Rule::WorkerStopped),
        ),
        case(
            "a suspend that is lifted before the pod has ended starts no second pod",
            with(pod(3).deleted(5)),
            running(),
        ),
        case(
            "a suspended run has no pod",
            run().reserved(4).external().suspended().suspend(60, None),
            expect_status(Summary::Suspended, Reason::Suspended).condition(
                Suspended,
                "True",
                Reason::Suspended,
            ),
        ),
    ]
}

fn cancels() -> Vec<Case> {
    let asked = |given: Given| given.cancelled().cancel(5, None);
    vec![
        case(
            "a cancel deletes the pod at once",
            asked(working()),
            expect_status(Summary::Running, Reason::Cancelling)
                .deletes_pod("triage-3")
                .follows(Rule::WorkerStopped),
        ),
        case(
            "and the run ends after it",
            asked(with(pod(3).terminated(143).deleted(20))),
            expect_finish(3, Cause::Cancelled, RunOutcome::Cancelled, Reason::Cancelled)
                .follows(Rule::CancelCompleted),
        ),
        case(
            "a cancel is not final before the pod has ended",
            asked(with(pod(3).deleted(5))).cancel(600, None),
            expect_status(Summary::Running, Reason::Cancelling),
        ),
        case(
            "a worker that did its task before has succeeded",
            asked(with(pod(3).terminated(0))),
            succeeded(3),
        ),
    ]
}

fn other_stops() -> Vec<Case> {
    let stopped = |given: Given| (given, running().deletes_pod("triage-3").follows(Rule::WorkerStopped));
    let (limited, stops) = stopped(with(pod(3)).spec(json!({ "limits": { "activeSeconds": 10 } })));
    let (refused, refuses) = stopped(with(pod(3)).refused_version());
    vec![
        case("the limit of active time deletes the pod", limited, stops),
        case(
            "the end of the active time is looked at",
            with(pod(3)).spec(json!({ "limits": { "activeSeconds": 3_600 } })),
            running().requeue_after(3_550),
        ),
        case(
            "and holds the run once the pod has ended",
            with(pod(3).terminated(143).deleted(20)).spec(json!({ "limits": { "activeSeconds": 10 } })),
            expect_end(3, Cause::LimitReached, Class::Neutral),
        ),
        case("a refused version is stopped", refused, refuses),
        case(
            "and ends with its pod",
            with(pod(3).terminated(143).deleted(20)).refused_version(),
            expect_end(3, Cause::VersionIncompatible, Class::Neutral),
        ),
        case(
            "also if it crashes before its pod is deleted",
            with(pod(3).terminated(1)).refused_version(),
            expect_end(3, Cause::VersionIncompatible, Class::Neutral).message_contains("the versions differ"),
        ),
        case(
            "a refused version has not done the task",
            with(pod(3).terminated(0)).refused_version(),
            expect_end(3, Cause::VersionIncompatible, Class::Neutral),
        ),
        case(
            "the refusal stays known if the run is suspended meanwhile",
            with(pod(3).terminated(143).deleted(20)).refused_version().suspended().suspend(5, None),
            expect_end(3, Cause::VersionIncompatible, Class::Neutral),
        ),
        case(
            "and if the run has reached a limit",
            with(pod(3).terminated(143).deleted(20))
                .refused_version()
                .spec(json!({ "limits": { "activeSeconds": 10 } })),
            expect_end(3, Cause::VersionIncompatible, Class::Neutral),
        ),
        case(
            "a pod that lost its sandbox before its worker started is deleted, because no kubelet starts it",
            run().created(3).scheduled(40).pod(pod(3).sandbox_lost(31)).external(),
            expect_status(Summary::Starting, Reason::Starting)
                .deletes_pod("triage-3")
                .follows(Rule::WorkerStopped),
        ),
        case(
            "and the lost sandbox is the cause of its end",
            run().created(3).scheduled(40).pod(pod(3).sandbox_lost(31).never_started().deleted(5)).external(),
            expect_end(3, Cause::NodeLost, Class::Disruption).message_contains("lost its sandbox"),
        ),
        case(
            "a pod that is deleted before its first sandbox has lost none",
            run()
                .created(3)
                .scheduled(40)
                .pod(pod(3).sandbox_lost(60).no_container_created().never_started().deleted(5))
                .external(),
            expect_end(3, Cause::Deleted, Class::Disruption),
        ),
        case(
            "a worker that has started is not stopped for an old status of its pod",
            with(pod(3).sandbox_lost(31)),
            running(),
        ),
        case(
            "an edited template replaces a pod whose worker has not started, after its end",
            run().created(3).made_from("sha256:old").pod(pod(3).waiting("ContainerCreating", "")).external(),
            expect_status(Summary::Starting, Reason::Starting)
                .deletes_pod("triage-3")
                .follows(Rule::WorkerStopped),
        ),
        case(
            "an edited template does not touch a worker that has started",
            working().made_from("sha256:old"),
            running(),
        ),
    ]
}
