//! When a run gets no further pod until a person does something, and what lifts a hold.

use dalsegno_crds::ConditionType::{Held, Ready, Stalled};
use dalsegno_crds::{Cause, Reason, Summary};
use dalsegno_protocol::Policy;
use serde_json::json;

use crate::fixtures::{
    Case, Given, case, check_all, crashed, disrupted, expect_effect, expect_status, neutral, pod, run,
};

pub fn cases() -> Vec<Case> {
    [budgets(), what_lifts_them(), other_reasons(), order()].into_iter().flatten().collect()
}

#[test]
fn a_run_is_held_at_its_limits_and_says_the_way_out() {
    check_all(cases());
}

/// Attempt 4 is reserved after turn 7; the last one crashed long enough ago.
fn after_crash() -> Given {
    run()
        .reserved(4)
        .head(7)
        .after(crashed(3, Cause::ExitedWithError).after_turn(7).message("exit code 1: boom").ago(900))
}

fn after_eviction() -> Given {
    run().reserved(4).head(7).after(disrupted(3, Cause::Evicted).after_turn(7).ago(900))
}

fn budgets() -> Vec<Case> {
    let fail = || after_crash().recovery(json!({ "onExhausted": "Fail" }));
    vec![
        case("two crashes in a row without progress are recovered", after_crash().crashes(2, 2), expect_effect("create triage-4")),
        case(
            "the third is a recovery loop: cause, turn, last lines and way out are told",
            after_crash().crashes(3, 3),
            expect_status(Summary::Held, Reason::RecoveryLoop)
                .message_contains("3 attempt(s) in a row made no progress after turn 7")
                .message_contains("attempt 3 ended after turn 7: ExitedWithError: exit code 1: boom. Read status.recovery.history")
                .message_contains("raise spec.recovery.resetGeneration")
                .condition(Held, "True", Reason::RecoveryLoop)
                .condition(Stalled, "True", Reason::RecoveryLoop)
                .condition(Ready, "False", Reason::Held),
        ),
        case(
            "a limit of 1 holds at the first",
            after_crash().crashes(1, 1).recovery(json!({ "maxAttemptsWithoutProgress": 1 })),
            expect_status(Summary::Held, Reason::RecoveryLoop),
        ),
        case("20 crashes with progress are recovered", after_crash().crashes(20, 0), expect_effect("create triage-4")),
        case(
            "the 21st is one too many",
            after_crash().crashes(21, 0),
            expect_status(Summary::Held, Reason::RecoveryAttemptsExhausted).message_contains("21 crash(es), and at most 20 are recovered; attempt 3"),
        ),
        case(
            "with a limit of 0 the first crash is one too many",
            after_crash().crashes(1, 0).recovery(json!({ "maxRecoveryAttempts": 0 })),
            expect_status(Summary::Held, Reason::RecoveryAttemptsExhausted),
        ),
        case("nine disruptions in a row are recovered", after_eviction().disruptions(9, 9), expect_effect("create triage-4")),
        case(
            "the tenth is one too many",
            after_eviction().disruptions(10, 10),
            expect_status(Summary::Held, Reason::DisruptionsExhausted).message_contains("10 disruption(s) in a row").message_contains("Evicted: last words"),
        ),
        case("disruptions with progress are not limited", after_eviction().disruptions(900, 0), expect_effect("create triage-4")),
        case(
            "unless a limit is set",
            after_eviction().disruptions(6, 0).recovery(json!({ "maxDisruptions": 5 })),
            expect_status(Summary::Held, Reason::DisruptionsExhausted).message_contains("6 disruption(s), and at most 5 are recovered"),
        ),
        case(
            "up to that limit they are recovered",
            after_eviction().disruptions(5, 0).recovery(json!({ "maxDisruptions": 5 })),
            expect_effect("create triage-4"),
        ),
        case(
            "a run that shall fail when its budget is spent does so",
            fail().crashes(3, 3),
            expect_effect("end 4: Finished, Neutral, then finish Failed RecoveryLoop"),
        ),
        case(
            "and when its disruptions are",
            fail().disruptions(10, 10),
            expect_effect("end 4: Finished, Neutral, then finish Failed DisruptionsExhausted"),
        ),
    ]
}

