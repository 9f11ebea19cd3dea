//! Creation of a run in the store, and the consistency of the store.

use dalsegno_core::{Announcement, EffectResult, Rule};
use dalsegno_crds::ConditionType::{Finished, Held, Ready, Stalled, WorkerReady};
use dalsegno_crds::{Reason, Summary};
use dalsegno_model::{Lifecycle, RunOutcome};
use serde_json::json;
use uuid::Uuid;

use crate::fixtures::{Case, RUN, UID, case, check_all, expect_effect, expect_status, pod, run};

#[test]
fn a_run_is_created_once_and_changed_only_if_the_store_is_consistent() {
    check_all(creation());
    check_all(prior_runs_and_deadlines());
    check_all(store_answers());
    check_all(stores_that_are_behind());
    check_all(finished_runs());
}

#[test]
fn a_pod_that_another_operator_recorded_is_observed_before_it_counts_as_gone() {
    let recorded = run().attached(1);
    let mut observed = run().not_in_store().observed();
    assert!(!observed.must_observe_again(), "there is no recorded pod");

    observed.apply(EffectResult::Row(Box::new(recorded.row.clone())));
    assert!(observed.must_observe_again(), "its pod was recorded after the pods were listed");

    assert!(!run().attached(1).pod(pod(1)).observed().must_observe_again(), "the pod was seen");
    assert!(
        run().attached(1).pod(pod(1).gone()).observed().must_observe_again(),
        "only a live request proves that a pod is gone"
    );
}

fn creation() -> Vec<Case> {
    vec![
        case(
            "a run that the store does not have is created",
            run().not_in_store(),
            expect_effect("create run, resetGeneration 0, prior runs: Hold"),
        ),
        case(
            "the reset generation at creation is recorded, so that it grants nothing",
            run().not_in_store().recovery(json!({ "resetGeneration": 4 })),
            expect_effect("create run, resetGeneration 4, prior runs: Hold"),
        ),
        case(
            "onPriorRun can be a default of the definition",
            run().not_in_store().defaults(json!({ "onPriorRun": "Adopt" })),
            expect_effect("create run, resetGeneration 0, prior runs: Adopt"),
        ),
        case(
            "the run's onPriorRun wins over the definition's",
            run()
                .not_in_store()
                .defaults(json!({ "onPriorRun": "Adopt" }))
                .spec(json!({ "onPriorRun": "Ignore" })),
            expect_effect("create run, resetGeneration 0, prior runs: Ignore"),
        ),
        case(
            "a run whose definition is missing is not created, and is held",
            run().not_in_store().no_definition(),
            expect_status(Summary::Held, Reason::AgentNotFound)
                .requeue_after(60)
                .message_contains("there is no AgentDefinition named \"helper\"")
                .condition(Stalled, "True", Reason::AgentNotFound)
                .condition(Ready, "False", Reason::Held)
                .condition(WorkerReady, "False", Reason::NoWorker)
                .events(&[&Reason::AgentNotFound]),
        ),
        case(
            "a run whose definition cannot be parsed is not created, and is held",
            run().not_in_store().malformed_definition("invalid type: string, expected a map"),
            expect_status(Summary::Held, Reason::Malformed)
                .requeue_after(60)
                .message_contains("the AgentDefinition \"helper\" cannot be parsed: invalid type: string, expected a map. Correct")
                .condition(Stalled, "True", Reason::Malformed)
                .condition(WorkerReady, "False", Reason::NoWorker)
                .events(&[&Reason::Malformed]),
        ),
        case(
            "a cancelled run is created without a definition, so that it can end",
            run().not_in_store().no_definition().cancelled(),
            expect_effect("create run, resetGeneration 0, prior runs: Hold"),
        ),
        case(
            "a cancelled run can adopt a prior run without a definition",
            run().not_in_store().no_definition().cancelled().spec(json!({ "onPriorRun": "Adopt" })),
            expect_effect("create run, resetGeneration 0, prior runs: Adopt"),
        ),
    ]
}

