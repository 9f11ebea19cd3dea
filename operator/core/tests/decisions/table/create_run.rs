//! Taking a run up, and whether the store is to be trusted with it.

use dalsegno_core::EffectResult;
use dalsegno_crds::ConditionType::{Finished, Held, Ready, Stalled, WorkerReady};
use dalsegno_crds::{Reason, Summary};
use dalsegno_store::{Lifecycle, RunOutcome};
use serde_json::json;
use uuid::Uuid;

use crate::fixtures::{Case, case, check_all, expect_effect, expect_status, pod, run};

#[test]
fn a_run_is_taken_up_once_and_touched_only_if_the_store_is_to_be_trusted() {
    check_all(taking_up());
    check_all(the_store());
    check_all(what_is_over());
}

#[test]
fn a_pod_that_another_operator_recorded_is_looked_for_before_it_is_called_gone() {
    let theirs = run().attached(1);
    let mut observed = run().not_in_store().observed();
    assert!(!observed.must_observe_again(), "there is nothing to look for");

    observed.apply(EffectResult::Row(Box::new(theirs.row.clone())));
    assert!(observed.must_observe_again(), "its pod was recorded after the pods were seen");

    assert!(!run().attached(1).pod(pod(1)).observed().must_observe_again(), "it is there");
    assert!(
        run().attached(1).pod(pod(1).gone()).observed().must_observe_again(),
        "a cache's word is no proof"
    );
}

fn taking_up() -> Vec<Case> {
    vec![
        case(
            "a run that the store does not know is taken up",
            run().not_in_store(),
            expect_effect("take up, resetGeneration 0, prior runs: Hold"),
        ),
        case(
            "the reset generation that stands there at creation is told, so that it grants nothing",
            run().not_in_store().recovery(json!({ "resetGeneration": 4 })),
            expect_effect("take up, resetGeneration 4, prior runs: Hold"),
        ),
        case(
            "what becomes of a prior run may stand in the definition",
            run().not_in_store().defaults(json!({ "onPriorRun": "Adopt" })),
            expect_effect("take up, resetGeneration 0, prior runs: Adopt"),
        ),
        case(
            "the run's own word outranks the definition's",
            run()
                .not_in_store()
                .defaults(json!({ "onPriorRun": "Adopt" }))
                .spec(json!({ "onPriorRun": "Ignore" })),
            expect_effect("take up, resetGeneration 0, prior runs: Ignore"),
        ),
        case(
            "a run of a definition that is missing is not taken up, and says so",
            run().not_in_store().no_definition(),
            expect_status(Summary::Held, Reason::AgentNotFound)
                .requeue_after(60)
                .message_contains("there is no AgentDefinition named \"helper\"")
                .condition(Stalled, "True", Reason::AgentNotFound)
                .condition(Ready, "False", Reason::Held)
                .condition(WorkerReady, "False", Reason::NoWorker)
                .events(&["AgentNotFound"]),
        ),
        case(
            "a run of a definition that cannot be read is not taken up, and says so",
            run().not_in_store().malformed_definition("invalid type: string, expected a map"),
            expect_status(Summary::Held, Reason::Malformed)
                .requeue_after(60)
                .message_contains("the AgentDefinition \"helper\" cannot be parsed: invalid type: string, expected a map. Correct")
                .condition(Stalled, "True", Reason::Malformed)
                .condition(WorkerReady, "False", Reason::NoWorker)
                .events(&["Malformed"]),
        ),
        case(
            "a run that was cancelled before it began needs no definition to come to its end",
            run().not_in_store().no_definition().cancelled(),
            expect_effect("take up, resetGeneration 0, prior runs: Hold"),
        ),
        case(
            "nor does one that takes over a run whose AgentRun is gone, to end it",
            run().not_in_store().no_definition().cancelled().spec(json!({ "onPriorRun": "Adopt" })),
            expect_effect("take up, resetGeneration 0, prior runs: Adopt"),
        ),
        case(
            "a prior run of the same name holds it",
            run().prior(12, "shop-uid"),
            expect_status(Summary::Held, Reason::PriorRunFound)
                .requeue_after(60)
                .message_contains("at turn 12 that belonged to object earlier-uid. Set spec.onPriorRun"),
        ),
        case(
            "a prior run of another namespace UID says with which command it is made adoptable",
            run().prior(12, "old-uid"),
            expect_status(Summary::Held, Reason::PriorRunFound).message_contains("an administrator must run `dalsegno adopt-namespace old-uid shop-uid --reason TEXT`"),
        ),
        case("the first attempt of a run that was taken up gets its pod", run(), expect_effect("create triage-1")),
        case(
            "deadlines that were changed are obeyed at once",
            {
                let mut it = run().attached(1).pod(pod(1));
                it.row.deadlines.start_ms = 1;
                it
            },
            expect_effect("set deadlines"),
        ),
        case(
            "deadlines are left alone while the definition that may hold them is missing",
            {
                let mut it = run().attached(1).pod(pod(1)).no_definition();
                it.row.deadlines.start_ms = 1;
                it
            },
            expect_status(Summary::Running, Reason::UnderControl),
        ),
    ]
}