fn what_lifts_them() -> Vec<Case> {
    let held = || after_crash().crashes(3, 3);
    vec![
        case(
            "a raised limit lifts the hold at once",
            held().recovery(json!({ "maxAttemptsWithoutProgress": 4 })),
            expect_effect("create triage-4"),
        ),
        case(
            "so does a limit that is raised in the definition",
            held().defaults(json!({ "recovery": { "maxAttemptsWithoutProgress": 4 } })),
            expect_effect("create triage-4"),
        ),
        case(
            "a raised reset generation is granted once",
            held().recovery(json!({ "resetGeneration": 1 })),
            expect_effect("reset budget 0 to 1"),
        ),
        case(
            "the same number grants nothing more",
            held().budget_reset(1, 0).recovery(json!({ "resetGeneration": 1 })),
            expect_status(Summary::Held, Reason::RecoveryLoop),
        ),
        case(
            "a lower one, as Git may write it back, does nothing",
            held().budget_reset(5, 0).recovery(json!({ "resetGeneration": 4 })),
            expect_status(Summary::Held, Reason::RecoveryLoop),
        ),
        case(
            "a granted budget forgives the totals",
            after_crash().crashes(30, 0).budget_reset(1, 4),
            expect_effect("create triage-4"),
        ),
        case(
            "and is spent again",
            {
                let mut it = after_crash().crashes(9, 0).budget_reset(1, 3);
                it.row.counters.recovery_attempts = 30;
                it
            },
            expect_status(Summary::Held, Reason::RecoveryAttemptsExhausted).message_contains("21 crash(es)"),
        ),
        case(
            "a running attempt is not touched by a limit",
            run().attached(3).head(7).crashes(30, 5).pod(pod(3)),
            expect_status(Summary::Running, Reason::UnderControl),
        ),
        case(
            "without the definition that may hold the limits none is judged",
            held().no_definition().recovery(json!({ "onExhausted": "Fail" })),
            expect_status(Summary::Held, Reason::AgentNotFound).requeue_after(60),
        ),
        case(
            "nor is any with one that cannot be read",
            held().malformed_definition("no image").recovery(json!({ "onExhausted": "Fail" })),
            expect_status(Summary::Held, Reason::Malformed).requeue_after(60),
        ),
        case(
            "a worker that is attached works on, whatever became of its definition",
            run().attached(3).head(7).pod(pod(3)).malformed_definition("no image"),
            expect_status(Summary::Running, Reason::UnderControl),
        ),
    ]
}

