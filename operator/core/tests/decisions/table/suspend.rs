//! Suspended runs.

use dalsegno_core::EventLevel;
use dalsegno_crds::ConditionType::{
    CheckpointAvailable, Finished, Held, Ready, Reconciling, Stalled, Suspended, WorkerReady,
};
use dalsegno_crds::{Cause, EventReason, Reason, Summary};
use dalsegno_model::{Class, RunOutcome};
use dalsegno_protocol::Policy;
use serde_json::json;

use crate::fixtures::{
    Case, Expect, Given, PastAttempt, ago, case, check_all, crashed, expect_effect, expect_end,
    expect_finish, expect_status, neutral, pod, run,
};

pub fn cases() -> Vec<Case> {
    [the_request(), without_a_worker(), with_a_worker(), with_a_hold(), with_an_end()]
        .into_iter()
        .flatten()
        .collect()
}

#[test]
fn a_suspended_run_gets_no_pod_in_every_stage() {
    check_all(cases());
}

#[test]
fn a_parked_worker_has_time_to_exit() {
    check_all(parked_pods());
}

/// The worker of attempt 3 was attached, and the status shows it.
pub(super) fn working() -> Given {
    run().attached(3).head(7).heartbeat(2).pod(pod(3))
}

/// The worker of attempt 3 parked this many seconds ago, and the operator has not looked at the run since then.
pub(super) fn parked(seconds_ago: i64) -> Given {
    let mut given = working().suspended().suspend(60, Some(50)).status_written();
    given.seen.pods.clear();
    given.reserved(4).after(PastAttempt::parked(3, seconds_ago))
}

fn suspended() -> Expect {
    expect_status(Summary::Suspended, Reason::Suspended)
        .condition(Suspended, "True", Reason::Suspended)
        .condition(Ready, "True", Reason::Suspended)
        .condition(WorkerReady, "False", Reason::NoWorker)
        .condition(Held, "False", Reason::NotHeld)
        .condition(Finished, "False", Reason::Running)
        .no_condition(Stalled)
        .no_condition(Reconciling)
}

fn the_request() -> Vec<Case> {
    vec![
        case(
            "a run that was never created is created in the store, so that its suspend is in the store too",
            run().not_in_store().suspended(),
            expect_effect("create run, resetGeneration 0, prior runs: Hold"),
        ),
        case("the suspend is recorded before the first pod", run().suspended(), expect_effect("suspend")),
        case("the suspend of a working run is recorded", working().suspended(), expect_effect("suspend")),
        case(
            "the suspend is recorded before the end of a worker that has just ended",
            run().attached(3).pod(pod(3).oom()).suspended(),
            expect_effect("suspend"),
        ),
        case(
            "the suspend of a held run is recorded",
            run().reserved(4).crashes(3, 3).suspended(),
            expect_effect("suspend"),
        ),
        case(
            "the suspend is recorded also without a definition",
            run().no_definition().suspended(),
            expect_effect("suspend"),
        ),
        case(
            "a changed grace is recorded first",
            {
                let mut given = working().suspended();
                given.run.spec.suspend.get_or_insert_default().grace_seconds = Some(5);
                given
            },
            expect_effect("set deadlines"),
        ),
        case(
            "a run that is not in the store and has no definition waits for it",
            run().not_in_store().no_definition().suspended(),
            expect_status(Summary::Held, Reason::AgentNotFound).no_condition(Suspended),
        ),
    ]
}

