//! Boundaries: which one is next, which ones are refused, and in which order the checks are made.

use dalsegno_model::{Class, Commit, Committed, Lifecycle, RunOutcome};
use dalsegno_protocol::{Boundary, Policy, Usage};
use uuid::Uuid;

use crate::context::*;
use crate::engines::on_every_engine;

on_every_engine! {
    only_the_next_boundary_is_accepted,
    the_answer_has_the_head_and_the_lease,
    the_answer_names_the_boundary_before_the_one_that_was_committed,
    the_same_bytes_again_are_a_duplicate,
    other_bytes_for_a_committed_turn_are_a_conflict,
    the_same_id_and_digest_under_another_turn_are_no_duplicate,
    only_the_heads_bytes_are_a_duplicate,
    positions_count_events,
    usage_is_added_once,
    a_commit_renews_only_a_lease_that_a_heartbeat_bound,
    an_unknown_run_is_not_found,
    fenced_comes_before_every_other_answer,
    duplicate_comes_before_finished,
    duplicate_comes_before_unsettled_calls,
    finished_comes_before_conflict,
    unsettled_calls_come_before_conflict,
    a_fenced_worker_learns_whether_its_commit_was_accepted,
    a_run_may_end_with_a_boundary,
    a_worker_that_never_attached_is_fenced,
}

async fn only_the_next_boundary_is_accepted(cx: &TestContext) {
    use Boundary::{Plan, Result};
    let worker = cx.worker().await;
    // The head; the boundaries that are refused after it; the one that is accepted.
    type At = (i32, Boundary);
    let steps: [(Option<At>, &[At], At); 5] = [
        (
            None,
            &[(0, Plan), (0, Result), (-1, Result), (2, Plan), (2, Result), (i32::MAX, Result)],
            (1, Result),
        ),
        (Some((1, Result)), &[(1, Plan), (1, Result), (0, Result), (3, Plan), (3, Result)], (2, Plan)),
        (Some((2, Plan)), &[(1, Result), (2, Plan), (3, Plan), (3, Result)], (2, Result)),
        (Some((2, Result)), &[(2, Plan), (2, Result), (4, Plan), (4, Result), (i32::MIN, Plan)], (3, Plan)),
        (Some((3, Plan)), &[(3, Plan), (4, Plan), (4, Result)], (3, Result)),
    ];
    for (head, refused, accepted) in steps {
        for (turn, boundary) in refused {
            let answer = cx.commit(&worker.commit(*turn, *boundary)).await.unwrap();
            assert_eq!(answer, Committed::Conflict { head }, "({turn}, {boundary:?}) after {head:?}");
        }
        ok(cx.commit(&worker.commit(accepted.0, accepted.1)).await.unwrap());
    }
    let fresh = cx.worker().await;
    ok(cx.commit(&fresh.plan(1)).await.unwrap());
}

async fn the_answer_has_the_head_and_the_lease(cx: &TestContext) {
    let worker = cx.worker().await;
    let receipt = cx.commit_turn(&worker, 1).await;
    let head = receipt.head.unwrap();
    assert_eq!((head.turn, head.boundary, head.position), (1, Boundary::Result, 0));
    assert!(
        head.content_hash.starts_with("sha256:") && head.content_hash.len() == 71,
        "{}",
        head.content_hash
    );
    assert_eq!((receipt.signals.suspend, receipt.signals.cancel), (false, false));
    assert_eq!(receipt.signals.lease_ms, LONG_DEADLINES.heartbeat_ms);
    let row = cx.run_of(&worker).await.head.unwrap();
    assert_eq!((row.content_hash, row.epoch, row.attempt), (head.content_hash, 1, 1));
}

async fn the_answer_names_the_boundary_before_the_one_that_was_committed(cx: &TestContext) {
    let worker = cx.worker().await;
    assert_eq!(cx.commit_turn(&worker, 1).await.parent, None);
    let mut before = cx.boundaries(worker.run, 1, 1).await.unwrap();
    for turn in 2..=3 {
        let parent = before.pop().map(|row| row.content_hash);
        assert_eq!(cx.commit_turn(&worker, turn).await.parent, parent);
        before = cx.boundaries(worker.run, turn, turn).await.unwrap();
    }
}

async fn the_same_bytes_again_are_a_duplicate(cx: &TestContext) {
    let worker = cx.worker().await;
    for commit in [worker.plan(1), worker.result(1), worker.result(2)] {
        let first = ok(cx.commit(&commit).await.unwrap());
        let record = cx.run_of(&worker).await;
        for _ in 0..3 {
            assert_eq!(cx.commit(&commit).await.unwrap(), duplicate(&first));
        }
        assert_eq!(
            without_times(cx.run_of(&worker).await),
            without_times(record),
            "a duplicate changes nothing"
        );
    }
    assert_eq!(cx.boundaries(worker.run, 1, 9).await.unwrap().len(), 3);
}

