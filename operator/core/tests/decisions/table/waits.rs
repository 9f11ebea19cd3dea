//! Runs that wait: parked, woken, timed out, slowed down.

use dalsegno_crds::ConditionType::{
    Finished, Held, Ready, Reconciling, Stalled, Suspended, Waiting, WorkerReady,
};
use dalsegno_crds::{Cause, Reason, Summary, find_condition};
use dalsegno_model::{AttemptState, OpenWait, ParkedOn, RunOutcome};
use dalsegno_protocol::{OnTimeout, ParkMode, Policy, WaitKind};

use crate::fixtures::{
    Case, Expect, Given, PastAttempt, ago, case, check_all, crashed, expect_effect, expect_end,
    expect_status, now, pod, run,
};

#[test]
fn a_waiting_run_holds_no_pod_in_every_stage() {
    check_all(parked_runs());
}

#[test]
fn a_parked_run_is_held_when_its_deadline_says_so() {
    check_all(timed_out());
}

#[test]
fn the_store_settles_what_is_due_and_nothing_else() {
    check_all(due());
}

#[test]
fn a_worker_that_waits_and_does_not_park_is_parked() {
    check_all(unattended());
}

#[test]
fn parks_in_a_row_without_progress_slow_the_next_pod() {
    check_all(slowed());
}

#[test]
fn the_status_shows_at_most_eight_of_the_waits_that_the_run_is_parked_on() {
    let mut given = waiting(&[WaitKind::Until]);
    given.row.waits = (1..=10).map(|number| wait(number, WaitKind::Approval)).collect();
    given.row.park.as_mut().unwrap().on = (1..=9).map(|number| format!("wait-{number}")).collect();
    given.row.waits[0].deadline_at = Some(now());
    given.row.parks_without_progress = 2;
    let status = given.decide().status;
    let shown = status.waiting.unwrap();
    let ids: Vec<_> = shown.waits.iter().map(|it| it.id.as_str()).collect();
    assert_eq!(ids, ["wait-1", "wait-2", "wait-3", "wait-4", "wait-5", "wait-6", "wait-7", "wait-8"]);
    assert_eq!(shown.waits[0].kind, dalsegno_crds::WaitKind::Approval);
    assert!(shown.waits[0].deadline.is_some() && shown.since.is_some());
    assert_eq!(status.recovery.unwrap().parks_without_progress, 2);
    assert!(find_condition(&status.conditions, Waiting).is_some());
}

/// An open wait of attempt 3, opened 60 s ago.
fn wait(number: i64, kind: WaitKind) -> OpenWait {
    OpenWait {
        id: format!("wait-{number}"),
        epoch: 1,
        ordinal: number,
        kind,
        turn: 8,
        attempt: 3,
        opened_at: ago(60),
        deadline_at: None,
        on_timeout: OnTimeout::Answer,
        timed_out_at: None,
        wake_at: None,
        provider: None,
        topic: None,
        proposal_hash: None,
    }
}

/// Attempt 3 parked 50 s ago on one wait of each of these kinds.
fn waiting(kinds: &[WaitKind]) -> Given {
    let mut given = run().attached(3).head(7).pod(pod(3)).status_written();
    given.seen.pods.clear();
    let mut past = PastAttempt::parked(3, 50);
    past.0.end.as_mut().unwrap().cause = Cause::Parked;
    let mut given = given.reserved(4).after(past);
    given.row.waits = (1..).zip(kinds).map(|(number, kind)| wait(number, *kind)).collect();
    let on = given.row.waits.iter().map(|wait| wait.id.clone()).collect();
    given.row.park = Some(ParkedOn { on, mode: ParkMode::All, at: ago(50) });
    given
}

fn expect_waiting(reason: Reason) -> Expect {
    expect_status(Summary::Waiting, reason)
        .condition(Waiting, "True", reason)
        .condition(Ready, "True", reason)
        .condition(WorkerReady, "False", Reason::NoWorker)
        .condition(Held, "False", Reason::NotHeld)
        .condition(Finished, "False", Reason::Running)
        .no_condition(Stalled)
        .no_condition(Reconciling)
}

fn parked_runs() -> Vec<Case> {
    vec![
        case(
            "a run that waits for a person",
            waiting(&[WaitKind::Approval]),
            expect_waiting(Reason::Approval).events(&[&Cause::Parked]),
        ),
        case(
            "a waiting run is not looked at again",
            waiting(&[WaitKind::Until]).status_written(),
            expect_waiting(Reason::Until).events(&[]),
        ),
        case(
            "a person comes first of several",
            waiting(&[WaitKind::RateLimit, WaitKind::Message, WaitKind::Approval]),
            expect_waiting(Reason::Approval),
        ),
        case("a message", waiting(&[WaitKind::Message]), expect_waiting(Reason::Message)),
        case("a rate limit", waiting(&[WaitKind::RateLimit]), expect_waiting(Reason::RateLimit)),
        case(
            "the pod of the worker that parked has time to exit",
            {
                let mut given = waiting(&[WaitKind::Until]).pod(pod(3));
                given.row.past[0].ended_at = Some(ago(10));
                given
            },
            expect_waiting(Reason::Until).requeue_after(20),
        ),
        case(
            "and no longer",
            waiting(&[WaitKind::Until]).pod(pod(3)),
            expect_waiting(Reason::Until).deletes_pod("triage-3"),
        ),
        case(
            "a suspended run that waits is suspended",
            waiting(&[WaitKind::Until]).suspended().suspend(40, None),
            expect_status(Summary::Suspended, Reason::Suspended)
                .condition(Suspended, "True", Reason::Suspended)
                .condition(Waiting, "False", Reason::Suspended),
        ),
        case(
            "a held run that waits is held",
            waiting(&[WaitKind::Until]).unsettled(Policy::Ask, 1).calls_to_settle(&["pay"]),
            expect_status(Summary::Held, Reason::EffectUnknown)
                .condition(Waiting, "False", Reason::Held)
                .condition(Stalled, "True", Reason::EffectUnknown),
        ),
        case(
            "a cancelled run ends at once",
            waiting(&[WaitKind::Until]).cancelled().cancel(5, None),
            crate::fixtures::expect_finish(4, Cause::Cancelled, RunOutcome::Cancelled, Reason::Cancelled),
        ),
        case(
            "a run that waits is waiting and not backing off",
            waiting(&[WaitKind::Until]).after(crashed(2, Cause::OOMKilled).ago(1)).crashes(1, 1),
            expect_waiting(Reason::Until),
        ),
        case("a run whose waits are answered goes on", woken(0), expect_effect("create triage-4")),
    ]
}