fn without_a_worker() -> Vec<Case> {
    let reserved = || run().suspended().suspend(1, None);
    vec![
        case(
            "a run without an attempt before",
            reserved(),
            suspended()
                .condition(CheckpointAvailable, "False", Reason::NothingCommitted)
                .events(&[&EventReason::Suspended]),
        ),
        case("a suspended run is not looked at again", reserved().status_written(), suspended().events(&[])),
        case(
            "an attempt that is backing off",
            reserved().reserved(4).crashes(2, 2).after(crashed(3, Cause::OOMKilled).ago(0)),
            suspended(),
        ),
        case(
            "an attempt that waits in the queue",
            {
                let mut given = reserved();
                given.seen.queue_position = Some(3);
                given
            },
            suspended(),
        ),
        case(
            "an attempt whose pod the API server rejects",
            reserved().pod_rejected(403, "exceeded quota", 1, 0),
            suspended(),
        ),
        case(
            "no checkpoint is verified for it",
            reserved().reserved(4).head(7).after(crashed(3, Cause::OOMKilled)).head_unverified(),
            suspended(),
        ),
        case(
            "an existing pod that is not recorded is recorded first",
            reserved().pod(pod(1)),
            expect_effect("record pod pod-1 of attempt 1"),
        ),
        case(
            "an attempt whose worker has not attached is ended",
            run().created(3).pod(pod(3)).suspended().suspend(1, None),
            expect_end(3, Cause::Suspended, Class::Neutral).message_contains("before its worker attached"),
        ),
        case(
            "an attempt whose image cannot be pulled is ended",
            run().created(3).pod(pod(3).waiting("ErrImagePull", "no such tag")).suspended().suspend(1, None),
            expect_end(3, Cause::Suspended, Class::Neutral),
        ),
        case(
            "its pod is then deleted at once",
            {
                let mut past = neutral(3, Cause::Suspended).message("before its worker attached").ago(0);
                past.0.pod_uid = Some("pod-3".into());
                reserved().reserved(4).after(past).pod(pod(3))
            },
            suspended().deletes_pod("triage-3"),
        ),
        case(
            "an attempt that has ended gets its successor",
            working().ended().suspended().suspend(1, None),
            expect_end(3, Cause::Evicted, Class::Disruption),
        ),
    ]
}

fn with_a_worker() -> Vec<Case> {
    let told = |requested: i64, learned: Option<i64>| working().suspended().suspend(requested, learned);
    let waits = || {
        expect_status(Summary::Running, Reason::Suspending)
            .condition(Ready, "True", Reason::Suspending)
            .condition(Suspended, "False", Reason::Suspending)
            .condition(WorkerReady, "True", Reason::Attached)
            .no_condition(Stalled)
    };
    let fenced = || {
        expect_end(3, Cause::Suspended, Class::Neutral)
            .message_contains("its worker did not park within suspend.graceSeconds")
    };
    let short = |given: Given| given.spec(json!({ "suspend": { "graceSeconds": 10 } }));
    vec![
        case("a worker that learned of the suspend has 300 s", told(500, Some(300)), waits()),
        case("after 300 s it is fenced", told(500, Some(301)), fenced()),
        case("a worker that has not learned of the suspend has 600 s", told(600, None), waits()),
        case("after 600 s it is fenced", told(601, None), fenced()),
        case("the spec sets the grace", short(told(20, Some(10))), waits()),
        case("after that grace the worker is fenced", short(told(15, Some(11))), fenced()),
        case(
            "after twice that grace it is fenced, however late it learned of it",
            short(told(21, Some(1))),
            fenced(),
        ),
        case(
            "the definition's defaults set the grace",
            told(30, Some(11)).defaults(json!({ "suspend": { "graceSeconds": 10 } })),
            fenced(),
        ),
        case(
            "the time starts again after an outage of the gateways",
            told(900, Some(900)).gateway_outage(900, 30),
            waits(),
        ),
        case(
            "a worker that crashes instead of parking is charged",
            run().attached(3).head(7).pod(pod(3).terminated(1)).suspended().suspend(5, Some(5)),
            expect_end(3, Cause::ExitedWithError, Class::Crash),
        ),
        case(
            "a worker that is evicted instead of parking is not charged",
            run().attached(3).head(7).suspended().suspend(5, Some(5)),
            expect_end(3, Cause::PodVanished, Class::Disruption),
        ),
    ]
}

