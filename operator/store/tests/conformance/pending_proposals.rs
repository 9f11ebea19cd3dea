//! The proposal in a checkpoint document: of the oldest approval that waits.

use dalsegno_model::{BoundaryQuery, OpenWaitRequest, WaitAnswer, WaitDecision};
use dalsegno_protocol::{Checkpoint, WaitOutcome};
use dalsegno_store::checkpoint;

use crate::context::*;
use crate::engines::on_every_engine;
use crate::waits::{approval, open, request};

on_every_engine! {
    the_heads_checkpoint_shows_the_oldest_proposal_that_waits,
}

async fn proposal_of(cx: &TestContext, worker: &Worker, turn: Option<i32>) -> Option<String> {
    let turn = turn.map(BoundaryQuery::Turn);
    let document = checkpoint(&*cx.store, &cx.run_of(worker).await, turn).await.unwrap();
    let Checkpoint { pending_proposal, .. } = document.unwrap();
    pending_proposal.map(|it| it.get().to_owned())
}

async fn the_heads_checkpoint_shows_the_oldest_proposal_that_waits(cx: &TestContext) {
    let worker = cx.worker().await;
    for turn in 1..=2 {
        cx.commit_turn(&worker, turn).await;
    }
    assert_eq!(proposal_of(cx, &worker, None).await, None);
    let mut epochs = Vec::new();
    for (id, proposal) in [("pay", r#"{"cents":  5}"#), ("ship", r#""now""#)] {
        let body = json(&format!(r#"{{"kind":"approval","title":"t","proposal":{proposal}}}"#));
        let wait = open(cx, &OpenWaitRequest { body, ..request(&worker, id, approval()) }).await;
        epochs.push((id, wait.facts.epoch));
    }
    for ((id, epoch), oldest) in epochs.into_iter().zip([r#"{"cents":  5}"#, r#""now""#]) {
        assert_eq!(proposal_of(cx, &worker, None).await.as_deref(), Some(oldest));
        assert_eq!(proposal_of(cx, &worker, Some(1)).await, None, "only the head's");
        let decision = WaitDecision { by: "ada".into(), reason: None, changes: None };
        let answer = WaitAnswer { id: id.into(), epoch, outcome: WaitOutcome::Approved, decision };
        cx.answer_wait(worker.run, &answer).await.unwrap();
    }
    assert_eq!(proposal_of(cx, &worker, None).await, None, "all are answered");
}