async fn other_bytes_for_a_committed_turn_are_a_conflict(cx: &TestContext) {
    let worker = cx.worker().await;
    let commit = worker.result(1);
    ok(cx.commit(&commit).await.unwrap());
    let conflict = Committed::Conflict { head: Some((1, Boundary::Result)) };
    let same_id = Commit { digest: random_digest(), ..resend(&commit) };
    assert_eq!(cx.commit(&same_id).await.unwrap(), conflict);
    let same_digest = Commit { commit_id: Uuid::new_v4(), ..resend(&commit) };
    assert_eq!(cx.commit(&same_digest).await.unwrap(), conflict);
    assert_eq!(cx.commit(&with_new_id(&commit)).await.unwrap(), conflict);
}

async fn the_same_id_and_digest_under_another_turn_are_no_duplicate(cx: &TestContext) {
    let worker = cx.worker().await;
    let plan = worker.plan(1);
    ok(cx.commit(&plan).await.unwrap());
    let skips = Commit { turn: 2, ..resend(&plan) };
    let conflict = Committed::Conflict { head: Some((1, Boundary::Plan)) };
    assert_eq!(cx.commit(&skips).await.unwrap(), conflict);
}

async fn only_the_heads_bytes_are_a_duplicate(cx: &TestContext) {
    let worker = cx.worker().await;
    let first = worker.result(1);
    ok(cx.commit(&first).await.unwrap());
    cx.commit_turn(&worker, 2).await;
    let answer = cx.commit(&first).await.unwrap();
    assert_eq!(answer, Committed::Conflict { head: Some((2, Boundary::Result)) });
}

