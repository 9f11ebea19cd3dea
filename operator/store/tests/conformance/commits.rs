//! Boundaries: which is next, what stands, what is refused and in which order.

use dalsegno_protocol::{Boundary, Policy, Usage};
use dalsegno_store::{Class, Commit, Committed, Lifecycle, RunOutcome};
use uuid::Uuid;

use crate::faces::on_every_face;
use crate::world::*;

on_every_face! {
    only_the_next_boundary_is_accepted,
    the_answer_tells_the_head_and_the_lease,
    the_answer_names_the_boundary_before_the_one_that_was_committed,
    the_same_bytes_again_are_a_duplicate,
    other_bytes_for_a_turn_that_is_there_are_a_conflict,
    the_same_id_and_digest_under_another_turn_are_no_duplicate,
    only_the_heads_bytes_are_a_duplicate,
    positions_count_events,
    usage_is_added_once,
    a_commit_renews_only_a_lease_that_a_heartbeat_bound,
    an_unknown_run_is_not_found,
    fenced_comes_before_all_else,
    duplicate_comes_before_finished,
    duplicate_comes_before_unsettled_calls,
    finished_comes_before_conflict,
    unsettled_calls_come_before_conflict,
    a_fenced_worker_is_told_whether_its_commit_stands,
    a_run_may_end_with_a_boundary,
    a_worker_that_never_attached_is_fenced,
}

async fn only_the_next_boundary_is_accepted(world: &World) {
    use Boundary::{Plan, Result};
    let worker = world.worker().await;
    // What stands; which of these may follow, and which may not.
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
            let answer = world.commit(&worker.commit(*turn, *boundary)).await.unwrap();
            assert_eq!(answer, Committed::Conflict { head }, "({turn}, {boundary:?}) after {head:?}");
        }
        ok(world.commit(&worker.commit(accepted.0, accepted.1)).await.unwrap());
    }
    let fresh = world.worker().await;
    ok(world.commit(&fresh.plan(1)).await.unwrap());
}

async fn the_answer_tells_the_head_and_the_lease(world: &World) {
    let worker = world.worker().await;
    let standing = world.turn(&worker, 1).await;
    let head = standing.head.unwrap();
    assert_eq!((head.turn, head.boundary, head.position), (1, Boundary::Result, 0));
    assert!(
        head.content_hash.starts_with("sha256:") && head.content_hash.len() == 71,
        "{}",
        head.content_hash
    );
    assert_eq!((standing.asked.suspend, standing.asked.cancel), (false, false));
    assert_eq!(standing.asked.lease_ms, LONG.heartbeat_ms);
    let row = world.of(&worker).await.head.unwrap();
    assert_eq!((row.content_hash, row.epoch, row.attempt), (head.content_hash, 1, 1));
}

async fn the_answer_names_the_boundary_before_the_one_that_was_committed(world: &World) {
    let worker = world.worker().await;
    assert_eq!(world.turn(&worker, 1).await.parent, None);
    let mut before = world.boundaries(worker.run, 1, 1).await.unwrap();
    for turn in 2..=3 {
        let parent = before.pop().map(|row| row.content_hash);
        assert_eq!(world.turn(&worker, turn).await.parent, parent);
        before = world.boundaries(worker.run, turn, turn).await.unwrap();
    }
}

async fn the_same_bytes_again_are_a_duplicate(world: &World) {
    let worker = world.worker().await;
    for commit in [worker.plan(1), worker.result(1), worker.result(2)] {
        let first = ok(world.commit(&commit).await.unwrap());
        let record = world.of(&worker).await;
        for _ in 0..3 {
            assert_eq!(world.commit(&commit).await.unwrap(), duplicate(&first));
        }
        assert_eq!(still(world.of(&worker).await), still(record), "a duplicate changes nothing");
    }
    assert_eq!(world.boundaries(worker.run, 1, 9).await.unwrap().len(), 3);
}

async fn other_bytes_for_a_turn_that_is_there_are_a_conflict(world: &World) {
    let worker = world.worker().await;
    let commit = worker.result(1);
    ok(world.commit(&commit).await.unwrap());
    let conflict = Committed::Conflict { head: Some((1, Boundary::Result)) };
    let same_id = Commit { digest: random(), ..again(&commit) };
    assert_eq!(world.commit(&same_id).await.unwrap(), conflict);
    let same_digest = Commit { commit_id: Uuid::new_v4(), ..again(&commit) };
    assert_eq!(world.commit(&same_digest).await.unwrap(), conflict);
    assert_eq!(world.commit(&remade(&commit)).await.unwrap(), conflict);
}

