//! `finish`: the end of a run without new state.

use dalsegno_model::{
    AttemptState, Claimed, Committed, Completed, FinishCall, HeartbeatAnswer, Lifecycle, NewFinish,
    RunOutcome,
};
use dalsegno_protocol::Policy;
use uuid::Uuid;

use crate::context::*;
use crate::engines::on_every_engine;

on_every_engine! {
    a_finish_closes_the_run_and_moves_no_epoch,
    the_same_finish_again_is_a_duplicate,
    a_different_finish_is_refused,
    a_run_without_a_boundary_may_finish,
    a_finish_of_an_unknown_run_is_not_found,
    a_finish_is_fenced_like_a_commit,
    a_finish_waits_for_unsettled_calls,
    nothing_is_accepted_after_the_finish,
    a_finish_by_a_boundary_is_recognized_by_its_bytes,
}

fn resend(call: &FinishCall) -> FinishCall {
    FinishCall { finish: call.finish.clone(), ..*call }
}

async fn a_finish_closes_the_run_and_moves_no_epoch(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.commit_turn(&worker, 1).await;
    let failed = NewFinish {
        outcome: RunOutcome::Failed,
        reason: "NoRoute".into(),
        message: "there is none".into(),
        output: None,
    };
    let receipt = ok(cx.finish(&FinishCall { finish: failed, ..worker.finish() }).await.unwrap());
    assert_eq!(receipt.head.unwrap().turn, 1);
    let run = cx.run_of(&worker).await;
    assert_eq!(
        (run.lifecycle, run.epoch, run.attempt.state),
        (Lifecycle::Finished, 1, AttemptState::Attached)
    );
    let finish = run.finish.unwrap();
    assert_eq!((finish.outcome, finish.reason.as_str()), (RunOutcome::Failed, "NoRoute"));
    assert_eq!((finish.message.as_str(), finish.output), ("there is none", None));
    assert!(finish.at >= run.created_at);
}

async fn the_same_finish_again_is_a_duplicate(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.commit_turn(&worker, 1).await;
    let finish = worker.finish();
    let receipt = ok(cx.finish(&finish).await.unwrap());
    let record = cx.run_of(&worker).await;
    for _ in 0..2 {
        assert_eq!(cx.finish(&resend(&finish)).await.unwrap(), Committed::Duplicate(receipt.clone()));
    }
    assert_eq!(without_times(cx.run_of(&worker).await), without_times(record));
}

async fn a_different_finish_is_refused(cx: &TestContext) {
    let worker = cx.worker().await;
    let finish = worker.finish();
    ok(cx.finish(&finish).await.unwrap());
    assert_eq!(cx.finish(&worker.finish()).await.unwrap(), Committed::Finished);
    let same_id = FinishCall { digest: random_digest(), ..resend(&finish) };
    assert_eq!(cx.finish(&same_id).await.unwrap(), Committed::Finished);
    let same_digest = FinishCall { commit_id: Uuid::new_v4(), ..resend(&finish) };
    assert_eq!(cx.finish(&same_digest).await.unwrap(), Committed::Finished);
}

async fn a_run_without_a_boundary_may_finish(cx: &TestContext) {
    let worker = cx.worker().await;
    assert_eq!(ok(cx.finish(&worker.finish()).await.unwrap()).head, None);
}

async fn a_finish_of_an_unknown_run_is_not_found(cx: &TestContext) {
    let worker = cx.worker().await;
    let finish = FinishCall { run: Uuid::now_v7(), ..worker.finish() };
    assert_eq!(cx.finish(&finish).await.unwrap(), Committed::NotFound);
}

async fn a_finish_is_fenced_like_a_commit(cx: &TestContext) {
    let worker = cx.worker().await;
    let finish = worker.finish();
    let foreign = FinishCall { capability: random_digest(), ..resend(&finish) };
    assert_eq!(cx.finish(&foreign).await.unwrap(), Committed::Fenced { committed: false });
    ok(cx.finish(&finish).await.unwrap());
    assert_eq!(cx.finish(&foreign).await.unwrap(), Committed::Fenced { committed: true });
    cx.mark_deleted(&worker.object_uid).await.unwrap();
    assert_eq!(cx.finish(&finish).await.unwrap(), Committed::Fenced { committed: true });
    assert_eq!(cx.finish(&worker.finish()).await.unwrap(), Committed::Fenced { committed: false });
}

async fn a_finish_waits_for_unsettled_calls(cx: &TestContext) {
    let worker = cx.worker().await;
    cx.start_call(&worker, "pay", Policy::Probe).await;
    let worker = cx.next_worker(&worker).await;
    assert_eq!(cx.finish(&worker.finish()).await.unwrap(), Committed::UnsettledCalls);
    cx.settle(&worker.settle("pay")).await.unwrap();
    ok(cx.finish(&worker.finish()).await.unwrap());
}

async fn nothing_is_accepted_after_the_finish(cx: &TestContext) {
    let worker = cx.worker().await;
    let claim = cx.start_call(&worker, "pay", Policy::RetrySameKey).await;
    ok(cx.finish(&worker.finish()).await.unwrap());
    assert_eq!(cx.commit(&worker.result(1)).await.unwrap(), Committed::Finished);
    let claimed = cx.claim(&worker.claim("ship", Policy::Probe)).await.unwrap();
    assert!(matches!(claimed, Claimed::Finished), "{claimed:?}");
    let again = cx.claim(&claim).await.unwrap();
    assert!(matches!(again, Claimed::Finished), "{again:?}");
    let completed = cx.complete(&worker.complete(&claim)).await.unwrap();
    assert!(matches!(completed, Completed::Finished), "{completed:?}");
    let settled = cx.settle(&worker.settle("pay")).await.unwrap();
    assert!(matches!(settled, Completed::Finished), "{settled:?}");
    let beats = cx.heartbeats(&[(worker.run, worker.capability)]).await.unwrap();
    assert_eq!(beats, [HeartbeatAnswer::Finished]);
}

async fn a_finish_by_a_boundary_is_recognized_by_its_bytes(cx: &TestContext) {
    let worker = cx.worker().await;
    let last = dalsegno_model::Commit { finish: Some(succeeded()), ..worker.result(1) };
    ok(cx.commit(&last).await.unwrap());
    let same = FinishCall { commit_id: last.commit_id, digest: last.digest, ..worker.finish() };
    assert!(matches!(cx.finish(&same).await.unwrap(), Committed::Duplicate(_)));
    assert_eq!(cx.finish(&worker.finish()).await.unwrap(), Committed::Finished);
}
