//! The delay before the next attempt: it doubles, has an upper bound, and has a jitter that every operator computes
//! alike.

use dalsegno_core::recovery::{find_hold, next_attempt_time, recovery_reason};
use dalsegno_core::settings::Settings;
use dalsegno_crds::ConditionType::{Ready, WorkerReady};
use dalsegno_crds::{Cause, Reason, Summary};
use serde_json::json;

use crate::fixtures::{
    Case, Given, PastAttempt, ago, case, check_all, crashed, disrupted, expect_effect, expect_status,
    neutral, run,
};

#[test]
fn the_next_attempt_waits_for_its_backoff() {
    check_all(vec![
        case(
            "the status of a run that backs off shows the time of the next attempt and the cause",
            run().reserved(4).head(7).crashes(2, 2).after(crashed(3, Cause::OOMKilled).ago(0)),
            expect_status(Summary::BackingOff, Reason::OutOfMemory).condition(WorkerReady, "False", Reason::BackingOff).message_contains(
                "attempt 3 ended before its first turn: OOMKilled: last words; attempt 4 starts at 2026-11-20T12:00:0",
            ),
        ),
        case(
            "a run that recovers within its limits stays Ready",
            run()
                .attached(3)
                .head(7)
                .pod(crate::fixtures::pod(3))
                .status_written()
                .reserved(4)
                .crashes(1, 1)
                .after(crashed(3, Cause::OOMKilled).attached(50).ago(0)),
            expect_status(Summary::BackingOff, Reason::OutOfMemory).deletes_pod("triage-3").condition(
                Ready,
                "True",
                Reason::OutOfMemory,
            ),
        ),
        case(
            "after the delay the pod is created",
            run().reserved(4).crashes(2, 2).after(crashed(3, Cause::OOMKilled).ago(2)),
            expect_effect("create triage-4"),
        ),
    ]);
    check_all(delays_by_cause());
}

fn delays_by_cause() -> Vec<Case> {
    let just = |past: PastAttempt| run().reserved(4).head(7).after(past.ago(0));
    let waits = |why| expect_status(Summary::BackingOff, why);
    vec![
        case(
            "after a crash with progress, the first delay applies",
            just(crashed(3, Cause::OOMKilled)).crashes(9, 0),
            waits(Reason::OutOfMemory),
        ),
        case(
            "after the first disruption there is no delay",
            just(disrupted(3, Cause::Evicted)).disruptions(1, 1),
            expect_effect("create triage-4"),
        ),
        case(
            "after a disruption with progress there is no delay",
            just(disrupted(3, Cause::Evicted)).disruptions(8, 0),
            expect_effect("create triage-4"),
        ),
        case(
            "after the second disruption in a row there is a delay",
            just(disrupted(3, Cause::Evicted)).disruptions(2, 2),
            waits(Reason::Disrupted),
        ),
        case(
            "after an attempt that never attached there is a delay",
            just(neutral(3, Cause::StartDeadline)),
            waits(Reason::DidNotStart),
        ),
        case(
            "after a refused version there is no delay",
            just(neutral(3, Cause::VersionIncompatible)),
            expect_effect("create triage-4"),
        ),
        case(
            "after a taken name there is no delay",
            just(neutral(3, Cause::NameTaken)),
            expect_effect("create triage-4"),
        ),
        case(
            "after an adoption there is no delay",
            just(neutral(3, Cause::Adopted)),
            expect_effect("create triage-4"),
        ),
        case(
            "after a crash during an outage of the gateways, the first delay applies",
            just(neutral(3, Cause::ExitedWithError).exit_code(1)).crashes(2, 2),
            waits(Reason::Recovering),
        ),
        case(
            "a delay of 0 means no delay",
            just(crashed(3, Cause::OOMKilled))
                .crashes(1, 1)
                .recovery(json!({ "backoff": { "initialSeconds": 0 } })),
            expect_effect("create triage-4"),
        ),
    ]
}