async fn the_same_id_and_digest_under_another_turn_are_no_duplicate(world: &World) {
    let worker = world.worker().await;
    let plan = worker.plan(1);
    ok(world.commit(&plan).await.unwrap());
    let skips = Commit { turn: 2, ..again(&plan) };
    let conflict = Committed::Conflict { head: Some((1, Boundary::Plan)) };
    assert_eq!(world.commit(&skips).await.unwrap(), conflict);
}

async fn only_the_heads_bytes_are_a_duplicate(world: &World) {
    let worker = world.worker().await;
    let first = worker.result(1);
    ok(world.commit(&first).await.unwrap());
    world.turn(&worker, 2).await;
    let answer = world.commit(&first).await.unwrap();
    assert_eq!(answer, Committed::Conflict { head: Some((2, Boundary::Result)) });
}

async fn positions_count_events(world: &World) {
    let worker = world.worker().await;
    for (turn, count, position) in [(1, 2, 2), (2, 0, 2), (3, 3, 5)] {
        let events = (0..count).map(|number| json(&format!(r#"{{"n":  {number}}}"#))).collect();
        let commit = Commit { events, ..worker.result(turn) };
        let head = ok(world.commit(&commit).await.unwrap()).head.unwrap();
        assert_eq!(head.position, position, "turn {turn}");
        assert!(matches!(world.commit(&commit).await.unwrap(), Committed::Duplicate(_)));
    }
    assert_eq!(world.of(&worker).await.head.unwrap().position, 5);
}

async fn usage_is_added_once(world: &World) {
    let worker = world.worker().await;
    let spent = Usage { tokens_in: 10, tokens_out: 20, tool_calls: 1, cost_micro_usd: 300 };
    for turn in [1, 2] {
        let commit = Commit { usage: spent, ..worker.result(turn) };
        ok(world.commit(&commit).await.unwrap());
        world.commit(&commit).await.unwrap();
        world.commit(&Commit { usage: spent, ..worker.result(turn) }).await.unwrap();
    }
    let sum = Usage { tokens_in: 20, tokens_out: 40, tool_calls: 2, cost_micro_usd: 600 };
    assert_eq!(world.of(&worker).await.usage, sum);
}

async fn a_commit_renews_only_a_lease_that_a_heartbeat_bound(world: &World) {
    let worker = world.worker().await;
    world.turn(&worker, 1).await;
    assert_eq!(world.of(&worker).await.attempt.lease_renewed_at, None);
    world.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    let bound = world.of(&worker).await.attempt.lease_renewed_at;
    assert!(bound.is_some());
    pause(10).await;
    world.turn(&worker, 2).await;
    assert!(world.of(&worker).await.attempt.lease_renewed_at > bound);
}

async fn an_unknown_run_is_not_found(world: &World) {
    let worker = world.worker().await;
    let commit = Commit { run: Uuid::now_v7(), ..worker.result(1) };
    assert_eq!(world.commit(&commit).await.unwrap(), Committed::NotFound);
}

async fn fenced_comes_before_all_else(world: &World) {
    let worker = world.worker().await;
    let head = worker.result(1);
    ok(world.commit(&head).await.unwrap());
    // Over a duplicate, over a conflict, over a commit that would be accepted.
    for commit in [again(&head), remade(&head), worker.result(2)] {
        let committed = commit.commit_id == head.commit_id;
        let stranger = Commit { capability: random(), ..commit };
        assert_eq!(world.commit(&stranger).await.unwrap(), Committed::Fenced { committed });
    }
    // Over unsettled calls.
    world.start_call(&worker, "pay", Policy::Ask).await;
    let next = world.next(&worker).await;
    assert_eq!(world.commit(&worker.result(2)).await.unwrap(), Committed::Fenced { committed: false });
    // Over a run that is finished.
    world.settle(&person_settles(worker.run, "pay")).await.unwrap();
    ok(world.finish(&next.finish()).await.unwrap());
    assert_eq!(world.commit(&worker.result(2)).await.unwrap(), Committed::Fenced { committed: false });
}

async fn duplicate_comes_before_finished(world: &World) {
    let worker = world.worker().await;
    let head = worker.result(1);
    let standing = ok(world.commit(&head).await.unwrap());
    ok(world.finish(&worker.finish()).await.unwrap());
    assert_eq!(world.commit(&head).await.unwrap(), duplicate(&standing));
    assert_eq!(world.commit(&worker.result(2)).await.unwrap(), Committed::Finished);
}

async fn duplicate_comes_before_unsettled_calls(world: &World) {
    let worker = world.worker().await;
    let head = worker.result(1);
    ok(world.commit(&head).await.unwrap());
    world.start_call(&worker, "pay", Policy::Probe).await;
    let worker = world.next(&worker).await;
    let same = Commit { capability: worker.capability, ..again(&head) };
    assert!(matches!(world.commit(&same).await.unwrap(), Committed::Duplicate(_)));
    assert_eq!(world.commit(&worker.result(2)).await.unwrap(), Committed::UnsettledCalls);
}

async fn finished_comes_before_conflict(world: &World) {
    let worker = world.worker().await;
    world.turn(&worker, 1).await;
    ok(world.finish(&worker.finish()).await.unwrap());
    for turn in [1, 2, 7] {
        assert_eq!(world.commit(&worker.result(turn)).await.unwrap(), Committed::Finished, "turn {turn}");
    }
}

async fn unsettled_calls_come_before_conflict(world: &World) {
    let worker = world.worker().await;
    world.turn(&worker, 1).await;
    world.start_call(&worker, "pay", Policy::Probe).await;
    let worker = world.next(&worker).await;
    for turn in [1, 7] {
        assert_eq!(
            world.commit(&worker.result(turn)).await.unwrap(),
            Committed::UnsettledCalls,
            "turn {turn}"
        );
    }
}

async fn a_fenced_worker_is_told_whether_its_commit_stands(world: &World) {
    let worker = world.worker().await;
    let (first, second) = (worker.result(1), worker.result(2));
    ok(world.commit(&first).await.unwrap());
    ok(world.commit(&second).await.unwrap());
    let next = world.next(&worker).await;
    world.turn(&next, 3).await;
    for commit in [&first, &second] {
        assert_eq!(world.commit(commit).await.unwrap(), Committed::Fenced { committed: true });
        let altered = Commit { digest: random(), ..again(commit) };
        assert_eq!(world.commit(&altered).await.unwrap(), Committed::Fenced { committed: false });
    }
    assert_eq!(world.commit(&worker.result(3)).await.unwrap(), Committed::Fenced { committed: false });
}

async fn a_run_may_end_with_a_boundary(world: &World) {
    let worker = world.worker().await;
    world.turn(&worker, 1).await;
    let last = Commit { finish: Some(succeeded()), ..worker.result(2) };
    let standing = ok(world.commit(&last).await.unwrap());
    assert_eq!(standing.head.as_ref().unwrap().turn, 2);
    let run = world.of(&worker).await;
    assert_eq!((run.lifecycle, run.epoch), (Lifecycle::Finished, 1), "a finish moves no epoch");
    let finish = run.finish.unwrap();
    assert_eq!((finish.outcome, finish.reason.as_str()), (RunOutcome::Succeeded, "GoalReached"));
    assert_eq!(finish.output.as_deref(), Some(r#"{"answer":  42}"#), "as it came");
    assert_eq!(world.commit(&last).await.unwrap(), duplicate(&standing));
    assert_eq!(world.commit(&worker.result(3)).await.unwrap(), Committed::Finished);
    assert_eq!(world.commit(&remade(&last)).await.unwrap(), Committed::Finished);
}

async fn a_worker_that_never_attached_is_fenced(world: &World) {
    let run = world.run().await;
    let imagined = Worker {
        run: run.id,
        object_uid: run.object_uid.clone(),
        attempt: 1,
        pod_uid: String::new(),
        capability: [0; 32],
    };
    for capability in [[0; 32], random()] {
        let commit = Commit { capability, ..imagined.result(1) };
        assert_eq!(world.commit(&commit).await.unwrap(), Committed::Fenced { committed: false });
    }
    let worker = world.work_on(&run).await;
    world.lose(&worker, Class::Disruption).await;
    assert_eq!(world.commit(&imagined.result(1)).await.unwrap(), Committed::Fenced { committed: false });
}