fn with_a_hold() -> Vec<Case> {
    let held = |reason| {
        expect_status(Summary::Held, reason)
            .condition(Held, "True", reason)
            .condition(Stalled, "True", reason)
            .condition(Suspended, "False", Reason::Held)
            .condition(Ready, "False", Reason::Held)
    };
    let reserved = || run().reserved(4).suspended().suspend(400, Some(400));
    let fenced = || neutral(3, Cause::Suspended).message("its worker did not park").attached(500);
    vec![
        case("a held run that is suspended stays held", reserved().crashes(3, 3), held(Reason::RecoveryLoop)),
        case(
            "it is suspended once nothing holds it",
            reserved()
                .crashes(3, 3)
                .status_written()
                .budget_reset(1, 3)
                .crashes(3, 0)
                .recovery(json!({ "resetGeneration": 1 })),
            suspended().events(&[&EventReason::BudgetReset, &EventReason::Suspended]),
        ),
        case(
            "a run whose fenced worker left an `ask` call unsettled is held",
            reserved().after(fenced()).unsettled(Policy::Ask, 1).calls_to_settle(&["pay"]),
            held(Reason::EffectUnknown),
        ),
        case(
            "the ids of the calls are read for its message",
            reserved().after(fenced()).unsettled(Policy::Ask, 1),
            expect_effect("read the calls to settle"),
        ),
        case(
            "it is suspended once the call is settled",
            reserved()
                .after(fenced())
                .unsettled(Policy::Ask, 1)
                .calls_to_settle(&["pay"])
                .status_written()
                .unsettled(Policy::Ask, 0),
            suspended().events(&[&EventReason::Suspended]),
        ),
        case(
            "a hold whose cause appears while the run is suspended is shown",
            reserved().status_written().no_definition(),
            held(Reason::AgentNotFound),
        ),
        case(
            "a version that cannot resume the checkpoint holds a suspended run",
            reserved().head(7).declares("2.0").on_mismatch("Block").status_written(),
            held(Reason::VersionBlocked),
        ),
        case(
            "a run that cannot start is held until its next try, which a suspended run does not make",
            reserved().after(never_started(3)).after(never_started(2)).after(never_started(1)),
            held(Reason::CannotStart),
        ),
        case(
            "then it is suspended",
            reserved().after(never_started(3).ago(3_600)).after(never_started(2)).after(never_started(1)),
            suspended(),
        ),
        case(
            "an attempt that was suspended before its worker attached does not end the hold",
            reserved()
                .reserved(5)
                .after(neutral(4, Cause::Suspended))
                .after(never_started(3))
                .after(never_started(2))
                .after(never_started(1)),
            held(Reason::CannotStart),
        ),
        case(
            "a charge that may be taken back holds no suspended run yet",
            reserved()
                .crashes(3, 3)
                .after(crashed(3, Cause::ExitedWithError).exit_code(137).on("n1").ago(10)),
            suspended().requeue_after(50),
        ),
        case(
            "an exhausted budget fails a suspended run under onExhausted: Fail",
            reserved().crashes(3, 3).recovery(json!({ "onExhausted": "Fail" })),
            expect_finish(4, Cause::Finished, RunOutcome::Failed, Reason::RecoveryLoop),
        ),
    ]
}

fn never_started(number: i32) -> PastAttempt {
    neutral(number, Cause::StartDeadline)
}

fn with_an_end() -> Vec<Case> {
    let ended = |summary, reason| expect_status(summary, reason).no_condition(Suspended);
    let both = |given: Given| given.cancelled().suspend(60, None).cancel(1, None);
    vec![
        case(
            "a run that finished before it was suspended stays finished",
            working().finished(RunOutcome::Succeeded, 5).suspended(),
            ended(Summary::Succeeded, Reason::Completed),
        ),
        case(
            "a run that finished while it was being suspended is finished",
            working().suspended().suspend(5, Some(5)).status_written().finished(RunOutcome::Succeeded, 1),
            ended(Summary::Succeeded, Reason::Completed).events(&[&Reason::Completed]),
        ),
        case(
            "the cancel of a suspended run is recorded",
            parked(600).status_written().cancelled(),
            expect_effect("request cancel"),
        ),
        case(
            "a suspended run that is cancelled ends",
            both(parked(600).status_written()),
            expect_finish(4, Cause::Cancelled, RunOutcome::Cancelled, Reason::Cancelled),
        ),
        case(
            "a worker that is asked to park and then cancelled has the time of a cancel",
            both(working()),
            expect_status(Summary::Running, Reason::Cancelling).no_condition(Suspended),
        ),
        case(
            "the end of a suspended run is its only event",
            both(parked(600).status_written()).ended_by_operator(RunOutcome::Cancelled, 1).cancelled_end(),
            ended(Summary::Cancelled, Reason::Cancelled).events(&[&Reason::Cancelled]),
        ),
        case(
            "a cancelled run cannot be suspended",
            working().suspended().cancel(1, None),
            expect_status(Summary::Running, Reason::Cancelling).no_condition(Suspended),
        ),
    ]
}

