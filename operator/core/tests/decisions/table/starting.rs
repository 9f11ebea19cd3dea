//! A pod whose worker has not attached yet, and what it waits for.

use dalsegno_crds::ConditionType::{Ready, Reconciling, WorkerReady};
use dalsegno_crds::{Cause, EventReason, Reason, Summary};

use dalsegno_core::{Observed, Rule};
use dalsegno_model::Class::{Crash, Neutral};
use serde_json::json;

use crate::fixtures::{
    Case, Given, IMAGE_BY_TAG, case, check_all, crashed, expect_effect, expect_end, expect_status, neutral,
    pod, run,
};

#[test]
fn the_status_of_a_starting_worker_shows_what_it_waits_for() {
    check_all(vec![
        case(
            "the node of a scheduled pod is recorded",
            run().created(1).no_node_yet().pod(pod(1)),
            expect_effect("record node n1 of attempt 1"),
        ),
        case(
            "a pod without a node is pending, and the message says why",
            run()
                .created(1)
                .no_node_yet()
                .pod(pod(1).unscheduled("0/2 nodes are available: 2 Insufficient cpu")),
            expect_status(Summary::Pending, Reason::Unschedulable)
                .message_contains("2 Insufficient cpu")
                .condition(WorkerReady, "False", Reason::Unschedulable)
                .condition(Reconciling, "True", Reason::Unschedulable),
        ),
        case(
            "a pod on its node is starting",
            run().created(1).pod(pod(1)),
            expect_status(Summary::Starting, Reason::Starting)
                .condition(Ready, "False", Reason::Starting)
                .condition(Reconciling, "True", Reason::Starting)
                .events(&[&EventReason::WorkerCreated]),
        ),
        case(
            "ContainerCreating is a normal step",
            run().created(1).pod(pod(1).waiting("ContainerCreating", "")),
            expect_status(Summary::Starting, Reason::Starting).message_contains("the worker has not attached yet"),
        ),
        case(
            "a volume that cannot be attached",
            run().created(1).pod(pod(1).no_container_yet("FailedAttachVolume", "Multi-Attach error")),
            expect_status(Summary::Starting, Reason::Starting)
                .message_contains("FailedAttachVolume: Multi-Attach error")
                .requeue_after(60),
        ),
        case(
            "the latest event is another one",
            run().created(1).pod(pod(1).no_container_yet("Pulling", "Pulling image \"x\"")),
            expect_status(Summary::Starting, Reason::Starting).message_contains("the worker has not attached yet"),
        ),
        case(
            "a start that may become slow is looked at after 30 s",
            run().created(1).scheduled(10).pod(pod(1).waiting("ContainerCreating", "")),
            expect_status(Summary::Starting, Reason::Starting).requeue_after(20),
        ),
        case(
            "an image that cannot be pulled",
            run().created(1).pod(pod(1).waiting("ErrImagePull", "not found")),
            expect_status(Summary::Starting, Reason::ImagePullFailed).message_contains("ErrImagePull: not found").condition(
                Ready,
                "False",
                Reason::ImagePullFailed,
            ),
        ),
        case(
            "a missing ConfigMap",
            run().created(1).pod(pod(1).waiting("CreateContainerConfigError", "configmap \"c\" not found")),
            expect_status(Summary::Starting, Reason::Starting)
                .message_contains("CreateContainerConfigError: configmap \"c\" not found"),
        ),
        case(
            "after the end of an attempt the reason names its cause",
            run().created(2).pod(pod(2)).after(crashed(1, Cause::OOMKilled)),
            expect_status(Summary::Starting, Reason::OutOfMemory)
                .condition(Ready, "False", Reason::OutOfMemory)
                .message_contains(
                    "Ready: attempt 1 ended before its first turn: OOMKilled: last words; attempt 2 is starting: the worker has \
                     not attached yet",
                ),
        ),
        case(
            "a problem of the start is more important than the end of the last attempt",
            run()
                .created(2)
                .pod(pod(2).waiting("ErrImagePull", "not found"))
                .after(crashed(1, Cause::OOMKilled)),
            expect_status(Summary::Starting, Reason::ImagePullFailed),
        ),
    ]);
}

/// Attempt 3 starts after turn 7 from a template whose command is not the checkpoint's, and whose image is.
fn new_command() -> Given {
    let container = json!({ "name": "agent", "image": IMAGE_BY_TAG, "command": ["/new"] });
    let given = run().template_stored(&run().document());
    let given = given.agent(json!({ "spec": { "containers": [container] } }));
    let revision = given.document().hash();
    given.created(3).head(7).made_from(&revision)
}

pub fn cases() -> Vec<Case> {
    [failed_starts(), changed_templates()].into_iter().flatten().collect()
}