fn the_store() -> Vec<Case> {
    let another = Uuid::from_u128(7);
    vec![
        case(
            "a store that does not answer is asked again, and nothing else is done",
            run().attached(3).head(7).pod(pod(3)).status_written().store_unavailable(),
            expect_status(Summary::Running, Reason::StoreUnavailable)
                .requeue_after(3)
                .condition(Ready, "Unknown", Reason::StoreUnavailable)
                .condition(WorkerReady, "True", Reason::Attached)
                .message_contains("connection refused; no pod is replaced and nothing is charged until the store responds")
                .events(&["StoreUnavailable"]),
        ),
        case(
            "a run that was never read is pending while the store does not answer",
            run().store_unavailable(),
            expect_status(Summary::Pending, Reason::StoreUnavailable).requeue_after(3).condition(
                WorkerReady,
                "Unknown",
                Reason::StoreUnavailable,
            ),
        ),
        case(
            "a run that is held needs its person whether the store answers or not",
            run().reserved(4).crashes(3, 3).status_written().store_unavailable(),
            expect_status(Summary::Held, Reason::RecoveryLoop).condition(Held, "True", Reason::RecoveryLoop),
        ),
        case(
            "another store is not touched",
            run().attached(3).head(7).pod(pod(3).oom()).status_knows_store(another),
            expect_status(Summary::Held, Reason::StoreChanged)
                .requeue_after(60)
                .message_contains(another.to_string())
                .condition(WorkerReady, "Unknown", Reason::StoreChanged),
        ),
        case(
            "another store that does not know the run is not given it",
            run().not_in_store().status_knows_store(another),
            expect_status(Summary::Held, Reason::StoreChanged),
        ),
        case(
            "a store that has lost the run does not begin it anew",
            run().not_in_store().status_knows(2, 7, 70),
            expect_status(Summary::Held, Reason::StoreBehind).message_contains(
                "the store does not have this run; the run is known to have reached attempt 2, turn 7, event position 70",
            ),
        ),
        case(
            "a store that knows fewer turns than the status is behind",
            run().attached(3).head(6).status_knows(3, 7, 60).pod(pod(3)),
            expect_status(Summary::Held, Reason::StoreBehind)
                .requeue_after(60)
                .message_contains("turn 6, event position 60; the run is known to have reached attempt 3, turn 7"),
        ),
        case(
            "a store that knows fewer attempts than the status is behind",
            run().reserved(2).head(7).status_knows(3, 7, 70),
            expect_status(Summary::Held, Reason::StoreBehind),
        ),
        case(
            "a store that knows fewer events than the status is behind",
            run().attached(3).head(7).status_knows(3, 7, 71).pod(pod(3)),
            expect_status(Summary::Held, Reason::StoreBehind),
        ),
        case(
            "a store that knows fewer turns than a pod resumed from is behind, whatever became of the status",
            run().attached(3).head(6).pod(pod(3).resumed_from(7, 60)),
            expect_status(Summary::Held, Reason::StoreBehind),
        ),
        case(
            "a store that knows fewer attempts than a pod's label is behind",
            run().reserved(2).pod(pod(3)),
            expect_status(Summary::Held, Reason::StoreBehind).message_contains("attempt 3"),
        ),
        case(
            "a store that does not know a run with a pod does not begin it anew",
            run().not_in_store().pod(pod(1)),
            expect_status(Summary::Held, Reason::StoreBehind),
        ),
        case(
            "a look-alike with our labels and another owner is no witness, and is left alone",
            run().attached(2).head(6).pod(pod(2)).pod(pod(9).resumed_from(99, 990).of_other_owner()),
            expect_status(Summary::Running, Reason::UnderControl),
        ),
        case(
            "a pod of another namespace is no witness, though it names the run as its owner, and is left alone",
            run().attached(2).head(6).pod(pod(2)).pod(pod(9).resumed_from(99, 990).of_another_namespace()),
            expect_status(Summary::Running, Reason::UnderControl),
        ),
        case(
            "a status without a word is written anew from a store that is ahead",
            run().attached(3).head(7).pod(pod(3)),
            expect_status(Summary::Running, Reason::UnderControl).events(&["Attached"]),
        ),
        case(
            "a run that was deleted on purpose stays so, though its AgentRun is back",
            run().attached(3).lifecycle(Lifecycle::Deleted).pod(pod(3)),
            expect_status(Summary::Held, Reason::StoreBehind)
                .message_contains("the store has closed this run"),
        ),
        case(
            "a run that was given up for a later one stays so",
            run().attached(3).lifecycle(Lifecycle::Abandoned),
            expect_status(Summary::Held, Reason::StoreBehind),
        ),
    ]
}

fn what_is_over() -> Vec<Case> {
    let succeeded = || run().attached(2).head(9).finished(RunOutcome::Succeeded, 600);
    let told = || succeeded().status_written();
    vec![
        case(
            "finished in the store is finished, whatever a restored status says",
            succeeded().status_knows(1, 3, 30),
            expect_status(Summary::Succeeded, Reason::Completed).condition(
                Finished,
                "True",
                Reason::Completed,
            ),
        ),
        case(
            "finished in the store is finished, though its AgentRun was deleted and is back",
            succeeded().lifecycle(Lifecycle::Deleted),
            expect_status(Summary::Succeeded, Reason::Completed),
        ),
        case(
            "an end that was told stays told while the store does not answer",
            told().store_unavailable(),
            expect_status(Summary::Succeeded, Reason::Completed).requeue_after(60).events(&[]),
        ),
        case(
            "an end that was told stays told in another store",
            told().status_knows_store(Uuid::from_u128(7)),
            expect_status(Summary::Succeeded, Reason::Completed).condition(
                Finished,
                "True",
                Reason::Completed,
            ),
        ),
        case(
            "an end that was told is not begun anew in a store that lost it",
            told().not_in_store(),
            expect_status(Summary::Succeeded, Reason::Completed),
        ),
        case(
            "an end that was told is not undone by a store that does not know of it yet",
            run().attached(2).head(9).status_knows(2, 9, 90).status_succeeded().pod(pod(2).terminated(0)),
            expect_status(Summary::Succeeded, Reason::Completed).condition(
                Finished,
                "True",
                Reason::Completed,
            ),
        ),
    ]
}