fn other_reasons() -> Vec<Case> {
    let fatal = || {
        run()
            .reserved(4)
            .head(7)
            .after(crashed(3, Cause::WorkerFatal).message("no such customer").after_turn(7))
    };
    let never = |n: i32, cause: Cause| neutral(n, cause).ago(9_000);
    let started = |causes: [Cause; 3]| {
        causes.into_iter().zip([3, 2, 1]).fold(run().reserved(4), |it, (cause, n)| it.after(never(n, cause)))
    };
    let input = |bytes: usize| run().spec(json!({ "input": "x".repeat(bytes - 2) }));
    let nested = |levels: usize| {
        let input = (0..levels).fold(json!(1), |inner, _| json!({ "a": inner }));
        run().spec(json!({ "input": input }))
    };
    vec![
        case(
            "a worker that said that nothing helps is not tried again",
            fatal(),
            expect_status(Summary::Held, Reason::WorkerFatal)
                .message_contains("attempt 3 ended after turn 7: WorkerFatal: no such customer"),
        ),
        case("until a budget is granted", fatal().budget_reset(1, 3), expect_effect("create triage-4")),
        case(
            "a call whose outcome only a person can find out holds the run before any pod",
            after_eviction().unsettled(Policy::Ask, 2),
            expect_status(Summary::Held, Reason::EffectUnknown)
                .message_contains("2 call(s) with policy `ask`")
                .message_contains("dalsegno settle"),
        ),
        case(
            "calls with another policy do not",
            after_eviction()
                .unsettled(Policy::Probe, 2)
                .unsettled(Policy::RetrySameKey, 1)
                .unsettled(Policy::ReadOnly, 1),
            expect_effect("create triage-4"),
        ),
        case(
            "a key that a tool refused holds the run, whatever the call's policy",
            after_eviction().keys_refused(1).unsettled(Policy::Ask, 1),
            expect_status(Summary::Held, Reason::KeyRefused)
                .message_contains("a tool refused the idempotency key of 1 call(s)")
                .message_contains("dalsegno settle"),
        ),
        case("an input of 32 KiB is carried", input(32 << 10), expect_effect("create triage-1")),
        case(
            "a larger one is held before the first pod",
            input((32 << 10) + 1),
            expect_status(Summary::Held, Reason::InputTooLarge)
                .message_contains("32769 bytes, and at most 32768"),
        ),
        case("an input of 64 levels is carried", nested(64), expect_effect("create triage-1")),
        case(
            "a deeper one is held before the first pod",
            nested(65),
            expect_status(Summary::Held, Reason::InputTooLarge).message_contains("deeper than 64 levels"),
        ),
        case(
            "three attempts in a row that never attached are held",
            started([Cause::StartDeadline; 3]),
            expect_status(Summary::Held, Reason::CannotStart)
                .message_contains("3 attempts in a row never attached; attempt 3"),
        ),
        case(
            "whatever kept each of them from it",
            started([Cause::ImageUnavailable, Cause::StartDeadline, Cause::ImageUnavailable]),
            expect_status(Summary::Held, Reason::CannotStart),
        ),
        case(
            "one that attached begins the count anew",
            started([Cause::StartDeadline, Cause::Evicted, Cause::StartDeadline]),
            expect_effect("create triage-4"),
        ),
        case(
            "and so does a granted budget",
            started([Cause::StartDeadline; 3]).budget_reset(1, 3),
            expect_effect("create triage-4"),
        ),
        case(
            "ten names in a row that are taken are held",
            (2..12).rev().fold(run().reserved(12), |it, n| it.after(neutral(n, Cause::NameTaken))),
            expect_status(Summary::Held, Reason::NameCollision),
        ),
        case(
            "after nine the next is tried",
            (2..11).rev().fold(run().reserved(11), |it, n| it.after(neutral(n, Cause::NameTaken))),
            expect_effect("create triage-11"),
        ),
    ]
}

fn order() -> Vec<Case> {
    vec![
        case(
            "what no budget helps against is told before what one does",
            after_crash().crashes(21, 3).unsettled(Policy::Ask, 1),
            expect_status(Summary::Held, Reason::EffectUnknown),
        ),
        case(
            "a loop is told before a total",
            after_crash().crashes(21, 3),
            expect_status(Summary::Held, Reason::RecoveryLoop),
        ),
        case(
            "a held run waits for no time",
            run().reserved(4).head(7).crashes(3, 3).after(crashed(3, Cause::OOMKilled).ago(0)),
            expect_status(Summary::Held, Reason::RecoveryLoop).message_contains("OOMKilled"),
        ),
        case(
            "a loop tells of the last crash, not of a later disruption",
            run()
                .reserved(5)
                .crashes(3, 3)
                .after(disrupted(4, Cause::Evicted))
                .after(crashed(3, Cause::OOMKilled)),
            expect_status(Summary::Held, Reason::RecoveryLoop)
                .message_contains("attempt 3 ended after turn 0: OOMKilled"),
        ),
    ]
}
