//! The causes that the store sets itself when it carries out another call.

use dalsegno_model::{AttemptEnd, Cause, Class, OnPrior, Rewound, RunId};
use dalsegno_protocol::ParkMode;

use crate::context::*;
use crate::engines::on_every_engine;
use crate::waits::{later, open, parked, request};

on_every_engine! {
    each_cause_that_the_store_sets_ends_an_attempt,
}

/// The end of the first attempt of a run.
async fn first_end(cx: &TestContext, run: RunId) -> AttemptEnd {
    cx.store.attempt(run, 1).await.unwrap().unwrap().end.unwrap()
}

async fn each_cause_that_the_store_sets_ends_an_attempt(cx: &TestContext) {
    let mut ends = Vec::new();
    for on_prior in [OnPrior::Adopt, OnPrior::Ignore] {
        let new = new_run();
        let worker = cx.start_worker(&cx.create(&new).await).await;
        cx.create(&namesake(&new, on_prior)).await;
        ends.push(first_end(cx, worker.run).await);
    }

    let worker = cx.worker().await;
    for turn in 1..=2 {
        cx.commit_turn(&worker, turn).await;
    }
    let epoch = cx.run_of(&worker).await.epoch;
    let rewound = cx.rewind(worker.run, &rewind_to(epoch, result_place(1))).await.unwrap();
    assert!(matches!(rewound, Rewound::Done(_)), "{rewound:?}");
    ends.push(first_end(cx, worker.run).await);

    let worker = cx.worker().await;
    open(cx, &request(&worker, "noon", later())).await;
    parked(cx, &worker, &["noon"], ParkMode::All).await;
    ends.push(first_end(cx, worker.run).await);

    let worker = cx.worker().await;
    cx.mark_deleted(&worker.object_uid).await.unwrap();
    ends.push(first_end(cx, worker.run).await);

    let causes: Vec<_> = ends.iter().map(|end| end.cause).collect();
    assert_eq!(causes, [Cause::Adopted, Cause::Abandoned, Cause::Rewound, Cause::Parked, Cause::RunDeleted]);
    assert!(ends.iter().all(|end| end.class == Class::Neutral && !end.charged), "{ends:?}");
}