/// A run that was parked so many times in a row without progress, and whose wait is answered.
fn woken(parks: i32) -> Given {
    let mut given = waiting(&[WaitKind::Until]);
    (given.row.waits, given.row.park, given.row.parks_without_progress) = (Vec::new(), None, parks);
    given
}

fn timed_out() -> Vec<Case> {
    let held = |on: &[&str]| {
        let mut given = waiting(&[WaitKind::Message, WaitKind::Until]);
        given.row.waits[0].on_timeout = OnTimeout::Hold;
        given.row.waits[0].timed_out_at = Some(ago(5));
        given.row.park.as_mut().unwrap().on = on.iter().map(|id| (*id).to_owned()).collect();
        given
    };
    vec![
        case(
            "the deadline of a wait that the run is parked on",
            held(&["wait-1"]),
            expect_status(Summary::Held, Reason::WaitTimedOut)
                .condition(Held, "True", Reason::WaitTimedOut)
                .condition(Waiting, "False", Reason::Held)
                .message_contains("wait-1"),
        ),
        case("of another wait", held(&["wait-2"]), expect_waiting(Reason::Until)),
    ]
}

fn due() -> Vec<Case> {
    let with_time = |wake_at: i64| {
        let mut given = waiting(&[WaitKind::Until]);
        given.row.waits[0].wake_at = Some(ago(wake_at));
        given.row.wake_at = Some(ago(wake_at));
        given
    };
    let with_deadline = |kind: WaitKind, on_timeout: OnTimeout| {
        let mut given = waiting(&[kind]);
        given.row.waits[0].deadline_at = Some(ago(1));
        given.row.waits[0].on_timeout = on_timeout;
        given.row.wake_at = Some(ago(1));
        given
    };
    vec![
        case("a time that has come", with_time(0), expect_effect("settle time")),
        case("a time that has not come", with_time(-5), expect_waiting(Reason::Until)),
        case("of a suspended run", with_time(0).suspended().suspend(40, None), expect_effect("settle time")),
        case(
            "of a run with a worker",
            {
                let mut given = with_time(0);
                given.row.park = None;
                given.row.past.clear();
                given.attached(3).head(7).heartbeat(2).pod(pod(3))
            },
            expect_effect("settle time"),
        ),
        case(
            "a deadline that has passed",
            with_deadline(WaitKind::Message, OnTimeout::Fail),
            expect_effect("settle time"),
        ),
        case(
            "the deadline of an approval is the operator's to look at",
            with_deadline(WaitKind::Approval, OnTimeout::Answer),
            expect_waiting(Reason::Approval),
        ),
        case(
            "a rate limit that another run has moved",
            {
                let mut given = with_time(0);
                given.row.waits[0].wake_at = Some(ago(-60));
                given
            },
            expect_effect("settle time"),
        ),
    ]
}

fn unattended() -> Vec<Case> {
    let silent = |opened: i64, committed: i64| {
        let mut given =
            run().attached(3).head(7).heartbeat(2).pod(pod(3)).attached_ago(9_000).committed(committed);
        given.row.waits = vec![OpenWait { opened_at: ago(opened), ..wait(1, WaitKind::Approval) }];
        assert_eq!(given.row.attempt.state, AttemptState::Attached);
        given
    };
    vec![
        case(
            "a wait that was opened since the last boundary",
            silent(3_000, 4_000),
            expect_effect("park attempt 3"),
        ),
        case(
            "an older wait excuses nothing",
            silent(5_000, 4_000),
            expect_end(3, Cause::ProgressDeadline, dalsegno_model::Class::Crash),
        ),
        case(
            "a worker that still has time",
            silent(100, 200),
            expect_status(Summary::Running, Reason::UnderControl).no_condition(Waiting),
        ),
    ]
}

fn slowed() -> Vec<Case> {
    let ended = |parks: i32, seconds: i64| {
        let mut given = woken(parks);
        given.row.past[0].ended_at = Some(ago(seconds));
        given
    };
    let slowed = || expect_status(Summary::BackingOff, Reason::Recovering);
    vec![
        case("the second", ended(2, 1), expect_effect("create triage-4")),
        case("the third", ended(3, 4), slowed().requeue_after(6)),
        case("the third, after 10 s", ended(3, 11), expect_effect("create triage-4")),
        case("the fifth", ended(5, 4), slowed().requeue_after(36)),
        case("at most five minutes", ended(40, 290), slowed().requeue_after(10)),
        case("a long wait before has slowed it enough", ended(40, 301), expect_effect("create triage-4")),
    ]
}
