//! Rewinds that people request, and the step back before the last try at one checkpoint.

use dalsegno_crds::ConditionType::{Held, Ready, Rewound};
use dalsegno_crds::{Cause, Reason, Summary};
use dalsegno_model::{AvailableTurns, Effects, RewindRefusal, RewindResult, RunOutcome};
use serde_json::{Value, json};

use crate::fixtures::{Given, case, check_all, crashed, disrupted, expect_effect, expect_status, pod, run};

fn rewind(given: Given, generation: i64, to: i32) -> Given {
    given.spec(json!({ "rewind": { "generation": generation, "toTurn": to } }))
}

/// The store has observed this request, with this result.
fn observed(mut given: Given, generation: i64, refused: Option<RewindRefusal>) -> Given {
    given.row.observed_rewind_generation = generation;
    given.row.rewind = Some(RewindResult { generation, to_turn: 3, refused });
    rewind(given, generation, 3)
}

fn working() -> Given {
    run().attached(4).head(7).heartbeat(2).pod(pod(4))
}

#[test]
fn a_request_is_made_once_in_every_stage() {
    let asks = || expect_effect("rewind 2 to turn 3");
    check_all(vec![
        case("a working run", rewind(working(), 2, 3), asks()),
        case("a run whose attempt is reserved", rewind(run().reserved(4).head(7), 2, 3), asks()),
        case("a pod that is starting", rewind(run().created(4).head(7).pod(pod(4)), 2, 3), asks()),
        case("a held run", rewind(run().reserved(4).head(7).crashes(3, 3), 2, 3), asks()),
        case("a suspended run", rewind(run().reserved(4).head(7).suspended().suspend(9, None), 2, 3), asks()),
        case(
            "before the end of a worker that has just ended",
            rewind(run().attached(4).head(7).pod(pod(4).oom()), 2, 3),
            asks(),
        ),
        case("without a definition", rewind(run().reserved(4).head(7).no_definition(), 2, 3), asks()),
        case(
            "a number that was observed is not requested again",
            observed(working(), 2, None),
            expect_status(Summary::Running, Reason::UnderControl).condition(Rewound, "True", Reason::Rewound),
        ),
        case(
            "a lower number does nothing",
            rewind(observed(working(), 2, None), 1, 3),
            expect_status(Summary::Running, Reason::UnderControl),
        ),
        case(
            "the number at creation is stored as observed",
            rewind(run().not_in_store(), 5, 3),
            expect_effect("create run, resetGeneration 0, rewind 5, prior runs: Hold"),
        ),
        case(
            "a run without a request has no condition",
            working(),
            expect_status(Summary::Running, Reason::UnderControl).no_condition(Rewound),
        ),
    ]);
}

#[test]
fn a_cancelled_run_and_a_finished_one_are_not_rewound() {
    check_all(vec![
        case("a cancel comes first", rewind(working().cancelled(), 2, 3), expect_effect("request cancel")),
        case(
            "a cancelled run does not go back",
            rewind(working().cancelled().cancel(5, Some(3)), 2, 3),
            expect_status(Summary::Running, Reason::Cancelling).no_condition(Rewound),
        ),
        case(
            "a finished run says that it can be forked",
            rewind(
                run().attached(4).head(7).finished(RunOutcome::Succeeded, 9).pod(pod(4).terminated(0)),
                2,
                3,
            ),
            expect_status(Summary::Succeeded, Reason::Completed).condition(
                Rewound,
                "False",
                Reason::RewindRefused,
            ),
        ),
    ]);
}