fn parked_pods() -> Vec<Case> {
    vec![
        case(
            "a worker that has parked has 30 s to exit",
            parked(10).pod(pod(3)),
            suspended().requeue_after(20).events(&[&Cause::Suspended, &EventReason::Suspended]),
        ),
        case("after 30 s its pod is deleted", parked(30).pod(pod(3)), suspended().deletes_pod("triage-3")),
        case(
            "the pod of a worker that has exited is kept for its log",
            parked(60).pod(pod(3).terminated(0)),
            suspended(),
        ),
        case(
            "a worker that has exited no longer needs time",
            parked(10).pod(pod(3).terminated(0).with_helper()),
            suspended().deletes_pod("triage-3"),
        ),
        case(
            "a worker that did not park is deleted at once",
            {
                let mut past = PastAttempt::parked(3, 1);
                past = past.message("its worker did not park");
                let mut given = parked(1).pod(pod(3));
                given.row.past = vec![past.0];
                given
            },
            suspended().deletes_pod("triage-3"),
        ),
        case(
            "a parked worker still has its time after the suspend is lifted",
            {
                let mut given =
                    parked(10).status_written().spec(json!({ "operatingMode": null })).pod(pod(3));
                given.row.suspend = None;
                given
            },
            expect_effect("create triage-4"),
        ),
    ]
}

#[test]
fn the_status_says_who_suspended_the_run_since_when_and_why() {
    let given =
        run().suspended().suspend(90, None).operating_mode_written(Some("the model is too expensive"));
    let decision = given.decide();
    let suspend = decision.status.suspend.clone().unwrap();
    assert_eq!(suspend.since.map(|it| it.0), Some(ago(90)));
    assert_eq!(suspend.by.as_deref(), Some("kubectl-patch"));
    assert_eq!(suspend.reason.as_deref(), Some("the model is too expensive"));
    let [event] = &decision.events[..] else { panic!("{:?}", decision.events) };
    assert_eq!(event.level, EventLevel::Normal);
    assert_eq!(event.log, "the run is suspended and has no pod", "the log has no text of a person");
    assert_eq!(
        event.note,
        "the run is suspended and has no pod; suspended by kubectl-patch; reason: the model is too expensive"
    );
    // The annotation belongs to a later change.
    let later = given.status_written().operating_mode_written(Some("wrong mailbox"));
    assert_eq!(later.decide().status.suspend, decision.status.suspend);
    // Another suspend has another reason.
    let again = later.suspend(5, None).decide().status.suspend.unwrap();
    assert_eq!(again.reason.as_deref(), Some("wrong mailbox"));
    let unknown = run().suspended().suspend(90, None).decide();
    assert_eq!(unknown.events[0].note, "the run is suspended and has no pod");
}

#[test]
fn a_suspended_run_stays_suspended_while_the_store_is_unavailable() {
    let given = parked(600).status_written();
    let before = given.run.status.clone().unwrap();
    let unavailable = given.clone().store_unavailable().status_written();
    let status = unavailable.run.status.clone().unwrap();
    assert_eq!((status.summary, &status.suspend), (Some(Summary::Suspended), &before.suspend));
    let row = given.row.clone();
    let back = Given { row, ..unavailable }.store_available();
    check_all(vec![
        case(
            "the store is unavailable",
            given.store_unavailable(),
            expect_status(Summary::Suspended, Reason::StoreUnavailable)
                .condition(Suspended, "True", Reason::Suspended)
                .condition(Ready, "Unknown", Reason::StoreUnavailable)
                .events(&[&Reason::StoreUnavailable]),
        ),
        case("the store is available again", back, suspended().events(&[])),
    ]);
}
