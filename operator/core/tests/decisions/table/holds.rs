//! When a run is held until a person acts, and what lifts a hold.

use dalsegno_crds::ConditionType::{Held, Ready, Stalled};
use dalsegno_crds::{Cause, Reason, Summary};
use dalsegno_model::RunOutcome;
use dalsegno_protocol::Policy;
use serde_json::json;

use crate::fixtures::{
    Case, Given, case, check_all, crashed, disrupted, expect_effect, expect_finish, expect_status, neutral,
    pod, run,
};

pub fn cases() -> Vec<Case> {
    [budgets(), lifted_holds(), other_reasons(), start_failures(), order()].into_iter().flatten().collect()
}

#[test]
fn a_run_is_held_at_its_limits_with_a_remediation() {
    check_all(cases());
}

/// Attempt 4 is reserved after turn 7. The last attempt crashed, and its backoff is over.
fn after_crash() -> Given {
    run()
        .reserved(4)
        .head(7)
        .after(crashed(3, Cause::ExitedWithError).after_turn(7).message("exit code 1: boom").ago(900))
}

fn after_eviction() -> Given {
    run().reserved(4).head(7).after(disrupted(3, Cause::Evicted).after_turn(7).ago(30))
}

fn budgets() -> Vec<Case> {
    let fail = || after_crash().recovery(json!({ "onExhausted": "Fail" }));
    vec![
        case("two crashes in a row without progress are recovered", after_crash().crashes(2, 2), expect_effect("create triage-4")),
        case(
            "the third is a recovery loop, and the message has the cause, the turn, the last lines of the log and the remediation",
            after_crash().crashes(3, 3),
            expect_status(Summary::Held, Reason::RecoveryLoop)
                .message_contains("3 attempts in a row made no progress after turn 7")
                .message_contains("attempt 3 ended after turn 7: ExitedWithError: exit code 1: boom. Read status.recovery.history")
                .message_contains("raise spec.recovery.resetGeneration")
                .condition(Held, "True", Reason::RecoveryLoop)
                .condition(Stalled, "True", Reason::RecoveryLoop)
                .condition(Ready, "False", Reason::Held),
        ),
        case(
            "a limit of 1 holds the run at the first crash",
            after_crash().crashes(1, 1).recovery(json!({ "maxAttemptsWithoutProgress": 1 })),
            expect_status(Summary::Held, Reason::RecoveryLoop),
        ),
        case("20 crashes with progress are recovered", after_crash().crashes(20, 0), expect_effect("create triage-4")),
        case(
            "the 21st crash holds the run",
            after_crash().crashes(21, 0),
            expect_status(Summary::Held, Reason::RecoveryAttemptsExhausted).message_contains("21 crashes, and at most 20 are recovered; attempt 3"),
        ),
        case(
            "with a limit of 0 the first crash holds the run",
            after_crash().crashes(1, 0).recovery(json!({ "maxRecoveryAttempts": 0 })),
            expect_status(Summary::Held, Reason::RecoveryAttemptsExhausted),
        ),
        case(
            "nine disruptions in a row are recovered",
            run().reserved(4).after(disrupted(3, Cause::Evicted).ago(900)).disruptions(9, 9),
            expect_effect("create triage-4"),
        ),
        case(
            "the tenth disruption in a row holds the run",
            after_eviction().disruptions(10, 10),
            expect_status(Summary::Held, Reason::DisruptionsExhausted).message_contains("10 disruptions in a row").message_contains("Evicted: last words"),
        ),
        case("disruptions with progress are not limited", after_eviction().disruptions(900, 0), expect_effect("create triage-4")),
        case(
            "with a limit, disruptions with progress hold the run",
            after_eviction().disruptions(6, 0).recovery(json!({ "maxDisruptions": 5 })),
            expect_status(Summary::Held, Reason::DisruptionsExhausted).message_contains("6 disruptions, and at most 5 are recovered"),
        ),
        case(
            "up to that limit disruptions are recovered",
            after_eviction().disruptions(5, 0).recovery(json!({ "maxDisruptions": 5 })),
            expect_effect("create triage-4"),
        ),
        case(
            "with onExhausted: Fail a recovery loop fails the run",
            fail().crashes(3, 3),
            expect_finish(4, Cause::Finished, RunOutcome::Failed, Reason::RecoveryLoop),
        ),
        case(
            "with onExhausted: Fail too many disruptions fail the run",
            fail().disruptions(10, 10),
            expect_finish(4, Cause::Finished, RunOutcome::Failed, Reason::DisruptionsExhausted),
        ),
    ]
}

