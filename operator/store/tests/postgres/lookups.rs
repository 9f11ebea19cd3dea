//! What a lookup reads: as much late in a run as at its beginning.

use dalsegno_store::Commit;
use sqlx::{Connection as _, PgConnection};

use crate::fresh;
use crate::world::*;

const TURNS: i32 = 300;
const LOOKUPS: i64 = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lookup_reads_few_rows_however_long_the_run_is() {
    let (world, url) = fresh().await;
    let worker = world.worker().await;
    for turn in 1..=TURNS {
        let ops = Some(format!(r#"{{"append":{{"log":[{{"json":{turn}}}]}}}}"#).into_bytes());
        ok(world.commit(&Commit { ops, full: false, ..worker.result(turn) }).await.unwrap());
        if turn % 10 == 0 {
            assert!(world.snapshot(worker.run).await.unwrap().made, "turn {turn}");
        }
    }
    look_up(&world, &worker).await;
    let before = rows_read(&url).await;
    look_up(&world, &worker).await;
    let read = rows_read(&url).await - before;
    assert!((1..=LOOKUPS * 20).contains(&read), "{LOOKUPS} lookups read {read} rows");
}

/// Again and again for longer than a second: so often the server adds up what a connection has read.
async fn look_up(world: &World, worker: &Worker) {
    for _ in 0..LOOKUPS {
        assert!(world.state(worker.run, None).await.unwrap().is_some());
        pause(60).await;
    }
}

async fn rows_read(url: &str) -> i64 {
    let mut conn = PgConnection::connect(url).await.unwrap();
    sqlx::query_scalar(
        "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint FROM pg_stat_user_tables \
         WHERE relname IN ('boundaries', 'snapshots')",
    )
    .fetch_one(&mut conn)
    .await
    .unwrap()
}
