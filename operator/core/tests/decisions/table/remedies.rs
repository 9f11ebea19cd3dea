//! What the status of a held run says to do: commands that a person can paste.

use dalsegno_core::remedy::takes_fresh_budget;
use dalsegno_core::{CliLocation, EventSpec};
use dalsegno_crds::{Cause, ConditionType, Reason, Summary, find_condition};
use dalsegno_protocol::Policy;
use serde_json::json;

use crate::fixtures::{Given, case, check_all, crashed, disrupted, expect_effect, expect_status, run};

fn after_crash() -> Given {
    run().reserved(4).head(7).after(crashed(3, Cause::ExitedWithError).message("exit code 1: boom").ago(900))
}

fn after_eviction() -> Given {
    run().reserved(4).head(7).after(disrupted(3, Cause::Evicted).after_turn(7).ago(30))
}

fn on_a_laptop(mut given: Given) -> Given {
    given.seen.cli = CliLocation::Local { store_url: "sqlite:///home/my files/runs.db".to_owned() };
    given
}

#[test]
fn a_held_run_shows_the_command_that_frees_it() {
    check_all(vec![
        case(
            "the calls that hold a run are read before the run is held for them",
            after_eviction().unsettled(Policy::Ask, 2),
            expect_effect("read the calls to settle"),
        ),
        case(
            "an unsettled call with policy `ask` holds the run before its pod is created, and the status has the command",
            after_eviction().unsettled(Policy::Ask, 1).calls_to_settle(&["pay-ann"]),
            expect_status(Summary::Held, Reason::EffectUnknown)
                .message_contains("1 call with policy `ask`, and it is not known whether it took effect")
                .message_contains(
                    "If it took effect, run `kubectl exec --namespace dalsegno-system deployment/dalsegno -- /dalsegno settle \
                     prod/triage pay-ann --outcome completed --reason \"what you found\" --by \"$USER\"`; if not, the \
                     same with `--outcome failed`.",
                ),
        ),
        case(
            "an id that a shell would read is quoted, and the other calls are named",
            after_eviction().unsettled(Policy::Ask, 2).calls_to_settle(&["it's $(id)", "pay-bob"]),
            expect_status(Summary::Held, Reason::EffectUnknown)
                .message_contains("2 calls with policy `ask`, and it is not known whether they took effect")
                .message_contains(r"settle prod/triage 'it'\''s $(id)' --outcome")
                .message_contains("Then settle pay-bob."),
        ),
        case(
            "an id that begins with a dash is not an option",
            after_eviction().unsettled(Policy::Ask, 1).calls_to_settle(&["--by"]),
            expect_status(Summary::Held, Reason::EffectUnknown)
                .message_contains("settle prod/triage --outcome completed --reason \"what you found\" --by \"$USER\" -- --by`"),
        ),
        case(
            "if the calls were settled meanwhile, the status has the command that lists them",
            after_eviction().unsettled(Policy::Ask, 1).calls_to_settle(&[]),
            expect_status(Summary::Held, Reason::EffectUnknown).message_contains(
                "run `kubectl exec --namespace dalsegno-system deployment/dalsegno -- /dalsegno show prod/triage --calls`",
            ),
        ),
        case(
            "on a laptop the command names the store, and the same command continues the run",
            on_a_laptop(after_eviction().unsettled(Policy::Ask, 1).calls_to_settle(&["pay"])),
            expect_status(Summary::Held, Reason::EffectUnknown)
                .message_contains(
                    "run `dalsegno settle --database-url 'sqlite:///home/my files/runs.db' prod/triage pay --outcome \
                     completed --reason \"what you found\"`",
                )
                .message_contains("Then run the same `dalsegno dev` command again."),
        ),
        case(
            "on a laptop no remedy speaks of images or of kubectl",
            on_a_laptop(after_crash().crashes(3, 3)),
            expect_status(Summary::Held, Reason::RecoveryLoop)
                .message_contains("boom. What to do: fix the agent, then run the same command again"),
        ),
        case(
            "a hold that a fresh budget ends has the command with the next number",
            after_crash().crashes(3, 3).budget_reset(4, 1).recovery(json!({ "resetGeneration": 4 })),
            expect_status(Summary::Held, Reason::RecoveryLoop).message_contains(
                "To raise resetGeneration, run `kubectl patch agentrun triage --namespace prod --type merge --patch \
                 '{\"spec\":{\"recovery\":{\"resetGeneration\":5}}}'`.",
            ),
        ),
    ]);
}

/// The event of a hold.
fn event(given: &Given) -> EventSpec {
    let decision = given.decide();
    let held = find_condition(&decision.status.conditions, ConditionType::Held).unwrap();
    decision.events.into_iter().find(|it| it.reason == held.reason).unwrap()
}

#[test]
fn the_long_message_of_a_hold_is_in_one_condition_and_in_the_event() {
    let given = after_eviction().unsettled(Policy::Ask, 1).calls_to_settle(&["pay"]);
    let status = given.decide().status;
    let message = |kind| find_condition(&status.conditions, kind).unwrap().message.clone();
    assert_eq!(event(&given).note, message(ConditionType::Held));
    for kind in [ConditionType::Ready, ConditionType::Stalled] {
        assert_eq!(
            message(kind),
            "held: EffectUnknown. The condition Held says why, and what to do",
            "{kind}"
        );
    }
}

#[test]
fn an_event_that_is_cut_keeps_its_command() {
    let long = "x".repeat(600);
    let last = crashed(3, Cause::ExitedWithError).message(&long).ago(900);
    let given = run().reserved(4).head(7).after(last).unsettled(Policy::Ask, 1);
    let given = given.calls_to_settle(&[&"p".repeat(200)]);
    let note = event(&given).note;
    assert!(note.len() <= 1_000 && note.starts_with("an attempt ended during 1 call"), "{note}");
    assert!(note.contains("run `kubectl exec --namespace dalsegno-system"), "{note}");
    assert!(note.ends_with("the same with `--outcome failed`."), "{note}");
}

#[test]
fn the_command_of_a_fresh_budget_comes_exactly_with_the_remediations_that_name_it() {
    for reason in Reason::ALL {
        let names_it = reason.remediation().contains("spec.recovery.resetGeneration");
        assert_eq!(takes_fresh_budget(*reason), names_it, "{reason}");
    }
}
