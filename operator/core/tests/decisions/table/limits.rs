//! Runs with limits: before each pod, with a worker, and when a limit is raised.

use dalsegno_core::{Announcement, EventLevel};
use dalsegno_crds::ConditionType::{Held, Ready, Stalled, Suspended};
use dalsegno_crds::{Cause, EventReason, LimitName, LimitStatus, Reason, Summary};
use dalsegno_model::{AttemptState, Class};
use dalsegno_protocol::{Policy, Usage};
use serde_json::{Value, json};

use crate::fixtures::{
    Case, Expect, Given, ago, case, check_all, crashed, expect_effect, expect_end, expect_status, neutral,
    pod, run,
};

pub fn cases() -> Vec<Case> {
    [before_a_pod(), with_a_worker(), raised()].into_iter().flatten().collect()
}

#[test]
fn a_run_at_its_limit_is_held_and_goes_on_when_the_limit_is_raised() {
    check_all(cases());
}

/// A limit of the spec that the store has recorded.
fn limited(given: Given, limits: Value) -> Given {
    given.spec(json!({ "limits": limits }))
}

/// The run has used this much, in so many milliseconds of earlier attempts.
fn used(mut given: Given, tokens: i64, cost_micro_usd: i64, active_ms: i64) -> Given {
    given.row.usage =
        Usage { tokens_in: tokens / 2, tokens_out: tokens - tokens / 2, tool_calls: 3, cost_micro_usd };
    given.row.active_ms = active_ms;
    given
}

/// A limit of turns, tokens or cost was reached this many seconds ago.
fn reached(mut given: Given, seconds_ago: i64) -> Given {
    given.row.limit_reached_at = Some(ago(seconds_ago));
    given
}

/// The worker of attempt 3 committed turn 7.
fn working() -> Given {
    run().attached(3).head(7).heartbeat(2).pod(pod(3))
}

/// Attempt 4 is reserved, after turn 7.
fn waiting() -> Given {
    run().head(7).reserved(4).after(neutral(3, Cause::LimitReached).attached(300).ago(5))
}

fn held() -> Expect {
    expect_status(Summary::Held, Reason::LimitReached)
        .condition(Held, "True", Reason::LimitReached)
        .condition(Stalled, "True", Reason::LimitReached)
}

