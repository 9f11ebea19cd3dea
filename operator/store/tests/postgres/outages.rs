//! Connections are lost, and found again.

use dalsegno_store::{Committed, Error};
use sqlx::{Connection as _, Executor as _, PgConnection};

use crate::fresh;
use crate::world::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_server_costs_one_answer() {
    let (world, url) = fresh().await;
    let worker = world.worker().await;
    // Several idle connections.
    futures::future::join_all((0..8).map(|_| world.of(&worker))).await;
    let mut conn = PgConnection::connect(&url).await.unwrap();
    conn.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
         WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = 'dalsegno'",
    )
    .await
    .unwrap();
    let commit = worker.result(1);
    let error = world.commit(&commit).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    ok(world.commit(&commit).await.unwrap());
    assert!(matches!(world.commit(&commit).await.unwrap(), Committed::Duplicate(_)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_given_up_leaves_nothing_behind_for_the_next() {
    let (world, url) = fresh().await;
    let worker = world.worker().await;
    let mut holder = PgConnection::connect(&url).await.unwrap();
    let mut transaction = holder.begin().await.unwrap();
    sqlx::query("SELECT FROM runs FOR UPDATE").execute(&mut *transaction).await.unwrap();
    let commit = worker.result(1);
    let given_up = tokio::time::timeout(std::time::Duration::from_millis(200), world.commit(&commit)).await;
    assert!(given_up.is_err());
    assert_eq!(world.of(&worker).await.head, None, "a read waits for no lock");
    transaction.rollback().await.unwrap();
    // What was given up may have been done meanwhile.
    match world.commit(&commit).await.unwrap() {
        Committed::Ok(_) | Committed::Duplicate(_) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(world.boundaries(worker.run, 1, 9).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_callers_than_connections_all_get_their_answer() {
    let (world, _) = fresh().await;
    let workers = futures::future::join_all((0..100).map(|_| world.worker())).await;
    futures::future::join_all(workers.iter().map(|worker| world.turn(worker, 1))).await;
}
