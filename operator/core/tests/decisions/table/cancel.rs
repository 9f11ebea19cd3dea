//! A person does not want the run any more.

use dalsegno_crds::ConditionType::{Finished, Ready, Succeeded};
use dalsegno_crds::{Cause, Reason, Summary};
use dalsegno_model::RunOutcome;
use serde_json::json;

use crate::words::{Case, acts, case, crashed, pod, rests, run, try_all};

pub fn cases() -> Vec<Case> {
    [before_any_worker(), with_a_worker(), ends()].into_iter().flatten().collect()
}

#[test]
fn a_cancelled_run_comes_to_its_end_wherever_it_stands() {
    try_all(cases());
}

fn end(attempt: i32) -> crate::words::Expect {
    acts(format!("end {attempt}: Cancelled, Neutral, then finish Cancelled Cancelled"))
}

fn before_any_worker() -> Vec<Case> {
    let reserved = || run().cancelled().cancel(1, None);
    vec![
        case("the store is told first", run().cancelled(), acts("request cancel")),
        case(
            "whatever the run is doing",
            run().attached(3).pod(pod(3).oom()).cancelled(),
            acts("request cancel"),
        ),
        case("an attempt without a pod is ended", reserved(), end(1).says("before it had a worker")),
        case(
            "so is one that waits for its time",
            reserved().reserved(4).crashes(2, 2).after(crashed(3, Cause::OOMKilled).ago(0)),
            end(4),
        ),
        case("so is one that is held", reserved().reserved(4).crashes(3, 3), end(4)),
        case("so is one whose definition is missing", reserved().no_definition(), end(1)),
        case(
            "so is one that the API server refuses",
            reserved().refused(403, "exceeded quota", 1, 0),
            end(1),
        ),
        case(
            "a pod that was made and not recorded is recorded before",
            reserved().pod(pod(1)),
            acts("record pod pod-1 of attempt 1"),
        ),
        case(
            "an attempt whose worker has not attached is ended",
            run().created(3).pod(pod(3)).cancelled().cancel(1, None),
            end(3).says("before its worker attached"),
        ),
    ]
}

fn with_a_worker() -> Vec<Case> {
    let told = |requested: i64, told: Option<i64>| {
        run().attached(3).head(7).heartbeat(2).pod(pod(3)).cancelled().cancel(requested, told)
    };
    let waits = || rests(Summary::Running, Reason::Cancelling).is(Ready, "True", Reason::Cancelling);
    vec![
        case("a worker that was told has 30 s", told(60, Some(30)), waits()),
        case("then it is fenced", told(60, Some(31)), end(3).says("its worker did not acknowledge it")),
        case("a worker that was not told has 90 s", told(90, None), waits()),
        case("then it is fenced, too", told(91, None), end(3)),
        case("an outage of ours gives it its time anew", told(600, Some(600)).gap(600, 30), waits()),
        case(
            "a worker that crashed meanwhile is not charged",
            run().attached(3).head(7).pod(pod(3).terminated(1)).cancelled().cancel(5, None),
            end(3).says("and its worker ended: ExitedWithError: exit code 1"),
        ),
        case(
            "however much it says, the run's end is one that its status can show",
            run()
                .attached(3)
                .head(7)
                .pod(pod(3).terminated(1).said(&last_words()))
                .cancelled()
                .cancel(5, None),
            end(3),
        ),
        case(
            "a worker whose pod is gone is not waited for",
            run().attached(3).head(7).cancelled().cancel(5, None),
            end(3).says("PodVanished"),
        ),
    ]
}

/// As long as the kubelet takes them.
fn last_words() -> String {
    let message = "é\0".repeat(400);
    json!({ "dalsegno": 1, "class": "crash", "message": message }).to_string()
}

fn ends() -> Vec<Case> {
    vec![
        case(
            "a finish that came first stands",
            run().attached(3).head(7).pod(pod(3)).cancelled().finished(RunOutcome::Succeeded, 5),
            rests(Summary::Succeeded, Reason::Completed).is(Succeeded, "True", Reason::Completed),
        ),
        case(
            "a run that was cancelled is as it was asked to be",
            run().attached(3).cancelled().ended_by_operator(RunOutcome::Cancelled, 5),
            rests(Summary::Cancelled, Reason::Cancelled)
                .is(Finished, "True", Reason::Cancelled)
                .is(Succeeded, "False", Reason::Cancelled)
                .is(Ready, "True", Reason::Cancelled),
        ),
        case(
            "a worker that did not heed its cancel is deleted at once",
            run().attached(3).pod(pod(3)).cancelled().ended_by_operator(RunOutcome::Cancelled, 1),
            rests(Summary::Cancelled, Reason::Cancelled).stops("triage-3"),
        ),
        case(
            "a worker that acknowledged it may exit by itself",
            run().attached(3).pod(pod(3)).cancelled().acknowledged(10),
            rests(Summary::Cancelled, Reason::Cancelled).again(20),
        ),
        case(
            "for 30 s",
            run().attached(3).pod(pod(3)).cancelled().acknowledged(30),
            rests(Summary::Cancelled, Reason::Cancelled).stops("triage-3"),
        ),
    ]
}
