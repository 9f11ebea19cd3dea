//! A finish where there is no new state.

use dalsegno_protocol::Policy;
use dalsegno_store::{
    AttemptState, Beat, Claimed, Committed, Completed, FinishCall, Lifecycle, NewFinish, RunOutcome,
};
use uuid::Uuid;

use crate::faces::on_every_face;
use crate::world::*;

on_every_face! {
    a_finish_closes_the_run_and_moves_no_epoch,
    the_same_finish_again_is_a_duplicate,
    another_finish_is_refused,
    a_run_that_never_committed_may_finish,
    a_finish_of_an_unknown_run_is_not_found,
    a_finish_is_fenced_like_a_commit,
    a_finish_waits_for_unsettled_calls,
    after_the_finish_nothing_more_is_accepted,
    a_finish_that_ended_with_a_boundary_is_known_by_its_bytes,
}

fn again(call: &FinishCall) -> FinishCall {
    FinishCall { finish: call.finish.clone(), ..*call }
}

async fn a_finish_closes_the_run_and_moves_no_epoch(world: &World) {
    let worker = world.worker().await;
    world.turn(&worker, 1).await;
    let failed = NewFinish {
        outcome: RunOutcome::Failed,
        reason: "NoRoute".into(),
        message: "there is none".into(),
        output: None,
    };
    let standing = ok(world.finish(&FinishCall { finish: failed, ..worker.finish() }).await.unwrap());
    assert_eq!(standing.head.unwrap().turn, 1);
    let run = world.of(&worker).await;
    assert_eq!(
        (run.lifecycle, run.epoch, run.attempt.state),
        (Lifecycle::Finished, 1, AttemptState::Attached)
    );
    let finish = run.finish.unwrap();
    assert_eq!((finish.outcome, finish.reason.as_str()), (RunOutcome::Failed, "NoRoute"));
    assert_eq!((finish.message.as_str(), finish.output), ("there is none", None));
    assert!(finish.at >= run.created_at);
}

async fn the_same_finish_again_is_a_duplicate(world: &World) {
    let worker = world.worker().await;
    world.turn(&worker, 1).await;
    let finish = worker.finish();
    let standing = ok(world.finish(&finish).await.unwrap());
    let record = world.of(&worker).await;
    for _ in 0..2 {
        assert_eq!(world.finish(&again(&finish)).await.unwrap(), Committed::Duplicate(standing.clone()));
    }
    assert_eq!(still(world.of(&worker).await), still(record));
}

async fn another_finish_is_refused(world: &World) {
    let worker = world.worker().await;
    let finish = worker.finish();
    ok(world.finish(&finish).await.unwrap());
    assert_eq!(world.finish(&worker.finish()).await.unwrap(), Committed::Finished);
    let same_id = FinishCall { digest: random(), ..again(&finish) };
    assert_eq!(world.finish(&same_id).await.unwrap(), Committed::Finished);
    let same_digest = FinishCall { commit_id: Uuid::new_v4(), ..again(&finish) };
    assert_eq!(world.finish(&same_digest).await.unwrap(), Committed::Finished);
}

async fn a_run_that_never_committed_may_finish(world: &World) {
    let worker = world.worker().await;
    assert_eq!(ok(world.finish(&worker.finish()).await.unwrap()).head, None);
}

async fn a_finish_of_an_unknown_run_is_not_found(world: &World) {
    let worker = world.worker().await;
    let finish = FinishCall { run: Uuid::now_v7(), ..worker.finish() };
    assert_eq!(world.finish(&finish).await.unwrap(), Committed::NotFound);
}

async fn a_finish_is_fenced_like_a_commit(world: &World) {
    let worker = world.worker().await;
    let finish = worker.finish();
    let stranger = FinishCall { capability: random(), ..again(&finish) };
    assert_eq!(world.finish(&stranger).await.unwrap(), Committed::Fenced { committed: false });
    ok(world.finish(&finish).await.unwrap());
    assert_eq!(world.finish(&stranger).await.unwrap(), Committed::Fenced { committed: true });
    world.mark_deleted(&worker.object_uid).await.unwrap();
    assert_eq!(world.finish(&finish).await.unwrap(), Committed::Fenced { committed: true });
    assert_eq!(world.finish(&worker.finish()).await.unwrap(), Committed::Fenced { committed: false });
}

async fn a_finish_waits_for_unsettled_calls(world: &World) {
    let worker = world.worker().await;
    world.start_call(&worker, "pay", Policy::Probe).await;
    let worker = world.next(&worker).await;
    assert_eq!(world.finish(&worker.finish()).await.unwrap(), Committed::UnsettledCalls);
    world.settle(&worker.settle("pay")).await.unwrap();
    ok(world.finish(&worker.finish()).await.unwrap());
}

async fn after_the_finish_nothing_more_is_accepted(world: &World) {
    let worker = world.worker().await;
    let claim = world.start_call(&worker, "pay", Policy::Probe).await;
    ok(world.finish(&worker.finish()).await.unwrap());
    assert_eq!(world.commit(&worker.result(1)).await.unwrap(), Committed::Finished);
    let claimed = world.claim(&worker.claim("ship", Policy::Probe)).await.unwrap();
    assert!(matches!(claimed, Claimed::Finished), "{claimed:?}");
    let again = world.claim(&claim).await.unwrap();
    assert!(matches!(again, Claimed::Finished), "{again:?}");
    let completed = world.complete(&worker.complete(&claim)).await.unwrap();
    assert!(matches!(completed, Completed::Finished), "{completed:?}");
    let settled = world.settle(&worker.settle("pay")).await.unwrap();
    assert!(matches!(settled, Completed::Finished), "{settled:?}");
    let beats = world.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    assert_eq!(beats, [Beat::Finished]);
}

async fn a_finish_that_ended_with_a_boundary_is_known_by_its_bytes(world: &World) {
    let worker = world.worker().await;
    let last = dalsegno_store::Commit { finish: Some(succeeded()), ..worker.result(1) };
    ok(world.commit(&last).await.unwrap());
    let same = FinishCall { commit_id: last.commit_id, digest: last.digest, ..worker.finish() };
    assert!(matches!(world.finish(&same).await.unwrap(), Committed::Duplicate(_)));
    assert_eq!(world.finish(&worker.finish()).await.unwrap(), Committed::Finished);
}