fn prior_runs_and_deadlines() -> Vec<Case> {
    vec![
        case(
            "a prior run of the same name holds the run",
            run().prior(12, "shop-uid"),
            expect_status(Summary::Held, Reason::PriorRunFound)
                .requeue_after(60)
                .message_contains("at turn 12 that belonged to object earlier-uid. Set spec.onPriorRun"),
        ),
        case(
            "the message for a prior run of another namespace UID has the command that allows the adoption",
            run().prior(12, "old-uid"),
            expect_status(Summary::Held, Reason::PriorRunFound).message_contains(
                "an administrator must run `kubectl exec --namespace dalsegno-system deployment/dalsegno -- /dalsegno \
                 adopt-namespace old-uid shop-uid --reason \"the namespace was created again\" --by \"$USER\"`",
            ),
        ),
        case("the first attempt of a created run gets its pod", run(), expect_effect("create triage-1")),
        case(
            "changed deadlines apply at once",
            {
                let mut it = run().attached(1).pod(pod(1));
                it.row.deadlines.start_ms = 1;
                it
            },
            expect_effect("set deadlines"),
        ),
        case(
            "deadlines are not changed while the definition is missing",
            {
                let mut it = run().attached(1).pod(pod(1)).no_definition();
                it.row.deadlines.start_ms = 1;
                it
            },
            expect_status(Summary::Running, Reason::UnderControl),
        ),
    ]
}

fn store_answers() -> Vec<Case> {
    let another = Uuid::from_u128(7);
    vec![
        case(
            "an unavailable store is retried, and nothing else is done",
            run().attached(3).head(7).pod(pod(3)).status_written().store_unavailable(),
            expect_status(Summary::Running, Reason::StoreUnavailable)
                .requeue_after(3)
                .condition(Ready, "Unknown", Reason::StoreUnavailable)
                .condition(WorkerReady, "True", Reason::Attached)
                .message_contains(
                    "connection refused; no pod is replaced and nothing is charged in the meantime",
                )
                .events(&[&Reason::StoreUnavailable]),
        ),
        case(
            "a new run is pending while the store is unavailable",
            run().store_unavailable(),
            expect_status(Summary::Pending, Reason::StoreUnavailable).requeue_after(3).condition(
                WorkerReady,
                "Unknown",
                Reason::StoreUnavailable,
            ),
        ),
        case(
            "a held run stays held while the store is unavailable",
            run().reserved(4).crashes(3, 3).status_written().store_unavailable(),
            expect_status(Summary::Held, Reason::RecoveryLoop)
                .condition(Held, "True", Reason::RecoveryLoop)
                .follows(Rule::StoreUnavailable),
        ),
        case(
            "a different store is not changed",
            run().attached(3).head(7).pod(pod(3).oom()).status_knows_store(another),
            expect_status(Summary::Held, Reason::StoreChanged)
                .requeue_after(60)
                .message_contains(another.to_string())
                .condition(WorkerReady, "Unknown", Reason::StoreChanged),
        ),
        case(
            "a run is not created in a different store",
            run().not_in_store().status_knows_store(another),
            expect_status(Summary::Held, Reason::StoreChanged),
        ),
    ]
}

fn stores_that_are_behind() -> Vec<Case> {
    vec![
        case(
            "a run is not created again in a store that lost it",
            run().not_in_store().status_knows(2, 7, 70),
            expect_status(Summary::Held, Reason::StoreBehind).message_contains(
                "the store does not have this run; the run is known to have reached attempt 2, turn 7, event position 70",
            ),
        ),
        case(
            "a store with fewer turns than the status is behind",
            run().attached(3).head(6).status_knows(3, 7, 60).pod(pod(3)),
            expect_status(Summary::Held, Reason::StoreBehind)
                .requeue_after(60)
                .message_contains("turn 6, event position 60; the run is known to have reached attempt 3, turn 7"),
        ),
        case(
            "a store with fewer attempts than the status is behind",
            run().reserved(2).head(7).status_knows(3, 7, 70),
            expect_status(Summary::Held, Reason::StoreBehind),
        ),
        case(
            "a store with fewer events than the status is behind",
            run().attached(3).head(7).status_knows(3, 7, 71).pod(pod(3)),
            expect_status(Summary::Held, Reason::StoreBehind),
        ),
        case(
            "a store with fewer turns than a pod resumed from is behind, even without a status",
            run().attached(3).head(6).pod(pod(3).resumed_from(7, 60)),
            expect_status(Summary::Held, Reason::StoreBehind),
        ),
        case(
            "a store with fewer attempts than a pod's label is behind",
            run().reserved(2).pod(pod(3)),
            expect_status(Summary::Held, Reason::StoreBehind).message_contains("attempt 3"),
        ),
        case(
            "a run with a pod is not created again",
            run().not_in_store().pod(pod(1)),
            expect_status(Summary::Held, Reason::StoreBehind),
        ),
        case(
            "a pod of another owner with the operator's labels does not count, and is not deleted",
            run().attached(2).head(6).pod(pod(2)).pod(pod(9).resumed_from(99, 990).of_other_owner()),
            expect_status(Summary::Running, Reason::UnderControl),
        ),
        case(
            "a pod of another namespace with an owner reference to the run does not count, and is not deleted",
            run().attached(2).head(6).pod(pod(2)).pod(pod(9).resumed_from(99, 990).of_another_namespace()),
            expect_status(Summary::Running, Reason::UnderControl),
        ),
        case(
            "an empty status is rebuilt from the store",
            run().attached(3).head(7).pod(pod(3)),
            expect_status(Summary::Running, Reason::UnderControl).events(&[&Reason::Attached]),
        ),
        case(
            "a deleted run is held if its AgentRun exists again",
            run().attached(3).lifecycle(Lifecycle::Deleted).pod(pod(3)),
            expect_status(Summary::Held, Reason::StoreBehind)
                .message_contains("the store has closed this run"),
        ),
        case(
            "an abandoned run is held",
            run().attached(3).lifecycle(Lifecycle::Abandoned),
            expect_status(Summary::Held, Reason::StoreBehind),
        ),
    ]
}