fn lifted_holds() -> Vec<Case> {
    let held = || after_crash().crashes(3, 3);
    vec![
        case(
            "a raised limit lifts the hold at once",
            held().recovery(json!({ "maxAttemptsWithoutProgress": 4 })),
            expect_effect("create triage-4"),
        ),
        case(
            "a limit that is raised in the definition lifts the hold",
            {
                let mut it = held();
                it.run.spec.recovery = None;
                it.defaults(json!({ "recovery": { "maxAttemptsWithoutProgress": 4 } }))
            },
            expect_effect("create triage-4"),
        ),
        case(
            "a raised reset generation is granted once",
            held().recovery(json!({ "resetGeneration": 1 })),
            expect_effect("reset budget 0 to 1"),
        ),
        case(
            "the same reset generation grants nothing",
            held().budget_reset(1, 0).recovery(json!({ "resetGeneration": 1 })),
            expect_status(Summary::Held, Reason::RecoveryLoop),
        ),
        case(
            "a lower reset generation, for example from Git, grants nothing",
            held().budget_reset(5, 0).recovery(json!({ "resetGeneration": 4 })),
            expect_status(Summary::Held, Reason::RecoveryLoop),
        ),
        case(
            "a granted budget resets the totals",
            after_crash().crashes(30, 0).budget_reset(1, 4),
            expect_effect("create triage-4"),
        ),
        case(
            "a granted budget can be exhausted",
            {
                let mut it = after_crash().crashes(9, 0).budget_reset(1, 3);
                it.row.counters.recovery_attempts = 30;
                it
            },
            expect_status(Summary::Held, Reason::RecoveryAttemptsExhausted).message_contains("21 crashes"),
        ),
        case(
            "a limit does not stop a running attempt",
            run().attached(3).head(7).crashes(30, 5).pod(pod(3)),
            expect_status(Summary::Running, Reason::UnderControl),
        ),
        case(
            "no limit is checked without the definition",
            held().no_definition().recovery(json!({ "onExhausted": "Fail" })),
            expect_status(Summary::Held, Reason::AgentNotFound).requeue_after(60),
        ),
        case(
            "no limit is checked with a definition that cannot be parsed",
            held().malformed_definition("no image").recovery(json!({ "onExhausted": "Fail" })),
            expect_status(Summary::Held, Reason::Malformed).requeue_after(60),
        ),
        case(
            "an attached worker is not affected by a definition that cannot be parsed",
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
    let input = |bytes: usize| run().spec(json!({ "input": "x".repeat(bytes - 2) }));
    let nested = |levels: usize| {
        let input = (0..levels).fold(json!(1), |inner, _| json!({ "a": inner }));
        run().spec(json!({ "input": input }))
    };
    vec![
        case(
            "a run is held after a fatal error",
            fatal(),
            expect_status(Summary::Held, Reason::WorkerFatal)
                .message_contains("attempt 3 ended after turn 7: WorkerFatal: no such customer"),
        ),
        case(
            "a granted budget lifts the hold after a fatal error",
            fatal().budget_reset(1, 3),
            expect_effect("create triage-4"),
        ),
        case(
            "an unsettled call with policy `ask` holds the run before its pod is created",
            after_eviction().unsettled(Policy::Ask, 2).calls_to_settle(&["pay-ann", "pay-bob"]),
            expect_status(Summary::Held, Reason::EffectUnknown)
                .message_contains("2 calls with policy `ask`, and it is not known whether they took effect"),
        ),
        case(
            "unsettled calls with other policies do not hold the run",
            after_eviction()
                .unsettled(Policy::Probe, 2)
                .unsettled(Policy::RetrySameKey, 1)
                .unsettled(Policy::ReadOnly, 1),
            expect_effect("create triage-4"),
        ),
        case(
            "a refused key holds the run, whatever the call's policy",
            after_eviction().keys_refused(1).unsettled(Policy::Ask, 1).calls_to_settle(&["pay", "mail"]),
            expect_status(Summary::Held, Reason::KeyRefused)
                .message_contains("a tool refused the idempotency key of 1 call; ")
                .message_contains("/dalsegno settle prod/triage pay --outcome"),
        ),
        case("an input of 32 KiB is allowed", input(32 << 10), expect_effect("create triage-1")),
        case(
            "a larger input holds the run before its first pod",
            input((32 << 10) + 1),
            expect_status(Summary::Held, Reason::InputTooLarge)
                .message_contains("32769 bytes, and at most 32768"),
        ),
        case("an input of 64 levels is allowed", nested(64), expect_effect("create triage-1")),
        case(
            "a deeper input holds the run before its first pod",
            nested(65),
            expect_status(Summary::Held, Reason::InputTooLarge).message_contains("deeper than 64 levels"),
        ),
    ]
}

fn start_failures() -> Vec<Case> {
    let ended = |n: i32, cause: Cause| neutral(n, cause).ago(30);
    let after = |causes: [Cause; 3]| {
        causes.into_iter().zip([3, 2, 1]).fold(run().reserved(4), |it, (cause, n)| it.after(ended(n, cause)))
    };
    vec![
        case(
            "three attempts in a row that never attached hold the run",
            after([Cause::StartDeadline; 3]),
            expect_status(Summary::Held, Reason::CannotStart)
                .message_contains("3 attempts in a row never attached; attempt 3"),
        ),
        case(
            "volumes that could not be attached hold no run",
            after([Cause::VolumeUnavailable; 3]),
            expect_effect("create triage-4"),
        ),
        case(
            "their causes may differ",
            after([Cause::ImageUnavailable, Cause::StartDeadline, Cause::ImageUnavailable]),
            expect_status(Summary::Held, Reason::CannotStart),
        ),
        case(
            "an attempt that attached resets the count",
            after([Cause::StartDeadline, Cause::Evicted, Cause::StartDeadline]),
            expect_effect("create triage-4"),
        ),
        case(
            "a granted budget resets the count",
            after([Cause::StartDeadline; 3]).budget_reset(1, 3),
            expect_effect("create triage-4"),
        ),
        case(
            "ten taken names in a row hold the run",
            (2..12).rev().fold(run().reserved(12), |it, n| it.after(neutral(n, Cause::NameTaken))),
            expect_status(Summary::Held, Reason::NameCollision).message_contains("The next try is at"),
        ),
        case(
            "the hold ends by itself, since the names may be free by then",
            (2..12).rev().fold(run().reserved(12), |it, n| it.after(neutral(n, Cause::NameTaken).ago(60))),
            expect_effect("create triage-12"),
        ),
        case(
            "if the next name is taken too, it ends after the longest pause",
            (2..13).rev().fold(run().reserved(13), |it, n| it.after(neutral(n, Cause::NameTaken).ago(600))),
            expect_status(Summary::Held, Reason::NameCollision),
        ),
        case(
            "names that deleted runs of this name still have hold no run, however many",
            (2..13).rev().fold(run().reserved(13), |it, n| it.after(neutral(n, Cause::NameInUse))),
            expect_effect("create triage-13"),
        ),
        case(
            "such a name does not interrupt a row of taken ones",
            (2..13).rev().fold(run().reserved(13), |it, n| {
                it.after(neutral(n, if n == 7 { Cause::NameInUse } else { Cause::NameTaken }))
            }),
            expect_status(Summary::Held, Reason::NameCollision),
        ),
        case(
            "after nine taken names the next name is tried",
            (2..11).rev().fold(run().reserved(11), |it, n| it.after(neutral(n, Cause::NameTaken))),
            expect_effect("create triage-11"),
        ),
    ]
}

fn order() -> Vec<Case> {
    vec![
        case(
            "a reason that no budget lifts comes first",
            after_crash().crashes(21, 3).unsettled(Policy::Ask, 1).calls_to_settle(&["pay"]),
            expect_status(Summary::Held, Reason::EffectUnknown),
        ),
        case(
            "a recovery loop comes before a total",
            after_crash().crashes(21, 3),
            expect_status(Summary::Held, Reason::RecoveryLoop),
        ),
        case(
            "a hold comes before the backoff",
            run().reserved(4).head(7).crashes(3, 3).after(crashed(3, Cause::OOMKilled).ago(0)),
            expect_status(Summary::Held, Reason::RecoveryLoop).message_contains("OOMKilled"),
        ),
        case(
            "the message of a recovery loop describes the last crash, not a later disruption",
            run()
                .reserved(5)
                .crashes(3, 3)
                .after(disrupted(4, Cause::Evicted))
                .after(crashed(3, Cause::OOMKilled)),
            expect_status(Summary::Held, Reason::RecoveryLoop)
                .message_contains("attempt 3 ended before its first turn: OOMKilled"),
        ),
    ]
}
