//! Concurrent commits of many runs, which a store may batch.

use std::sync::Arc;

use dalsegno_model::{Commit, Committed, Error, Result, Store};
use dalsegno_protocol::{Boundary, Policy};
use futures::future::join_all;
use uuid::Uuid;

use crate::context::*;
use crate::engines::{on_every_engine, on_every_persistent_engine, tamper};

on_every_engine! {
    each_concurrent_commit_is_judged_by_its_own_run,
    concurrent_commits_of_one_run_are_judged_one_after_the_other,
    concurrent_runs_commit_turn_by_turn,
}

on_every_persistent_engine! {
    a_boundary_that_the_database_refuses_fails_alone,
}

/// Sends all commits at the same time, each from its own task. The answers are in the order of the commits.
async fn at_once(store: &Arc<dyn Store>, commits: Vec<Commit>) -> Vec<Result<Committed>> {
    let send = |commit: Commit| {
        let store = Arc::clone(store);
        tokio::spawn(async move { store.commit(&commit).await })
    };
    let sent: Vec<_> = commits.into_iter().map(send).collect();
    join_all(sent).await.into_iter().map(|answer| answer.unwrap()).collect()
}

/// The kind of a commit. It determines the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Next,
    Plan,
    Duplicate,
    Gap,
    WrongCapability,
    Finished,
    Unsettled,
    Unknown,
}

const KINDS: [Kind; 8] = [
    Kind::Next,
    Kind::Plan,
    Kind::Duplicate,
    Kind::Gap,
    Kind::WrongCapability,
    Kind::Finished,
    Kind::Unsettled,
    Kind::Unknown,
];

async fn prepare(cx: &TestContext, kind: Kind) -> (Worker, Commit) {
    let worker = cx.worker().await;
    let head = worker.result(1);
    ok(cx.commit(&head).await.unwrap());
    let commit = match kind {
        Kind::Next => worker.result(2),
        Kind::Plan => Commit { calls: vec![planned("pay", Policy::Ask)], ..worker.plan(2) },
        Kind::Duplicate => head,
        Kind::Gap => worker.result(3),
        Kind::WrongCapability => Commit { capability: random_digest(), ..worker.result(2) },
        Kind::Finished => {
            ok(cx.finish(&worker.finish()).await.unwrap());
            worker.result(2)
        }
        Kind::Unsettled => {
            cx.start_call(&worker, "pay", Policy::Ask).await;
            let next = cx.next_worker(&worker).await;
            Commit { capability: next.capability, ..worker.result(2) }
        }
        Kind::Unknown => Commit { run: Uuid::now_v7(), ..worker.result(2) },
    };
    (worker, commit)
}

async fn each_concurrent_commit_is_judged_by_its_own_run(cx: &TestContext) {
    let concurrent =
        join_all((0..5).flat_map(|_| KINDS).map(async |kind| (kind, prepare(cx, kind).await))).await;
    let commits = concurrent.iter().map(|(_, (_, commit))| resend(commit)).collect();
    let answers = at_once(&cx.store, commits).await;
    for ((kind, (worker, commit)), answer) in concurrent.iter().zip(answers) {
        let answer = answer.unwrap();
        let turn = match (kind, &answer) {
            (Kind::Next | Kind::Plan, Committed::Ok(receipt)) => {
                let before = cx.boundaries(worker.run, 1, 1).await.unwrap();
                assert_eq!(receipt.parent, Some(before[0].content_hash), "{kind:?}");
                let head = receipt.head.as_ref().unwrap();
                assert_eq!((head.turn, head.boundary), (2, commit.boundary), "{kind:?}");
                2
            }
            (Kind::Duplicate, Committed::Duplicate(_))
            | (Kind::Gap, Committed::Conflict { head: Some((1, Boundary::Result)) })
            | (Kind::WrongCapability, Committed::Fenced { committed: false })
            | (Kind::Finished, Committed::Finished)
            | (Kind::Unsettled, Committed::UnsettledCalls)
            | (Kind::Unknown, Committed::NotFound) => 1,
            other => panic!("{other:?}"),
        };
        // `boundaries` verifies the hashes of what it reads.
        let last = cx.boundaries(worker.run, 1, 9).await.unwrap().pop().unwrap();
        assert_eq!(last.turn, turn, "{kind:?}");
        assert_eq!(
            last.commit_id == commit.commit_id,
            matches!(kind, Kind::Next | Kind::Plan | Kind::Duplicate)
        );
    }
}