#[test]
fn a_start_that_cannot_succeed_is_replaced_and_not_charged() {
    check_all(cases());
}

/// A start that fails while the template that wrote the checkpoint is another one.
fn failed_starts() -> Vec<Case> {
    let pulling = || pod(3).waiting("ImagePullBackOff", "Back-off pulling image");
    let exec_format = "exec /agent: exec format error";
    let starting = || expect_status(Summary::Starting, Reason::ImagePullFailed);
    let mut cases = vec![
        case(
            "a pod that cannot pull its image falls back to the checkpoint's template",
            new_command().scheduled(31).pod(pulling()),
            expect_end(3, Cause::ImageUnavailable, Neutral)
                .message_contains("the next attempt uses the template that wrote the checkpoint"),
        ),
        case(
            "a registry that fails once is not a bad roll-out",
            new_command().scheduled(10).pod(pulling()),
            starting().requeue_after(20),
        ),
        case(
            "a container that cannot be created falls back",
            new_command().scheduled(31).pod(pod(3).waiting("CreateContainerError", "no such user")),
            expect_end(3, Cause::StartFailed, Neutral).message_contains("no such user"),
        ),
        case(
            "without a checkpoint there is nothing to fall back to",
            run().created(3).scheduled(31).pod(pulling()),
            starting(),
        ),
        case(
            "without the policy Pin an attempt waits for its start deadline",
            new_command().on_mismatch("Allow").scheduled(31).pod(pulling()),
            starting(),
        ),
        case(
            "the template is read before a failed start is judged",
            Given { seen: Observed { templates: Default::default(), ..new_command().seen }, ..new_command() }
                .pod(pod(3).terminated(127)),
            expect_effect(format!("read template {}", run().document().hash())),
        ),
        case(
            "an image of another architecture falls back",
            new_command().pod(pod(3).terminated(1).message(exec_format)),
            expect_end(3, Cause::StartFailed, Neutral).message_contains(exec_format),
        ),
        case(
            "without a checkpoint a command that cannot start is charged",
            run().created(3).pod(pod(3).terminated(127)),
            expect_end(3, Cause::StartFailed, Crash).message_contains("exit code 127 before it attached"),
        ),
        case(
            "a worker that started and failed is charged",
            new_command().pod(pod(3).terminated(2)),
            expect_end(3, Cause::ExitedWithError, Crash),
        ),
        case(
            "an attached worker that exits with 127 is charged",
            run().attached(3).pod(pod(3).terminated(127)),
            expect_end(3, Cause::ExitedWithError, Crash),
        ),
    ];
    cases.extend([126, 127, 128].map(|code| {
        case(
            "a command that cannot start falls back",
            new_command().pod(pod(3).terminated(code)),
            expect_end(3, Cause::StartFailed, Neutral)
                .message_contains("the next attempt uses the template that wrote the checkpoint")
                .message_contains(format!("exit code {code}")),
        )
    }));
    cases
}

/// The definition was edited before the worker attached.
fn changed_templates() -> Vec<Case> {
    let edited = || run().image("registry.test:5000/agent:2");
    let changed = || expect_end(3, Cause::TemplateChanged, Neutral);
    vec![
        case(
            "a pod that cannot pull its image is replaced when the definition is put right",
            edited().created(3).pod(pod(3).waiting("ErrImagePull", "not found")),
            changed().message_contains("the definition changed before the worker attached"),
        ),
        case(
            "so is a pod without a node",
            edited().created(3).no_node_yet().pod(pod(3).unscheduled("no node fits")),
            changed(),
        ),
        case(
            "an edit never changes an attached worker",
            edited().attached(3).pod(pod(3)),
            expect_status(Summary::Running, Reason::UnderControl),
        ),
        case(
            "a pod that has the checkpoint's template keeps it under Pin",
            edited().created(3).head(7).image_is('a').pod(pod(3)),
            expect_status(Summary::Starting, Reason::Starting),
        ),
        case(
            "a pod of a bad template is replaced by a pinned one",
            edited()
                .template_stored(&run().document())
                .created(3)
                .head(7)
                .made_from("sha256:bad")
                .pod(pod(3)),
            changed(),
        ),
        case(
            "a run that was held for its bad template starts when the definition is put right",
            [3, 2, 1].into_iter().fold(run().reserved(4), |it, n| {
                it.after(neutral(n, Cause::ImageUnavailable).ago(9_000).made_from("sha256:bad"))
            }),
            expect_effect("create triage-4"),
        ),
        case(
            "a missing definition changes nothing",
            run().created(3).no_definition().image_is('a').pod(pod(3)),
            expect_status(Summary::Starting, Reason::Starting),
        ),
    ]
}