#[test]
fn a_refusal_says_what_to_do_and_disturbs_nothing() {
    let refused = |refusal| observed(working().status_written(), 2, Some(refusal));
    let runs = |reason: Reason| {
        expect_status(Summary::Running, Reason::UnderControl)
            .condition(Ready, "True", Reason::UnderControl)
            .condition(Held, "False", Reason::NotHeld)
            .condition(Rewound, "False", reason)
            .events(&[&reason])
    };
    let effects = Effects { calls: vec!["pay-1".into(), "pay-2".into()], further: 3 };
    let given = refused(RewindRefusal::Effects(effects));
    check_all(vec![
        case("calls that are not named", given, runs(Reason::RewindRefused)),
        case(
            "a head that has changed",
            refused(RewindRefusal::HeadChanged { head: None }),
            runs(Reason::RewindRefused),
        ),
        case(
            "a turn that is not available",
            refused(RewindRefusal::TurnNotAvailable(AvailableTurns { first: 4, last: 7 })),
            runs(Reason::TurnNotAvailable),
        ),
    ]);
    let decision =
        refused(RewindRefusal::Effects(Effects { calls: vec!["pay-1".into()], further: 3 })).decide();
    let status = serde_json::to_value(&decision.status).unwrap();
    let conditions = status["conditions"].as_array().unwrap();
    let rewound = conditions.iter().find(|it| it["type"] == "Rewound").unwrap();
    let message = rewound["message"].as_str().unwrap();
    assert!(message.contains("4 calls of the turns after turn 3"), "{message}");
    assert!(message.contains("pay-1 and 3 more"), "{message}");
    assert_eq!(status["rewind"], json!({ "observedGeneration": 2, "toTurn": 3, "effects": ["pay-1"] }));
}

#[test]
fn a_run_steps_back_once_before_its_last_try() {
    let policy = |given: Given, value: Value| given.recovery(json!({ "onSameCheckpoint": value }));
    let last_try = || {
        run()
            .reserved(4)
            .head(7)
            .crashes(2, 2)
            .after(crashed(3, Cause::ExitedWithError).after_turn(7).ago(600))
    };
    let steps = || policy(last_try(), json!("Rewind"));
    let refused = |mut given: Given| {
        given.seen.step_back_refused = true;
        given
    };
    let goes_on = || expect_effect("create triage-4");
    check_all(vec![
        case("before the last try", steps(), expect_effect("step back from turn 7 (result)")),
        case("without the policy", last_try(), goes_on()),
        case("with Retry", policy(last_try(), json!("Retry")), goes_on()),
        case("if the store refuses", refused(steps()), goes_on()),
        case("not before an earlier try", steps().crashes(1, 1), goes_on()),
        case(
            "not after the last try",
            steps().crashes(3, 3),
            expect_status(Summary::Held, Reason::RecoveryLoop),
        ),
        case("not if the last attempt crashed at a later turn: it has gone back", steps().head(6), goes_on()),
        case(
            "not from the first turn",
            {
                let given = run().reserved(4).head(1).crashes(2, 2);
                policy(
                    given.after(crashed(3, Cause::ExitedWithError).after_turn(1).ago(600)),
                    json!("Rewind"),
                )
            },
            goes_on(),
        ),
        case(
            "not if a disruption came in between",
            {
                let given = run().reserved(5).head(7).crashes(2, 2).disruptions(1, 1);
                let given = given.after(disrupted(4, Cause::Evicted).after_turn(7).ago(600));
                policy(
                    given.after(crashed(3, Cause::ExitedWithError).after_turn(7).ago(900)),
                    json!("Rewind"),
                )
            },
            expect_effect("create triage-5"),
        ),
        case(
            "not during the backoff",
            policy(
                run()
                    .reserved(4)
                    .head(7)
                    .crashes(2, 2)
                    .after(crashed(3, Cause::ExitedWithError).after_turn(7).ago(0)),
                json!("Rewind"),
            ),
            expect_status(Summary::BackingOff, Reason::Crashed),
        ),
        case(
            "a definition may set it",
            last_try().defaults(json!({ "recovery": { "onSameCheckpoint": "Rewind" } })),
            expect_effect("step back from turn 7 (result)"),
        ),
    ]);
}
