//! Two identical or competing calls at the same time.

use std::sync::Arc;

use dalsegno_model::{Claimed, Class, Commit, Committed, NextStep, Store};
use dalsegno_protocol::Policy;
use futures::future::join_all;

use crate::context::*;
use crate::engines::on_every_engine;

on_every_engine! {
    identical_concurrent_commits_are_one_ok_and_one_duplicate,
    different_concurrent_commits_of_one_turn_are_one_ok_and_one_conflict,
    concurrent_ends_of_one_attempt_count_once,
    concurrent_claims_of_one_call_are_one_go_and_one_uncertain,
    two_operators_create_a_run_once,
}

/// Sends both commits at the same time, from two tasks.
async fn both(store: &Arc<dyn Store>, left: Commit, right: Commit) -> [Committed; 2] {
    let send = |commit: Commit| {
        let store = Arc::clone(store);
        tokio::spawn(async move { store.commit(&commit).await.unwrap() })
    };
    let (left, right) = (send(left), send(right));
    [left.await.unwrap(), right.await.unwrap()]
}

async fn identical_concurrent_commits_are_one_ok_and_one_duplicate(cx: &TestContext) {
    let worker = cx.worker().await;
    for turn in 1..=200 {
        let commit = worker.result(turn);
        let [left, right] = both(&cx.store, resend(&commit), commit).await;
        match (&left, &right) {
            (Committed::Ok(first), second @ Committed::Duplicate(_))
            | (second @ Committed::Duplicate(_), Committed::Ok(first)) => {
                assert_eq!(duplicate(first), *second);
            }
            other => panic!("turn {turn}: {other:?}"),
        }
    }
    let turns: Vec<_> = cx.boundaries(worker.run, 1, 200).await.unwrap().iter().map(|row| row.turn).collect();
    assert_eq!(turns, (1..=200).collect::<Vec<_>>());
}

async fn different_concurrent_commits_of_one_turn_are_one_ok_and_one_conflict(cx: &TestContext) {
    let worker = cx.worker().await;
    for turn in 1..=50 {
        let commit = worker.result(turn);
        let answers = both(&cx.store, with_new_id(&commit), commit).await;
        let accepted = answers.iter().filter(|answer| matches!(answer, Committed::Ok(_))).count();
        let conflicts = answers.iter().filter(|answer| matches!(answer, Committed::Conflict { .. })).count();
        assert_eq!((accepted, conflicts), (1, 1), "turn {turn}: {answers:?}");
    }
}

async fn concurrent_ends_of_one_attempt_count_once(cx: &TestContext) {
    let run = cx.run().await;
    for number in 1..=20 {
        let over = ending(number, Class::Crash);
        let ends = join_all((0..4).map(|_| cx.end_attempt(run.id, &over, &NextStep::Reserve))).await;
        for end in ends {
            let after = end.unwrap();
            assert_eq!((after.attempt.number, after.counters.recovery_attempts), (number + 1, number));
        }
    }
    assert_eq!(cx.run_by_uid(&run.object_uid).await.epoch, 21);
}

async fn concurrent_claims_of_one_call_are_one_go_and_one_uncertain(cx: &TestContext) {
    let worker = cx.worker().await;
    for number in 0..20 {
        let id = format!("call-{number}");
        let claims = [worker.claim(&id, Policy::RetrySameKey), worker.claim(&id, Policy::RetrySameKey)];
        let answers = join_all(claims.iter().map(|claim| cx.claim(claim))).await;
        let go = answers.iter().filter(|answer| matches!(answer, Ok(Claimed::Go(_)))).count();
        let uncertain = answers.iter().filter(|answer| matches!(answer, Ok(Claimed::Uncertain(_)))).count();
        assert_eq!((go, uncertain), (1, 1), "{answers:?}");
    }
}

async fn two_operators_create_a_run_once(cx: &TestContext) {
    for _ in 0..20 {
        let new = new_run();
        let second = dalsegno_model::NewRun { id: uuid::Uuid::now_v7(), ..new.clone() };
        let (left, right) = tokio::join!(cx.create(&new), cx.create(&second));
        assert_eq!(without_times(left), without_times(right));
        assert_eq!(cx.find(&new.namespace, &new.name).await.unwrap().len(), 1);
    }
}
