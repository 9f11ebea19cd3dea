//! Taking a run up, and whether the store is to be trusted with it.

use dalsegno_core::Fact;
use dalsegno_crds::ConditionType::{Finished, Held, Ready, Stalled, WorkerReady};
use dalsegno_crds::{Reason, Summary};
use dalsegno_model::{Lifecycle, RunOutcome};
use serde_json::json;
use uuid::Uuid;

use crate::words::{Case, acts, case, pod, rests, run, try_all};

#[test]
fn a_run_is_taken_up_once_and_touched_only_if_the_store_is_to_be_trusted() {
    try_all(taking_up());
    try_all(the_store());
    try_all(what_is_over());
}

#[test]
fn a_pod_that_another_operator_recorded_is_looked_for_before_it_is_called_gone() {
    let theirs = run().attached(1);
    let mut observed = run().not_in_store().observed();
    assert!(!observed.must_look_again(), "there is nothing to look for");

    observed.learn(Fact::Row(Box::new(theirs.row.clone())));
    assert!(observed.must_look_again(), "its pod was recorded after the pods were seen");

    assert!(!run().attached(1).pod(pod(1)).observed().must_look_again(), "it is there");
    assert!(run().attached(1).pod(pod(1).gone()).observed().must_look_again(), "a cache's word is no proof");
}

fn taking_up() -> Vec<Case> {
    vec![
        case(
            "a run that the store does not know is taken up",
            run().not_in_store(),
            acts("take up, resetGeneration 0, prior runs: Hold"),
        ),
        case(
            "the reset generation that stands there at creation is told, so that it grants nothing",
            run().not_in_store().recovery(json!({ "resetGeneration": 4 })),
            acts("take up, resetGeneration 4, prior runs: Hold"),
        ),
        case(
            "what becomes of a prior run may stand in the definition",
            run().not_in_store().defaults(json!({ "onPriorRun": "Adopt" })),
            acts("take up, resetGeneration 0, prior runs: Adopt"),
        ),
        case(
            "the run's own word outranks the definition's",
            run()
                .not_in_store()
                .defaults(json!({ "onPriorRun": "Adopt" }))
                .spec(json!({ "onPriorRun": "Ignore" })),
            acts("take up, resetGeneration 0, prior runs: Ignore"),
        ),
        case(
            "a run of a definition that is missing is not taken up, and says so",
            run().not_in_store().no_definition(),
            rests(Summary::Held, Reason::AgentNotFound)
                .again(60)
                .says("there is no AgentDefinition named \"helper\"")
                .is(Stalled, "True", Reason::AgentNotFound)
                .is(Ready, "False", Reason::Held)
                .is(WorkerReady, "False", Reason::NoWorker)
                .tells(&["AgentNotFound"]),
        ),
        case(
            "a run of a definition that cannot be read is not taken up, and says so",
            run().not_in_store().malformed_definition("invalid type: string, expected a map"),
            rests(Summary::Held, Reason::Malformed)
                .again(60)
                .says("the AgentDefinition \"helper\" cannot be read: invalid type: string, expected a map. Correct")
                .is(Stalled, "True", Reason::Malformed)
                .is(WorkerReady, "False", Reason::NoWorker)
                .tells(&["Malformed"]),
        ),
        case(
            "a run that was cancelled before it began needs no definition to come to its end",
            run().not_in_store().no_definition().cancelled(),
            acts("take up, resetGeneration 0, prior runs: Hold"),
        ),
        case(
            "nor does one that takes over a run whose AgentRun is gone, to end it",
            run().not_in_store().no_definition().cancelled().spec(json!({ "onPriorRun": "Adopt" })),
            acts("take up, resetGeneration 0, prior runs: Adopt"),
        ),
        case(
            "a prior run of the same name holds it",
            run().prior(12, "shop-uid"),
            rests(Summary::Held, Reason::PriorRunFound)
                .again(60)
                .says("at turn 12 that belonged to object earlier-uid. Set spec.onPriorRun"),
        ),
        case(
            "a prior run of another namespace UID says with which command it is made adoptable",
            run().prior(12, "old-uid"),
            rests(Summary::Held, Reason::PriorRunFound).says("an administrator runs `dalsegno adopt-namespace old-uid shop-uid --reason TEXT`"),
        ),
        case("the first attempt of a run that was taken up gets its pod", run(), acts("create triage-1")),
        case(
            "deadlines that were changed are obeyed at once",
            {
                let mut it = run().attached(1).pod(pod(1));
                it.row.deadlines.start_ms = 1;
                it
            },
            acts("set deadlines"),
        ),
        case(
            "deadlines are left alone while the definition that may hold them is missing",
            {
                let mut it = run().attached(1).pod(pod(1)).no_definition();
                it.row.deadlines.start_ms = 1;
                it
            },
            rests(Summary::Running, Reason::UnderControl),
        ),
    ]
}