#[test]
fn a_bad_image_is_a_warning_that_says_what_to_do() {
    let pulling = |attempt: i32| pod(attempt).waiting("ErrImagePull", "not found");
    let first = run().created(1).pod(pulling(1));
    check_all(vec![case(
        "the message has the way out",
        first.clone(),
        expect_status(Summary::Starting, Reason::ImagePullFailed)
            .message_contains("ErrImagePull: not found. Check the image's name")
            .events(&[&EventReason::WorkerCreated, &Reason::ImagePullFailed]),
    )]);
    let event = first.decide().events.pop().unwrap();
    assert_eq!(event.level, dalsegno_core::EventLevel::Warning);
    assert!(event.note.contains("Check the image's name"), "{event:?}");
    let mut backing_off = first.status_written();
    backing_off.seen.pods = vec![pod(1).waiting("ImagePullBackOff", "Back-off").0];
    assert_eq!(backing_off.decide().events, []);
}

#[test]
fn alternating_messages_of_one_failed_pull_do_not_change_the_status() {
    let first = run().created(1).pod(pod(1).waiting("ErrImagePull", "not found")).status_written();
    let mut second = first.clone();
    second.seen.pods = vec![pod(1).waiting("ImagePullBackOff", "Back-off pulling image").0];
    assert_eq!(second.decide().status, first.decide().status);
}

#[test]
fn repeated_tries_for_the_same_reason_do_not_change_the_status() {
    let first =
        run().created(1).no_node_yet().pod(pod(1).unscheduled("0/2 nodes are available")).status_written();
    let mut second = first.clone();
    second.seen.pods = vec![pod(1).unscheduled("0/3 nodes are available: 3 Insufficient cpu").0];
    assert_eq!(second.decide().status, first.decide().status, "the scheduler counts other nodes");

    for (code, messages) in [
        (403, ["exceeded quota: runs, used: pods=9", "exceeded quota: runs, used: pods=10"]),
        (500, ["the webhook did not answer: EOF", "the webhook did not answer: connection refused"]),
    ] {
        let [first, second] = messages;
        let written = run().reserved(1).pod_rejected(code, first, 1, 0).status_written();
        let again = written.clone().pod_rejected(code, second, 2, 0);
        assert_eq!(again.decide().status, written.decide().status, "{second}");
    }
}

/// A run whose status shows that it backs off. Since then its pod was created, and scheduled this many seconds ago.
fn started_after_backoff(seconds_ago: i64) -> Given {
    let backing_off =
        run().reserved(2).crashes(1, 1).after(crashed(1, Cause::OOMKilled).ago(0)).status_written();
    backing_off.created(2).scheduled(seconds_ago)
}

#[test]
fn the_steps_of_a_fast_start_need_one_status_write() {
    check_all(vec![
        case(
            "the first status is written at once",
            run().created(1).scheduled(0).pod(pod(1)),
            expect_status(Summary::Starting, Reason::Starting).events(&[&EventReason::WorkerCreated]),
        ),
        case(
            "a new attempt is shown at once",
            Given { seen: run().seen, ..run().created(1).pod(pod(1)).status_written() }
                .created(2)
                .scheduled(0)
                .pod(pod(2))
                .after(crashed(1, Cause::OOMKilled)),
            expect_status(Summary::Starting, Reason::OutOfMemory)
                .events(&[&Cause::OOMKilled, &EventReason::WorkerCreated]),
        ),
        case(
            "the status of a known attempt is kept while its start is in progress",
            started_after_backoff(1).pod(pod(2)),
            expect_status(Summary::BackingOff, Reason::OutOfMemory)
                .events(&[])
                .requeue_after(1)
                .follows(Rule::Starting),
        ),
        case(
            "after 2 s without a step the status is written",
            started_after_backoff(2).pod(pod(2)),
            expect_status(Summary::Starting, Reason::OutOfMemory).events(&[&EventReason::WorkerCreated]),
        ),
        case(
            "the attach is shown at once",
            started_after_backoff(1).attached(2).scheduled(1).pod(pod(2)),
            expect_status(Summary::Running, Reason::UnderControl)
                .events(&[&EventReason::WorkerCreated, &Reason::Attached]),
        ),
        case(
            "a problem of the start is shown at once",
            started_after_backoff(1).pod(pod(2).waiting("ErrImagePull", "not found")),
            expect_status(Summary::Starting, Reason::ImagePullFailed),
        ),
        case(
            "the end of a hold is shown at once",
            run().no_definition().status_written().created(1).scheduled(0).pod(pod(1)),
            expect_status(Summary::Starting, Reason::Starting).events(&[&EventReason::WorkerCreated]),
        ),
    ]);
}
