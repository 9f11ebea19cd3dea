//! Errors of the server, as opposed to errors of a statement.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use dalsegno_model::Error;
use futures::future::join_all;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};

use crate::proxy::{Fault, Proxy};
use crate::{fresh, open};

const WORKERS: usize = 32;

/// If the disk is full, the next statement fails too: a batch of commits must not become one statement for each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_the_server_cannot_execute_is_not_sent_again_one_by_one() {
    for code in ["53100", "53200", "58030", "25006", "XX000"] {
        let round_trips = round_trips_of_a_failure(code).await;
        assert!(round_trips <= WORKERS as u64 / 4, "{code}: {round_trips} for {WORKERS}");
    }
}

/// One boundary that the database refuses, here by a damaged page, harms no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_the_database_refuses_is_sent_one_by_one() {
    for code in ["22003", "XX001"] {
        let round_trips = round_trips_of_a_failure(code).await;
        assert!(round_trips >= WORKERS as u64, "{code}: {round_trips} for {WORKERS}");
    }
}

/// Many workers commit while the server answers each commit with this error.
async fn round_trips_of_a_failure(code: &str) -> u64 {
    let (_, url) = fresh().await;
    let is_slow = Arc::<AtomicBool>::default();
    let slow = Arc::clone(&is_slow);
    let proxy = Proxy::with_faults(&url, move || {
        if slow.load(SeqCst) { Fault::Stall(Duration::from_millis(100)) } else { Fault::Pass }
    });
    let cx = open(&proxy.url()).await;
    let workers = join_all((0..WORKERS).map(|_| cx.worker())).await;
    // Each statement is prepared once per connection.
    join_all(workers.iter().map(|worker| cx.commit_turn(worker, 1))).await;
    let mut conn = PgConnection::connect(&url).await.unwrap();
    let fail = format!(
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN RAISE EXCEPTION 'a failure' USING ERRCODE = '{code}'; END $$; \
         CREATE TRIGGER fail BEFORE INSERT ON boundaries FOR EACH ROW EXECUTE FUNCTION fail()"
    );
    conn.execute(AssertSqlSafe(fail)).await.unwrap();
    is_slow.store(true, SeqCst);
    let before = proxy.round_trips();
    for result in join_all(workers.iter().map(async |worker| cx.commit(&worker.result(2)).await)).await {
        assert!(matches!(result, Err(Error::Unavailable { .. })), "{result:?}");
    }
    proxy.round_trips() - before
}