fn finished_runs() -> Vec<Case> {
    let succeeded = || run().attached(2).head(9).finished(RunOutcome::Succeeded, 600);
    let written = || succeeded().status_written();
    vec![
        case(
            "a run that has ended in the store has ended, even if a restored status differs",
            succeeded().status_knows(1, 3, 30),
            expect_status(Summary::Succeeded, Reason::Completed).condition(
                Finished,
                "True",
                Reason::Completed,
            ),
        ),
        case(
            "a run that has ended in the store has ended, even if its AgentRun was deleted and exists again",
            succeeded().lifecycle(Lifecycle::Deleted),
            expect_status(Summary::Succeeded, Reason::Completed),
        ),
        case(
            "an end in the status is kept while the store is unavailable",
            written().store_unavailable(),
            expect_status(Summary::Succeeded, Reason::Completed)
                .follows(Rule::EndedElsewhere)
                .requeue_after(60)
                .events(&[]),
        ),
        case(
            "an end in the status is kept with a different store",
            written().status_knows_store(Uuid::from_u128(7)),
            expect_status(Summary::Succeeded, Reason::Completed).follows(Rule::EndedElsewhere).condition(
                Finished,
                "True",
                Reason::Completed,
            ),
        ),
        case(
            "an ended run is not created again in a store that lost it",
            written().not_in_store(),
            expect_status(Summary::Succeeded, Reason::Completed).follows(Rule::EndedElsewhere),
        ),
        case(
            "an end in the status is kept if the store does not know of it",
            run().attached(2).head(9).status_knows(2, 9, 90).status_succeeded().pod(pod(2).terminated(0)),
            expect_status(Summary::Succeeded, Reason::Completed).follows(Rule::EndedElsewhere).condition(
                Finished,
                "True",
                Reason::Completed,
            ),
        ),
    ]
}

#[test]
fn a_hold_without_a_row_is_announced_until_the_status_shows_it() {
    let held = run().prior(12, "shop-uid");
    let Some(Announcement::Object(hold)) = held.decide().announcement else { panic!("{:?}", held.decide()) };
    assert_eq!((hold.object.name.as_str(), hold.object.uid.as_str()), (RUN, UID));
    let Some(Announcement::Object(again)) = held.decide().announcement else {
        panic!("it is announced again")
    };
    assert_eq!(again, hold, "a process that dies before the status is written announces the same");
    let shown = held.status_written();
    assert_eq!(shown.decide().announcement, None);
    // The run was created again and again without a proper deletion: another hold.
    let other = Uuid::from_u128(77);
    let changed = run().not_in_store().status_knows_store(other).decide().announcement;
    assert!(matches!(&changed, Some(Announcement::Object(it)) if it.key != hold.key), "{changed:?}");
    // Its definition is not there yet. Often it comes a moment later.
    assert_eq!(run().not_in_store().no_definition().decide().announcement, None);
}