async fn positions_count_events(cx: &TestContext) {
    let worker = cx.worker().await;
    for (turn, count, position) in [(1, 2, 2), (2, 0, 2), (3, 3, 5)] {
        let events = (0..count).map(|number| json(&format!(r#"{{"n":  {number}}}"#))).collect();
        let commit = Commit { events, ..worker.result(turn) };
        let head = ok(cx.commit(&commit).await.unwrap()).head.unwrap();
        assert_eq!(head.position, position, "turn {turn}");
        assert!(matches!(cx.commit(&commit).await.unwrap(), Committed::Duplicate(_)));
    }
    assert_eq!(cx.run_of(&worker).await.head.unwrap().position, 5);
}

async fn usage_is_added_once(cx: &TestContext) {
    let worker = cx.worker().await;
    let spent = Usage { tokens_in: 10, tokens_out: 20, tool_calls: 1, cost_micro_usd: 300 };
    for turn in [1, 2] {
        let commit = Commit { usage: spent, ..worker.result(turn) };
        ok(cx.commit(&commit).await.unwrap());
        cx.commit(&commit).await.unwrap();
        cx.commit(&Commit { usage: spent, ..worker.result(turn) }).await.unwrap();
    }
    let sum = Usage { tokens_in: 20, tokens_out: 40, tool_calls: 2, cost_micro_usd: 600 };
    assert_eq!(cx.run_of(&worker).await.usage, sum);
}

async fn a_commit_renews_only_a_lease_that_a_heartbeat_bound(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.commit_turn(&worker, 1).await;
    assert_eq!(cx.run_of(&worker).await.attempt.lease_renewed_at, None);
    cx.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    let bound = cx.run_of(&worker).await.attempt.lease_renewed_at;
    assert!(bound.is_some());
    sleep_ms(10).await;
    cx.commit_turn(&worker, 2).await;
    assert!(cx.run_of(&worker).await.attempt.lease_renewed_at > bound);
}

async fn an_unknown_run_is_not_found(cx: &TestContext) {
    let worker = cx.worker().await;
    let commit = Commit { run: Uuid::now_v7(), ..worker.result(1) };
    assert_eq!(cx.commit(&commit).await.unwrap(), Committed::NotFound);
}

async fn fenced_comes_before_every_other_answer(cx: &TestContext) {
    let worker = cx.worker().await;
    let head = worker.result(1);
    ok(cx.commit(&head).await.unwrap());
    // Fenced comes before duplicate, before conflict, and before a commit that would be accepted.
    for commit in [resend(&head), with_new_id(&head), worker.result(2)] {
        let committed = commit.commit_id == head.commit_id;
        let foreign = Commit { capability: random_digest(), ..commit };
        assert_eq!(cx.commit(&foreign).await.unwrap(), Committed::Fenced { committed });
    }
    // Fenced comes before unsettled calls.
    cx.start_call(&worker, "pay", Policy::Ask).await;
    let next = cx.next_worker(&worker).await;
    assert_eq!(cx.commit(&worker.result(2)).await.unwrap(), Committed::Fenced { committed: false });
    // Fenced comes before finished.
    cx.settle(&person_settles(worker.run, "pay")).await.unwrap();
    ok(cx.finish(&next.finish()).await.unwrap());
    assert_eq!(cx.commit(&worker.result(2)).await.unwrap(), Committed::Fenced { committed: false });
}

async fn duplicate_comes_before_finished(cx: &TestContext) {
    let worker = cx.worker().await;
    let head = worker.result(1);
    let receipt = ok(cx.commit(&head).await.unwrap());
    ok(cx.finish(&worker.finish()).await.unwrap());
    assert_eq!(cx.commit(&head).await.unwrap(), duplicate(&receipt));
    assert_eq!(cx.commit(&worker.result(2)).await.unwrap(), Committed::Finished);
}

async fn duplicate_comes_before_unsettled_calls(cx: &TestContext) {
    let worker = cx.worker().await;
    let head = worker.result(1);
    ok(cx.commit(&head).await.unwrap());
    cx.start_call(&worker, "pay", Policy::Probe).await;
    let worker = cx.next_worker(&worker).await;
    let same = Commit { capability: worker.capability, ..resend(&head) };
    assert!(matches!(cx.commit(&same).await.unwrap(), Committed::Duplicate(_)));
    assert_eq!(cx.commit(&worker.result(2)).await.unwrap(), Committed::UnsettledCalls);
}

async fn finished_comes_before_conflict(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.commit_turn(&worker, 1).await;
    ok(cx.finish(&worker.finish()).await.unwrap());
    for turn in [1, 2, 7] {
        assert_eq!(cx.commit(&worker.result(turn)).await.unwrap(), Committed::Finished, "turn {turn}");
    }
}

async fn unsettled_calls_come_before_conflict(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.commit_turn(&worker, 1).await;
    cx.start_call(&worker, "pay", Policy::Probe).await;
    let worker = cx.next_worker(&worker).await;
    for turn in [1, 7] {
        assert_eq!(cx.commit(&worker.result(turn)).await.unwrap(), Committed::UnsettledCalls, "turn {turn}");
    }
}

async fn a_fenced_worker_learns_whether_its_commit_was_accepted(cx: &TestContext) {
    let worker = cx.worker().await;
    let (first, second) = (worker.result(1), worker.result(2));
    ok(cx.commit(&first).await.unwrap());
    ok(cx.commit(&second).await.unwrap());
    let next = cx.next_worker(&worker).await;
    cx.commit_turn(&next, 3).await;
    for commit in [&first, &second] {
        assert_eq!(cx.commit(commit).await.unwrap(), Committed::Fenced { committed: true });
        let altered = Commit { digest: random_digest(), ..resend(commit) };
        assert_eq!(cx.commit(&altered).await.unwrap(), Committed::Fenced { committed: false });
    }
    assert_eq!(cx.commit(&worker.result(3)).await.unwrap(), Committed::Fenced { committed: false });
}

async fn a_run_may_end_with_a_boundary(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.commit_turn(&worker, 1).await;
    let last = Commit { finish: Some(succeeded()), ..worker.result(2) };
    let receipt = ok(cx.commit(&last).await.unwrap());
    assert_eq!(receipt.head.as_ref().unwrap().turn, 2);
    let run = cx.run_of(&worker).await;
    assert_eq!((run.lifecycle, run.epoch), (Lifecycle::Finished, 1), "a finish moves no epoch");
    let finish = run.finish.unwrap();
    assert_eq!((finish.outcome, finish.reason.as_str()), (RunOutcome::Succeeded, "GoalReached"));
    assert_eq!(finish.output.as_deref(), Some(r#"{"answer":  42}"#), "as it came");
    assert_eq!(cx.commit(&last).await.unwrap(), duplicate(&receipt));
    assert_eq!(cx.commit(&worker.result(3)).await.unwrap(), Committed::Finished);
    assert_eq!(cx.commit(&with_new_id(&last)).await.unwrap(), Committed::Finished);
}

async fn a_worker_that_never_attached_is_fenced(cx: &TestContext) {
    let run = cx.run().await;
    let imagined = Worker {
        run: run.id,
        object_uid: run.object_uid.clone(),
        attempt: 1,
        pod_uid: String::new(),
        capability: [0; 32],
    };
    for capability in [[0; 32], random_digest()] {
        let commit = Commit { capability, ..imagined.result(1) };
        assert_eq!(cx.commit(&commit).await.unwrap(), Committed::Fenced { committed: false });
    }
    let worker = cx.start_worker(&run).await;
    cx.end_and_reserve(&worker, Class::Disruption).await;
    assert_eq!(cx.commit(&imagined.result(1)).await.unwrap(), Committed::Fenced { committed: false });
}