fn before_a_pod() -> Vec<Case> {
    vec![
        case(
            "the limits are recorded before the first pod",
            {
                let mut given = run();
                given.run.spec.limits.get_or_insert_default().turns = Some(20);
                given
            },
            expect_effect("set limits: turns 20"),
        ),
        case(
            "each limit of the run comes before the definition's",
            {
                let defaults = json!({ "limits": { "turns": 9, "tokens": 9, "activeSeconds": 9 } });
                let mut given = limited(run().defaults(defaults), json!({ "turns": 20, "costMicroUSD": 5 }));
                given.row.limits = Default::default();
                given
            },
            expect_effect("set limits: turns 20 tokens 9 costMicroUSD 5 activeSeconds 9000"),
        ),
        case(
            "without the definition no limit is changed",
            {
                let mut given = limited(working(), json!({ "turns": 20 })).no_definition();
                given.row.limits.turns = Some(10);
                given
            },
            expect_status(Summary::Running, Reason::UnderControl),
        ),
        case("a run below its limits goes on", limited(waiting(), json!({ "turns": 8 })), goes_on()),
        case(
            "turns",
            limited(waiting(), json!({ "turns": 7 })),
            held()
                .message_contains("the run has used 7 of limits.turns 7")
                .message_contains(r#"--patch '{"spec":{"limits":{"turns":14}}}'"#)
                .events(&[&EventReason::LimitNear, &Reason::LimitReached]),
        ),
        case(
            "tokens to and from models together",
            used(limited(waiting(), json!({ "tokens": 1_000 })), 1_001, 0, 0),
            held().message_contains("the run has used 1001 of limits.tokens 1000"),
        ),
        case(
            "cost",
            used(limited(waiting(), json!({ "costMicroUSD": 500 })), 0, 500, 0),
            held().message_contains("the run has used 500 of limits.costMicroUSD 500"),
        ),
        case(
            "active time of all attempts",
            used(limited(waiting(), json!({ "activeSeconds": 60 })), 0, 0, 60_000),
            held().message_contains("the run has used 60 of limits.activeSeconds 60"),
        ),
        case(
            "the time without a worker is no active time",
            used(limited(waiting(), json!({ "activeSeconds": 60 })), 0, 0, 59_999),
            goes_on(),
        ),
        case(
            "two limits at once are raised by one command",
            used(limited(waiting(), json!({ "turns": 7, "tokens": 10 })), 30, 0, 0),
            held().message_contains(r#"{"spec":{"limits":{"turns":14,"tokens":60}}}"#),
        ),
        case(
            "0 allows no attempt",
            limited(run(), json!({ "turns": 0 })),
            held().message_contains("the run has used 0 of limits.turns 0").events(&[&Reason::LimitReached]),
        ),
        case(
            "a call that must be settled comes first",
            limited(waiting(), json!({ "turns": 7 })).unsettled(Policy::Ask, 1).calls_to_settle(&["pay"]),
            expect_status(Summary::Held, Reason::EffectUnknown),
        ),
        case(
            "a run at its limit does not fail when its recovery is exhausted too",
            limited(
                run()
                    .head(7)
                    .reserved(4)
                    .crashes(21, 1)
                    .after(crashed(3, Cause::OOMKilled))
                    .recovery(json!({ "onExhausted": "Fail" })),
                json!({ "turns": 7 }),
            ),
            held(),
        ),
        case(
            "a suspended run at its limit is held",
            limited(waiting().suspended().suspend(9, Some(9)), json!({ "turns": 7 })),
            held().condition(Suspended, "False", Reason::Held),
        ),
        case(
            "a cancelled run at its limit ends",
            {
                let mut given = limited(waiting(), json!({ "turns": 7 })).cancelled();
                given.row.cancel = None;
                given
            },
            expect_effect("request cancel"),
        ),
    ]
}

fn goes_on() -> Expect {
    expect_effect("create triage-4")
}

fn with_a_worker() -> Vec<Case> {
    let at_limit = |seconds_ago| reached(limited(working(), json!({ "turns": 7 })), seconds_ago);
    let out_of_time = |limit| limited(working(), json!({ "activeSeconds": limit }));
    vec![
        case(
            "a worker has 30 s to exit",
            at_limit(30),
            expect_status(Summary::Running, Reason::UnderControl).condition(
                Ready,
                "True",
                Reason::UnderControl,
            ),
        ),
        case(
            "a worker that goes on is stopped, and not charged",
            at_limit(31),
            expect_end(3, Cause::LimitReached, Class::Neutral).message_contains("did not exit within 30 s"),
        ),
        case(
            "a worker that exits with 0 has not crashed",
            {
                let mut given = at_limit(5);
                given.seen.pods.clear();
                given.pod(pod(3).terminated(0))
            },
            expect_end(3, Cause::LimitReached, Class::Neutral).message_contains("its worker exited"),
        ),
        case(
            "a worker that exits with an error has crashed",
            {
                let mut given = at_limit(5);
                given.seen.pods.clear();
                given.pod(pod(3).terminated(1))
            },
            expect_end(3, Cause::ExitedWithError, Class::Crash),
        ),
        case(
            "a worker that exits with 0 below the limit has crashed",
            {
                let mut given = limited(working(), json!({ "turns": 8 }));
                given.seen.pods.clear();
                given.pod(pod(3).terminated(0))
            },
            expect_end(3, Cause::ExitedWithoutFinish, Class::Crash),
        ),
        case(
            "a worker that is alone with its last 30 s of active time",
            out_of_time(21),
            expect_status(Summary::Running, Reason::UnderControl),
        ),
        case(
            "a worker is stopped 30 s after the end of the active time",
            out_of_time(19),
            expect_end(3, Cause::LimitReached, Class::Neutral),
        ),
        case(
            "the active time of earlier attempts counts",
            used(out_of_time(79), 0, 0, 60_000),
            expect_end(3, Cause::LimitReached, Class::Neutral),
        ),
        case(
            "a worker that has not attached is stopped at once",
            limited(run().head(7).created(3).pod(pod(3)), json!({ "turns": 7 })),
            expect_end(3, Cause::LimitReached, Class::Neutral).message_contains("before its worker attached"),
        ),
        case(
            "a lost worker is a disruption at the limit too",
            {
                let mut given = at_limit(40);
                given.seen.pods.clear();
                given.pod(pod(3).gone())
            },
            expect_end(3, Cause::PodVanished, Class::Disruption),
        ),
    ]
}

fn raised() -> Vec<Case> {
    let held = || limited(waiting(), json!({ "turns": 7 })).status_written();
    vec![
        case(
            "the new limit is recorded",
            {
                let mut given = held();
                given.run.spec.limits.get_or_insert_default().turns = Some(14);
                given
            },
            expect_effect("set limits: turns 14"),
        ),
        case(
            "then the run goes on",
            limited(held(), json!({ "turns": 14 })),
            expect_effect("create triage-4"),
        ),
        case(
            "a removed limit lets the run go on too",
            limited(held(), json!(null)),
            expect_effect("create triage-4"),
        ),
        case(
            "a worker that was told before goes on",
            limited(working().status_written(), json!({ "turns": 14 })),
            expect_status(Summary::Running, Reason::UnderControl),
        ),
    ]
}

fn limits_of(given: &Given) -> Vec<LimitStatus> {
    given.decide().status.limits
}

#[test]
fn the_status_has_the_limits_that_are_set() {
    let limits = json!({ "turns": 20, "tokens": 100, "activeSeconds": 90 });
    let given = used(limited(working().committed(10), limits), 41, 7, 1_999);
    let status = |limit, used, max| LimitStatus { limit, used, max };
    let expected = [
        status(LimitName::Turns, 7, 20),
        status(LimitName::Tokens, 41, 100),
        // The worker attached 50 s ago and committed 10 s ago.
        status(LimitName::ActiveSeconds, 41, 90),
    ];
    assert_eq!(limits_of(&given), expected);
    assert_eq!(limits_of(&working()), []);
    // Without a boundary of the current attempt, only earlier attempts count.
    let given = used(limited(run().attached(3).pod(pod(3)), json!({ "activeSeconds": 90 })), 0, 0, 5_000);
    assert_eq!(limits_of(&given), [status(LimitName::ActiveSeconds, 5, 90)]);
}

#[test]
fn time_alone_changes_no_status() {
    let mut given = limited(working().committed(10), json!({ "activeSeconds": 900 })).status_written();
    given.row.now = ago(-5);
    given.row.beat.last = given.row.now;
    given.row.attempt.lease_renewed_at = Some(given.row.now);
    assert_eq!(Some(given.decide().status), given.run.status);
}

#[test]
fn one_event_says_that_a_limit_is_near() {
    let at = |turn, max: i64| {
        limited(run().attached(3).head(turn).heartbeat(2).pod(pod(3)), json!({ "turns": max }))
    };
    let near = |given: &Given| {
        let events = given.decide().events;
        events.into_iter().filter(|it| it.reason == EventReason::LimitNear.as_str()).collect::<Vec<_>>()
    };
    assert_eq!(near(&at(7, 10).status_written()), []);
    let given = at(7, 10).status_written();
    let crossed = Given { row: at(8, 10).row, ..given };
    let [event] = &near(&crossed)[..] else { panic!("{:?}", near(&crossed)) };
    assert_eq!(event.level, EventLevel::Warning);
    assert_eq!(event.note, "the run has used 8 of limits.turns 10, and is held when it reaches it");
    let later = Given { row: at(9, 10).row, ..crossed.status_written() };
    assert_eq!(near(&later), [], "once for each value of the limit");
    let raised = Given { row: at(9, 20).row, ..limited(later.status_written(), json!({ "turns": 20 })) };
    assert_eq!(near(&raised), []);
    let again = Given { row: at(16, 20).row, ..raised.status_written() };
    assert_eq!(near(&again).len(), 1, "once for each value of the limit");
}

#[test]
fn an_attempt_that_a_limit_stopped_before_it_attached_is_no_evidence() {
    let mut given = run().head(7).reserved(4);
    for number in [3, 2, 1] {
        given = given.after(neutral(number, Cause::LimitReached).ago(5));
    }
    assert!(given.row.past.iter().all(|it| it.state == AttemptState::Ended));
    check_all(vec![case("the run goes on", given, expect_effect("create triage-4"))]);
}

#[test]
fn a_hold_is_announced_until_the_store_has_it() {
    let held = limited(waiting(), json!({ "turns": 7 }));
    let notice = |of: &Given| match of.decide().announcement {
        Some(Announcement::Run(run, notice)) => Some((run, notice)),
        Some(Announcement::Object(hold)) => panic!("{hold:?}"),
        None => None,
    };
    let (run, first) = notice(&held).unwrap();
    assert_eq!((run, first.attempt, first.key.as_str()), (held.row.id, 4, "LimitReached, epoch 1"));
    let mut announced = held.clone();
    announced.row.announced = Some(first.key);
    assert_eq!(notice(&announced), None);
    announced.row.epoch = 3;
    let next = notice(&announced).map(|(_, notice)| notice.key);
    assert_eq!(next.as_deref(), Some("LimitReached, epoch 3"), "another attempt was made in between");
    assert_eq!(notice(&working()), None);
}
