//! Runs that begin as a fork of another run.

use dalsegno_core::ForkProgress;
use dalsegno_crds::ConditionType::{Held, Ready, Reconciling, Stalled, WorkerReady};
use dalsegno_crds::{Reason, Summary};
use dalsegno_model::{AvailableTurns, Effects, ForkRefusal, ForkRow, ForkState};
use serde_json::json;
use uuid::Uuid;

use crate::fixtures::{Given, case, check_all, expect_effect, expect_finish, expect_status, run};
use dalsegno_crds::Cause;
use dalsegno_model::RunOutcome;

/// A fork of turn 7 of the run `earlier`.
fn fork(state: ForkState) -> Given {
    let mut given = run().spec(json!({ "resumeFrom": { "runName": "earlier", "turn": 7 } }));
    given.row.fork = Some(ForkRow {
        state,
        parent: Some(Uuid::nil()).filter(|_| state != ForkState::Pending),
        turn: Some(7),
        content_hash: Some("sha256:aa".into()),
    });
    given
}

fn tried(state: ForkState, progress: ForkProgress) -> Given {
    let mut given = fork(state);
    given.seen.fork = Some(progress);
    given
}

const FORK: &str = r#"fork Name("earlier") at Some(7)"#;

#[test]
fn a_fork_is_copied_before_its_first_pod() {
    check_all(vec![
        case(
            "the run is created as a fork",
            fork(ForkState::Pending).not_in_store(),
            expect_effect("create run, resetGeneration 0, a fork, prior runs: Hold"),
        ),
        case("a new fork", fork(ForkState::Pending), expect_effect(FORK)),
        case("a fork that an operator left in the middle", fork(ForkState::Copying), expect_effect(FORK)),
        case(
            "a suspended fork is copied too",
            fork(ForkState::Copying).suspended().suspend(9, None),
            expect_effect(FORK),
        ),
        case("without a definition", fork(ForkState::Copying).no_definition(), expect_effect(FORK)),
        case(
            "a fork whose parts are being copied",
            tried(ForkState::Copying, ForkProgress::Copying),
            expect_status(Summary::Pending, Reason::Forking)
                .condition(WorkerReady, "False", Reason::Forking)
                .condition(Ready, "False", Reason::Forking)
                .condition(Reconciling, "True", Reason::Forking)
                .condition(Held, "False", Reason::NotHeld),
        ),
        case("a fork that is copied gets its pod", fork(ForkState::Done), expect_effect("create triage-1")),
        case(
            "a cancelled fork ends",
            fork(ForkState::Copying).cancelled().cancel(9, None),
            expect_finish(1, Cause::Cancelled, RunOutcome::Cancelled, Reason::Cancelled),
        ),
    ]);
}

#[test]
fn a_fork_that_is_refused_is_held_until_it_is_not() {
    let held = |refusal| tried(ForkState::Pending, ForkProgress::Refused(refusal));
    let expect = |text: &str| {
        expect_status(Summary::Held, Reason::ForkRefused)
            .condition(Held, "True", Reason::ForkRefused)
            .condition(Stalled, "True", Reason::ForkRefused)
            .message_contains(text)
            .message_contains("acceptEffects")
            .requeue_after(60)
    };
    let effects = Effects { calls: vec!["pay-1".into(), "pay-2".into()], further: 0 };
    check_all(vec![
        case(
            "effects that are not named",
            held(ForkRefusal::Effects(effects)),
            expect(
                "2 calls of later turns of the other run may have changed something, and the fork would make them again: pay-1, pay-2.",
            ),
        ),
        case("no such run", held(ForkRefusal::NoSuchRun), expect("no run of this namespace")),
        case(
            "a turn that is not available",
            held(ForkRefusal::TurnNotAvailable(AvailableTurns { first: 3, last: 6 })),
            expect("turns 3 to 6 are"),
        ),
        case(
            "a damaged parent",
            held(ForkRefusal::Unreadable("turn 4: damaged".into())),
            expect("turn 4: damaged"),
        ),
        case(
            "a fork that was adopted by a run that names nothing",
            {
                let mut given = fork(ForkState::Pending);
                given.run.spec.resume_from = None;
                given
            },
            expect("spec.resumeFrom is not set"),
        ),
    ]);
}