/// A model API that fails for ten minutes must not hold the runs that need it.
#[test]
fn the_built_in_budget_outlasts_ten_minutes_of_fast_crashes() {
    let mut given = run();
    given.run.spec.recovery = None;
    let settings = Settings::of(&given.run, &given.seen.agent);
    let mut waited = jiff::SignedDuration::ZERO;
    for crashes in 1..settings.max_attempts_without_progress {
        let given = given.clone().reserved(crashes + 1).crashes(crashes, crashes);
        let given = given.after(crashed(crashes, Cause::ExitedWithError).ago(0));
        assert_eq!(find_hold(&given.row, &settings, "null"), None, "{crashes} crashes");
        let at = next_attempt_time(&given.row, &settings).expect("a delay");
        waited += at.duration_since(ago(0));
    }
    assert!(waited > jiff::SignedDuration::from_mins(14), "{waited:?}");
    let last = settings.max_attempts_without_progress;
    let given =
        given.reserved(last + 1).crashes(last, last).after(crashed(last, Cause::ExitedWithError).ago(0));
    assert_eq!(find_hold(&given.row, &settings, "null").map(|hold| hold.reason), Some(Reason::RecoveryLoop));
}

#[test]
fn during_the_delay_the_reason_names_the_end_of_the_last_attempt() {
    let ends = [
        (crashed(3, Cause::ExitedWithError), Reason::Crashed),
        (crashed(3, Cause::NodePressure), Reason::Crashed),
        (crashed(3, Cause::OOMKilled), Reason::OutOfMemory),
        (crashed(3, Cause::Silent), Reason::WorkerSilent),
        (crashed(3, Cause::ProgressDeadline), Reason::NoProgress),
        (disrupted(3, Cause::Evicted), Reason::Disrupted),
        (disrupted(3, Cause::NodeLost), Reason::NodeLost),
        (neutral(3, Cause::StartDeadline), Reason::DidNotStart),
        (neutral(3, Cause::ImageUnavailable), Reason::DidNotStart),
        (neutral(3, Cause::VersionIncompatible), Reason::VersionRefused),
        (neutral(3, Cause::NameTaken), Reason::NameTaken),
        (neutral(3, Cause::Adopted), Reason::Recovering),
    ];
    for (end, reason) in ends {
        let row = run().reserved(4).after(end).row;
        assert_eq!(recovery_reason(&row), Some(reason));
    }
    assert_eq!(recovery_reason(&run().row), None, "a first attempt has no previous end");
}

/// The delay in milliseconds. The last attempt ended 10 s ago.
fn delay(given: &Given) -> i128 {
    let settings = Settings::of(&given.run, &given.seen.agent);
    let at = next_attempt_time(&given.row, &settings).unwrap();
    at.duration_since(ago(10)).as_millis()
}

fn nth_crash(in_a_row: i32, attempt: i32) -> Given {
    run().reserved(attempt).crashes(in_a_row, in_a_row).after(crashed(attempt - 1, Cause::ExitedWithError))
}

#[test]
fn the_delay_doubles_up_to_its_bound_and_the_jitter_shortens_it_by_at_most_a_fifth() {
    for in_a_row in 1..60 {
        for attempt in 2..40 {
            let doubled = 1_000_i128 << (in_a_row - 1).min(30);
            let most = doubled.min(300_000);
            let found = delay(&nth_crash(in_a_row, attempt));
            assert!((most * 8 / 10..=most).contains(&found), "{in_a_row} in a row: {found} of {most} ms");
        }
    }
}

#[test]
fn the_jitter_is_deterministic_and_differs_between_attempts() {
    let delays: Vec<i128> = (2..40).map(|attempt| delay(&nth_crash(9, attempt))).collect();
    assert_eq!(delays, (2..40).map(|attempt| delay(&nth_crash(9, attempt))).collect::<Vec<_>>());
    let different: std::collections::BTreeSet<_> = delays.iter().collect();
    assert!(different.len() > 20, "{delays:?}");
}

#[test]
fn the_bounds_come_from_the_spec() {
    let given = |initial: i32, max: i32| {
        let backoff = json!({ "backoff": { "initialSeconds": initial, "maxSeconds": max } });
        delay(&nth_crash(3, 4).recovery(backoff))
    };
    assert!((16_000..=20_000).contains(&given(5, 900)));
    assert!((8_000..=10_000).contains(&given(5, 10)));
    assert!((2_400..=3_000).contains(&given(60, 3)), "maxSeconds wins over a larger initialSeconds");
}
