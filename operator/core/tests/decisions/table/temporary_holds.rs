//! Holds that end by themselves, and how long they last.

use dalsegno_core::settings::Settings;
use dalsegno_core::temporary_holds::{StartTemplate, find_start_hold};
use dalsegno_crds::ConditionType::Held;
use dalsegno_crds::{Cause, Reason, Summary};
use serde_json::json;

use crate::fixtures::{
    Given, ago, case, check_all, disrupted, expect_effect, expect_finish, expect_status, neutral, run,
};

/// So many attempts in a row did not attach. The last one ended this many seconds ago.
fn never_attached(attempts: i32, seconds_ago: i64) -> Given {
    let given = run().reserved(attempts + 1);
    (1..=attempts)
        .rev()
        .take(11)
        .fold(given, |given, number| given.after(neutral(number, Cause::ImageUnavailable).ago(seconds_ago)))
}

/// So many disruptions in a row without progress, one in this many seconds. The last one ended 5 s ago.
fn evicted(disruptions: i32, seconds: i64) -> Given {
    let given = run().reserved(disruptions + 1).disruptions(disruptions, disruptions);
    (1..=disruptions).rev().take(11).fold(given, |given, number| {
        let age = 5 + i64::from(disruptions - number) * seconds;
        given.after(disrupted(number, Cause::Evicted).ago(age))
    })
}

#[test]
fn a_hold_whose_cause_may_end_without_a_person_ends_by_itself() {
    let fail = json!({ "onExhausted": "Fail" });
    check_all(vec![
        case(
            "three attempts that never attached hold the run for a minute, and the status says until when",
            never_attached(3, 5),
            expect_status(Summary::Held, Reason::CannotStart)
                .condition(Held, "True", Reason::CannotStart)
                .message_contains("The next try is at 2026-11-20T12:00:"),
        ),
        case(
            "a name that a deleted run still has does not make the pause longer",
            {
                let mut given = never_attached(3, 60).reserved(5);
                given.row.past.insert(0, neutral(4, Cause::NameInUse).ago(1).0);
                given
            },
            expect_effect("create triage-5"),
        ),
        case("after the pause one attempt starts", never_attached(3, 60), expect_effect("create triage-4")),
        case(
            "a further failure doubles the pause",
            never_attached(4, 90),
            expect_status(Summary::Held, Reason::CannotStart),
        ),
        case("and after it one attempt starts", never_attached(4, 120), expect_effect("create triage-5")),
        case(
            "no pause is longer than 30 minutes",
            never_attached(30, 1_800),
            expect_effect("create triage-31"),
        ),
        case(
            "ten disruptions over a long time hold the run",
            evicted(10, 90),
            expect_status(Summary::Held, Reason::DisruptionsExhausted).message_contains("The next try is at"),
        ),
        case(
            "ten quick disruptions, as of one roll-out of nodes, do not hold the run",
            evicted(10, 40),
            expect_status(Summary::BackingOff, Reason::Disrupted),
        ),
        case(
            "a limit in the spec counts at once",
            evicted(2, 1).recovery(json!({ "maxDisruptionsWithoutProgress": 2 })),
            expect_status(Summary::Held, Reason::DisruptionsExhausted),
        ),
        case(
            "disruptions that the row does not show any more are not quick",
            evicted(12, 1),
            expect_status(Summary::Held, Reason::DisruptionsExhausted),
        ),
        case(
            "with onExhausted: Fail the run fails, however long ago the last disruption was",
            run()
                .reserved(4)
                .disruptions(10, 10)
                .after(disrupted(3, Cause::Evicted).ago(9_000))
                .recovery(fail),
            expect_finish(
                4,
                Cause::Finished,
                dalsegno_model::RunOutcome::Failed,
                Reason::DisruptionsExhausted,
            ),
        ),
        case(
            "a total that a person has set holds the run until a person raises it",
            run()
                .reserved(4)
                .disruptions(6, 0)
                .after(disrupted(3, Cause::Evicted).ago(9_000))
                .recovery(json!({ "maxDisruptions": 5 })),
            expect_status(Summary::Held, Reason::DisruptionsExhausted),
        ),
    ]);
}

#[test]
fn the_pauses_grow_from_one_minute_to_thirty() {
    for (failures, minutes) in [(3, 1), (4, 2), (5, 4), (6, 8), (7, 16), (8, 30), (11, 30)] {
        let given = never_attached(failures, 0);
        let settings = Settings::of(&given.run, &given.seen.agent);
        let template = StartTemplate { revision: &given.document().hash(), pinned: false };
        let until = find_start_hold(&given.row, &settings, template).and_then(|it| it.retry_at).unwrap();
        let pause = until.duration_since(ago(0)).as_secs();
        assert!((minutes * 48..=minutes * 60).contains(&pause), "{failures} failures: {pause} s");
    }
}

#[test]
fn the_status_shows_the_time_of_the_next_try_and_the_decision_wakes_for_it() {
    let decision = never_attached(3, 5).decide();
    let recovery = decision.status.recovery.unwrap();
    assert!(recovery.next_attempt_time.is_some_and(|at| at.0 > ago(0)));
    assert!(decision.requeue.is_some_and(|after| (43..=56).contains(&after.as_secs())));
}