fn the_store() -> Vec<Case> {
    let another = Uuid::from_u128(7);
    vec![
        case(
            "a store that does not answer is asked again, and nothing else is done",
            run().attached(3).head(7).pod(pod(3)).written().store_unknown(),
            rests(Summary::Running, Reason::StoreUnavailable)
                .again(3)
                .is(Ready, "Unknown", Reason::StoreUnavailable)
                .is(WorkerReady, "True", Reason::Attached)
                .says("connection refused; nothing is replaced and nothing is charged meanwhile")
                .tells(&["StoreUnavailable"]),
        ),
        case(
            "a run that was never read is pending while the store does not answer",
            run().store_unknown(),
            rests(Summary::Pending, Reason::StoreUnavailable).again(3).is(
                WorkerReady,
                "Unknown",
                Reason::StoreUnavailable,
            ),
        ),
        case(
            "a run that is held needs its person whether the store answers or not",
            run().reserved(4).crashes(3, 3).written().store_unknown(),
            rests(Summary::Held, Reason::RecoveryLoop).is(Held, "True", Reason::RecoveryLoop),
        ),
        case(
            "another store is not touched",
            run().attached(3).head(7).pod(pod(3).oom()).knows_store(another),
            rests(Summary::Held, Reason::StoreChanged).again(60).says(another.to_string()).is(
                WorkerReady,
                "Unknown",
                Reason::StoreChanged,
            ),
        ),
        case(
            "another store that does not know the run is not given it",
            run().not_in_store().knows_store(another),
            rests(Summary::Held, Reason::StoreChanged),
        ),
        case(
            "a store that has lost the run does not begin it anew",
            run().not_in_store().knows(2, 7, 70),
            rests(Summary::Held, Reason::StoreBehind)
                .says("the store does not know this run; attempt 2, turn 7, event position 70 is known"),
        ),
        case(
            "a store that knows fewer turns than the status is behind",
            run().attached(3).head(6).knows(3, 7, 60).pod(pod(3)),
            rests(Summary::Held, Reason::StoreBehind)
                .again(60)
                .says("turn 6, event position 60; attempt 3, turn 7"),
        ),
        case(
            "a store that knows fewer attempts than the status is behind",
            run().reserved(2).head(7).knows(3, 7, 70),
            rests(Summary::Held, Reason::StoreBehind),
        ),
        case(
            "a store that knows fewer events than the status is behind",
            run().attached(3).head(7).knows(3, 7, 71).pod(pod(3)),
            rests(Summary::Held, Reason::StoreBehind),
        ),
        case(
            "a store that knows fewer turns than a pod resumed from is behind, whatever became of the status",
            run().attached(3).head(6).pod(pod(3).resumed_from(7, 60)),
            rests(Summary::Held, Reason::StoreBehind),
        ),
        case(
            "a store that knows fewer attempts than a pod's label is behind",
            run().reserved(2).pod(pod(3)),
            rests(Summary::Held, Reason::StoreBehind).says("attempt 3"),
        ),
        case(
            "a store that does not know a run with a pod does not begin it anew",
            run().not_in_store().pod(pod(1)),
            rests(Summary::Held, Reason::StoreBehind),
        ),
        case(
            "a look-alike with our labels and another owner is no witness, and is left alone",
            run().attached(2).head(6).pod(pod(2)).pod(pod(9).resumed_from(99, 990).of_somebody_else()),
            rests(Summary::Running, Reason::UnderControl),
        ),
        case(
            "a pod of another namespace is no witness, though it names the run as its owner, and is left alone",
            run().attached(2).head(6).pod(pod(2)).pod(pod(9).resumed_from(99, 990).of_another_namespace()),
            rests(Summary::Running, Reason::UnderControl),
        ),
        case(
            "a status without a word is written anew from a store that is ahead",
            run().attached(3).head(7).pod(pod(3)),
            rests(Summary::Running, Reason::UnderControl).tells(&["Attached"]),
        ),
        case(
            "a run that was deleted on purpose stays so, though its AgentRun is back",
            run().attached(3).lifecycle(Lifecycle::Deleted).pod(pod(3)),
            rests(Summary::Held, Reason::StoreBehind).says("the store has closed this run"),
        ),
        case(
            "a run that was given up for a later one stays so",
            run().attached(3).lifecycle(Lifecycle::Abandoned),
            rests(Summary::Held, Reason::StoreBehind),
        ),
    ]
}

fn what_is_over() -> Vec<Case> {
    let succeeded = || run().attached(2).head(9).finished(RunOutcome::Succeeded, 600);
    let told = || succeeded().written();
    vec![
        case(
            "finished in the store is finished, whatever a restored status says",
            succeeded().knows(1, 3, 30),
            rests(Summary::Succeeded, Reason::Completed).is(Finished, "True", Reason::Completed),
        ),
        case(
            "finished in the store is finished, though its AgentRun was deleted and is back",
            succeeded().lifecycle(Lifecycle::Deleted),
            rests(Summary::Succeeded, Reason::Completed),
        ),
        case(
            "an end that was told stays told while the store does not answer",
            told().store_unknown(),
            rests(Summary::Succeeded, Reason::Completed).again(60).tells(&[]),
        ),
        case(
            "an end that was told stays told in another store",
            told().knows_store(Uuid::from_u128(7)),
            rests(Summary::Succeeded, Reason::Completed).is(Finished, "True", Reason::Completed),
        ),
        case(
            "an end that was told is not begun anew in a store that lost it",
            told().not_in_store(),
            rests(Summary::Succeeded, Reason::Completed),
        ),
        case(
            "an end that was told is not undone by a store that does not know of it yet",
            run().attached(2).head(9).knows(2, 9, 90).told_succeeded().pod(pod(2).terminated(0)),
            rests(Summary::Succeeded, Reason::Completed).is(Finished, "True", Reason::Completed),
        ),
    ]
}