async fn concurrent_commits_of_one_run_are_judged_one_after_the_other(cx: &TestContext) {
    let (worker, other) = (cx.worker().await, cx.worker().await);
    for turn in 1..=20 {
        let commit = worker.result(turn);
        let mut concurrent: Vec<_> = (0..4).map(|_| resend(&commit)).collect();
        concurrent.extend([other.result(turn), with_new_id(&commit), worker.result(turn + 1)]);
        let [same @ .., next, remade, later] = &at_once(&cx.store, concurrent).await[..] else {
            unreachable!()
        };
        let accepted = |answer: &Result<Committed>| matches!(answer, Ok(Committed::Ok(_)));
        assert!(accepted(next), "{next:?}");
        let count = same.iter().filter(|answer| accepted(answer)).count() + usize::from(accepted(remade));
        assert_eq!(count, 1, "{same:?} {remade:?}");
        // The commit of the next turn is accepted if the store judges it after this turn's.
        let turns = turn + i32::from(accepted(later));
        assert_eq!(cx.run_of(&worker).await.head.map(|head| head.turn), Some(turns), "{later:?}");
        if accepted(later) {
            return;
        }
    }
}

async fn concurrent_runs_commit_turn_by_turn(cx: &TestContext) {
    const TURNS: i32 = 12;
    let concurrent = join_all((0..24).map(|_| cx.worker())).await;
    join_all(concurrent.iter().map(|worker| {
        let (store, worker) = (Arc::clone(&cx.store), worker.clone());
        tokio::spawn(async move {
            for turn in 1..=TURNS {
                ok(store.commit(&worker.result(turn)).await.unwrap());
            }
        })
    }))
    .await
    .into_iter()
    .for_each(|done| done.unwrap());
    for worker in &concurrent {
        let turns: Vec<_> =
            cx.boundaries(worker.run, 1, TURNS).await.unwrap().iter().map(|row| row.turn).collect();
        assert_eq!(turns, (1..=TURNS).collect::<Vec<_>>());
    }
}

async fn a_boundary_that_the_database_refuses_fails_alone(cx: &TestContext) {
    const REFUSED: &str = "refused by the test";
    let is_sqlite = cx.is_sqlite();
    let refuse = if is_sqlite {
        format!(
            "CREATE TRIGGER refuse BEFORE INSERT ON boundaries WHEN NEW.trigger_word = '{REFUSED}' \
             BEGIN SELECT RAISE(ABORT, 'refused'); END"
        )
    } else {
        format!("ALTER TABLE boundaries ADD CHECK (trigger_word <> '{REFUSED}')")
    };
    tamper(cx, &refuse).await;
    let concurrent = join_all((0..24).map(|_| cx.worker())).await;
    for turn in 1..=3 {
        let mut commits: Vec<_> = concurrent.iter().map(|worker| worker.result(turn)).collect();
        commits[7].trigger = Some(REFUSED.into());
        let good = resend(&commits[7]);
        for (number, answer) in at_once(&cx.store, commits).await.into_iter().enumerate() {
            match answer {
                Ok(Committed::Ok(_)) if number != 7 => {}
                Err(Error::Unavailable { .. }) if number == 7 => {}
                other => panic!("{number}: {other:?}"),
            }
        }
        ok(cx.commit(&Commit { trigger: None, ..good }).await.unwrap());
    }
}
