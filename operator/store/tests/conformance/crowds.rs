//! Commits of many runs at once, which a store may do together.

use std::sync::Arc;

use dalsegno_protocol::{Boundary, Policy};
use dalsegno_store::{Commit, Committed, Error, Result, Store};
use futures::future::join_all;
use uuid::Uuid;

use crate::faces::{on_every_face, on_every_lasting_face, tamper};
use crate::world::*;

on_every_face! {
    each_of_a_crowd_is_judged_by_its_own_run,
    a_crowd_of_one_run_is_judged_one_after_the_other,
    a_crowd_goes_on_turn_by_turn,
}

on_every_lasting_face! {
    a_boundary_that_the_database_refuses_takes_no_other_with_it,
}

/// Sends all at once, each from a task of its own. The answers are in their order.
async fn at_once(store: &Arc<dyn Store>, commits: Vec<Commit>) -> Vec<Result<Committed>> {
    let send = |commit: Commit| {
        let store = Arc::clone(store);
        tokio::spawn(async move { store.commit(&commit).await })
    };
    let sent: Vec<_> = commits.into_iter().map(send).collect();
    join_all(sent).await.into_iter().map(|answer| answer.unwrap()).collect()
}

/// What a commit is sent as, and what it must come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sort {
    Next,
    Plan,
    Duplicate,
    Gap,
    Strange,
    Finished,
    Unsettled,
    Unknown,
}

const SORTS: [Sort; 8] = [
    Sort::Next,
    Sort::Plan,
    Sort::Duplicate,
    Sort::Gap,
    Sort::Strange,
    Sort::Finished,
    Sort::Unsettled,
    Sort::Unknown,
];

async fn of_sort(world: &World, sort: Sort) -> (Worker, Commit) {
    let worker = world.worker().await;
    let head = worker.result(1);
    ok(world.commit(&head).await.unwrap());
    let commit = match sort {
        Sort::Next => worker.result(2),
        Sort::Plan => Commit { calls: vec![planned("pay", Policy::Ask)], ..worker.plan(2) },
        Sort::Duplicate => head,
        Sort::Gap => worker.result(3),
        Sort::Strange => Commit { capability: random(), ..worker.result(2) },
        Sort::Finished => {
            ok(world.finish(&worker.finish()).await.unwrap());
            worker.result(2)
        }
        Sort::Unsettled => {
            world.start_call(&worker, "pay", Policy::Ask).await;
            let next = world.next(&worker).await;
            Commit { capability: next.capability, ..worker.result(2) }
        }
        Sort::Unknown => Commit { run: Uuid::now_v7(), ..worker.result(2) },
    };
    (worker, commit)
}

async fn each_of_a_crowd_is_judged_by_its_own_run(world: &World) {
    let crowd =
        join_all((0..5).flat_map(|_| SORTS).map(async |sort| (sort, of_sort(world, sort).await))).await;
    let commits = crowd.iter().map(|(_, (_, commit))| again(commit)).collect();
    let answers = at_once(&world.store, commits).await;
    for ((sort, (worker, commit)), answer) in crowd.iter().zip(answers) {
        let answer = answer.unwrap();
        let turn = match (sort, &answer) {
            (Sort::Next | Sort::Plan, Committed::Ok(standing)) => {
                let before = world.boundaries(worker.run, 1, 1).await.unwrap();
                assert_eq!(standing.parent, Some(before[0].content_hash), "{sort:?}");
                let head = standing.head.as_ref().unwrap();
                assert_eq!((head.turn, head.boundary), (2, commit.boundary), "{sort:?}");
                2
            }
            (Sort::Duplicate, Committed::Duplicate(_))
            | (Sort::Gap, Committed::Conflict { head: Some((1, Boundary::Result)) })
            | (Sort::Strange, Committed::Fenced { committed: false })
            | (Sort::Finished, Committed::Finished)
            | (Sort::Unsettled, Committed::UnsettledCalls)
            | (Sort::Unknown, Committed::NotFound) => 1,
            other => panic!("{other:?}"),
        };
        // What is read is held to its hashes.
        let last = world.boundaries(worker.run, 1, 9).await.unwrap().pop().unwrap();
        assert_eq!(last.turn, turn, "{sort:?}");
        assert_eq!(
            last.commit_id == commit.commit_id,
            matches!(sort, Sort::Next | Sort::Plan | Sort::Duplicate)
        );
    }
}

async fn a_crowd_of_one_run_is_judged_one_after_the_other(world: &World) {
    let (worker, other) = (world.worker().await, world.worker().await);
    for turn in 1..=20 {
        let commit = worker.result(turn);
        let mut crowd: Vec<_> = (0..4).map(|_| again(&commit)).collect();
        crowd.extend([other.result(turn), remade(&commit), worker.result(turn + 1)]);
        let [same @ .., next, remade, later] = &at_once(&world.store, crowd).await[..] else {
            unreachable!()
        };
        let wins = |answer: &Result<Committed>| matches!(answer, Ok(Committed::Ok(_)));
        assert!(wins(next), "{next:?}");
        let won = same.iter().filter(|answer| wins(answer)).count() + usize::from(wins(remade));
        assert_eq!(won, 1, "{same:?} {remade:?}");
        // One who is early may yet come at the right time.
        let turns = turn + i32::from(wins(later));
        assert_eq!(world.of(&worker).await.head.map(|head| head.turn), Some(turns), "{later:?}");
        if wins(later) {
            return;
        }
    }
}

async fn a_crowd_goes_on_turn_by_turn(world: &World) {
    const TURNS: i32 = 12;
    let crowd = join_all((0..24).map(|_| world.worker())).await;
    join_all(crowd.iter().map(|worker| {
        let (store, worker) = (Arc::clone(&world.store), worker.clone());
        tokio::spawn(async move {
            for turn in 1..=TURNS {
                ok(store.commit(&worker.result(turn)).await.unwrap());
            }
        })
    }))
    .await
    .into_iter()
    .for_each(|done| done.unwrap());
    for worker in &crowd {
        let turns: Vec<_> =
            world.boundaries(worker.run, 1, TURNS).await.unwrap().iter().map(|row| row.turn).collect();
        assert_eq!(turns, (1..=TURNS).collect::<Vec<_>>());
    }
}

async fn a_boundary_that_the_database_refuses_takes_no_other_with_it(world: &World) {
    const REFUSED: &str = "refused by the test";
    let is_sqlite = world.url.as_deref().unwrap().starts_with("sqlite:");
    let refuse = if is_sqlite {
        format!(
            "CREATE TRIGGER refuse BEFORE INSERT ON boundaries WHEN NEW.trigger_word = '{REFUSED}' \
             BEGIN SELECT RAISE(ABORT, 'refused'); END"
        )
    } else {
        format!("ALTER TABLE boundaries ADD CHECK (trigger_word <> '{REFUSED}')")
    };
    tamper(world, &refuse).await;
    let crowd = join_all((0..24).map(|_| world.worker())).await;
    for turn in 1..=3 {
        let mut commits: Vec<_> = crowd.iter().map(|worker| worker.result(turn)).collect();
        commits[7].trigger = Some(REFUSED.into());
        let good = again(&commits[7]);
        for (number, answer) in at_once(&world.store, commits).await.into_iter().enumerate() {
            match answer {
                Ok(Committed::Ok(_)) if number != 7 => {}
                Err(Error::Unavailable { .. }) if number == 7 => {}
                other => panic!("{number}: {other:?}"),
            }
        }
        ok(world.commit(&Commit { trigger: None, ..good }).await.unwrap());
    }
}
