//! Late snapshots: they begin in time, and are written after their boundary was dropped or after a data key was made.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_format::seal::DataKey;
use dalsegno_model::{Commit, Error, Result, Retention, RunId};
use dalsegno_store::keys::{KeyProvider, Wrapped};
use dalsegno_store::open_beside;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::{Engine, TestContext, Worker, check, keys, ok, on_both_databases, turn};

on_both_databases! {
    a_snapshot_written_after_its_run_expired_leaves_nothing,
    a_snapshot_written_while_its_run_expires_is_dropped_too,
    a_snapshot_of_a_boundary_dropped_meanwhile_is_discarded,
    a_snapshot_whose_shared_chunks_are_dropped_meanwhile_is_discarded,
    a_snapshot_in_progress_keeps_its_shared_chunks,
    nothing_plain_is_written_to_a_run_with_a_data_key,
}

/// Keys that block a process when it wraps its first data key. At that point it has rebuilt the state and not yet written
/// it.
struct Gate {
    keys: Arc<dyn KeyProvider>,
    reached: Semaphore,
    open: Semaphore,
}

impl Gate {
    fn of(engine: &Engine) -> Arc<Self> {
        let (reached, open) = (Semaphore::new(0), Semaphore::new(0));
        Arc::new(Self { keys: keys::shared(&engine.keys).unwrap(), reached, open })
    }

    async fn is_reached(&self) {
        self.reached.acquire().await.unwrap().forget();
    }
}

#[async_trait::async_trait]
impl KeyProvider for Gate {
    async fn current(&self) -> Result<String> {
        self.keys.current().await
    }

    async fn wrap(&self, run: RunId, data_key: &DataKey) -> Result<Wrapped> {
        self.reached.add_permits(1);
        self.open.acquire().await.unwrap().forget();
        self.keys.wrap(run, data_key).await
    }

    async fn unwrap(&self, run: RunId, wrapped: &Wrapped) -> Result<DataKey> {
        self.keys.unwrap(run, wrapped).await
    }
}

/// A run of twelve turns with a large state and no sealed payload.
async fn plain(cx: &TestContext) -> Worker {
    let worker = cx.worker().await;
    turns(cx, &worker, 1..=12).await;
    worker
}

async fn turns(cx: &TestContext, worker: &Worker, turns: std::ops::RangeInclusive<i32>) {
    for number in turns {
        let mut commit = turn(worker, number);
        let item: String =
            (0..2_000).map(|n: i32| format!("{:x} ", n.wrapping_mul(number * 7_919))).collect();
        commit.ops = Some(format!(r#"{{"append":{{"log":[{{"json":"{item}"}}]}}}}"#).into_bytes());
        ok(cx.commit(&commit).await.unwrap());
    }
}

async fn expires(cx: &TestContext, worker: &Worker) {
    cx.finish(&worker.finish()).await.unwrap();
    cx.set_retention(worker.run, &Retention { days: 0, ..Retention::default() }).await.unwrap();
}

async fn drop_all(cx: &TestContext) {
    while cx.drop_expired(500).await.unwrap().run.is_some() {}
}

async fn left(engine: &Engine) -> String {
    engine.ask("SELECT CAST((SELECT count(*) FROM snapshots) + (SELECT count(*) FROM chunks) AS text)").await
}

async fn a_snapshot_written_after_its_run_expired_leaves_nothing(engine: &Engine) {
    let cx = engine.plain().await;
    let worker = plain(&cx).await;
    let gate = Gate::of(engine);
    let late = TestContext::new(open_beside(&engine.url, Some(gate.clone())).await.unwrap(), ());
    let meanwhile = async {
        gate.is_reached().await;
        expires(&cx, &worker).await;
        drop_all(&cx).await;
        gate.open.add_permits(9);
    };
    let (snapshot, ()) = tokio::join!(late.snapshot(worker.run), meanwhile);
    assert!(!snapshot.unwrap().made);
    assert_eq!(left(engine).await, "0");
    assert_eq!(check(&engine.sealed().await).await.1, []);
}

/// Another connection holds the row that the snapshot will insert, so the writer waits in the middle of its transaction.
async fn a_snapshot_written_while_its_run_expires_is_dropped_too(engine: &Engine) {
    let (cx, operator) = (engine.plain().await, engine.plain().await);
    let worker = plain(&cx).await;
    expires(&cx, &worker).await;
    let mut session = engine.session().await;
    session.execute("BEGIN").await;
    session
        .execute(
            "INSERT INTO snapshots (run, content_hash, turn, boundary, epoch, document, digest, created_at) \
             SELECT run, content_hash, turn, boundary, epoch, digest, digest, 0 FROM boundaries WHERE turn = 12",
        )
        .await;
    let drops = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        drop_all(&operator).await;
    };
    let goes = async {
        tokio::time::sleep(Duration::from_millis(600)).await;
        session.execute("ROLLBACK").await;
    };
    let (_, (), ()) = tokio::join!(cx.snapshot(worker.run), drops, goes);
    drop_all(&operator).await;
    assert_eq!(left(engine).await, "0");
    assert_eq!(check(&engine.plain().await).await.1, []);
}

async fn a_snapshot_of_a_boundary_dropped_meanwhile_is_discarded(engine: &Engine) {
    let cx = engine.plain().await;
    let worker = plain(&cx).await;
    let gate = Gate::of(engine);
    let late = TestContext::new(open_beside(&engine.url, Some(gate.clone())).await.unwrap(), ());
    let mut before = String::new();
    let meanwhile = async {
        gate.is_reached().await;
        turns(&cx, &worker, 13..=30).await;
        let retention = Retention { keep_last: Some(5), ..Retention::default() };
        cx.set_retention(worker.run, &retention).await.unwrap();
        while cx.compact(worker.run, 500).await.unwrap().run.is_some() {}
        before = left(engine).await;
        gate.open.add_permits(9);
    };
    let (snapshot, ()) = tokio::join!(late.snapshot(worker.run), meanwhile);
    assert!(!snapshot.unwrap().made);
    assert_eq!(left(engine).await, before);
    assert_eq!(check(&engine.sealed().await).await.1, []);
}

/// Twenty turns. Turns 10 and 20 have the same large state and the others a small one; turn 10 has a snapshot.
async fn two_equal_large_states(cx: &TestContext) -> Worker {
    let worker = cx.worker().await;
    for number in 1..=20 {
        let item: String = (0..9_000).map(|n: i32| format!("{:x} ", n.wrapping_mul(7_919))).collect();
        let item = if number % 10 == 0 { item } else { number.to_string() };
        let text = format!(r#"{{"set":{{"log":{{"json":"{item}"}}}}}}"#);
        ok(cx
            .commit(&Commit { ops: Some(text.into()), full: false, ..worker.result(number) })
            .await
            .unwrap());
        if number == 10 {
            assert!(cx.snapshot(worker.run).await.unwrap().made);
        }
    }
    let retention = Retention { keep_last: Some(5), ..Retention::default() };
    cx.set_retention(worker.run, &retention).await.unwrap();
    worker
}

/// Waits until a connection waits for a lock. SQLite does not show that, so there it waits 3 s.
async fn wait_for_lock(engine: &Engine) {
    if !engine.is_postgres() {
        return tokio::time::sleep(Duration::from_secs(3)).await;
    }
    let waiting = "SELECT CAST(count(*) AS text) FROM pg_stat_activity \
         WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let waits = async {
        while engine.ask(waiting).await == "0" {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(60), waits).await.expect("a connection waits for a lock");
}

/// The first snapshot is dropped while the next one has read it and not yet written.
async fn a_snapshot_whose_shared_chunks_are_dropped_meanwhile_is_discarded(engine: &Engine) {
    let cx = engine.plain().await;
    let worker = two_equal_large_states(&cx).await;
    let mut session = engine.session().await;
    session.execute("BEGIN").await;
    if engine.is_postgres() {
        let lock = "SELECT pg_advisory_xact_lock(hashtextextended('snapshot/' || id, 0)) FROM runs";
        session.execute(lock).await;
    }
    session.execute("DELETE FROM snapshots").await;
    session.execute("DELETE FROM chunks").await;
    let goes = async {
        wait_for_lock(engine).await;
        session.execute("COMMIT").await;
    };
    let (snapshot, ()) = tokio::join!(cx.snapshot(worker.run), goes);
    assert!(!snapshot.unwrap().made);
    assert_eq!(check(&cx).await.1, []);
    assert!(cx.snapshot(worker.run).await.unwrap().made, "the next snapshot does not need it");
    assert_eq!(check(&cx).await.1, []);
}

/// Another connection holds the row that the snapshot will insert, as above.
async fn a_snapshot_in_progress_keeps_its_shared_chunks(engine: &Engine) {
    let (cx, operator) = (engine.plain().await, engine.plain().await);
    let worker = two_equal_large_states(&cx).await;
    let mut session = engine.session().await;
    session.execute("BEGIN").await;
    session
        .execute(
            "INSERT INTO snapshots (run, content_hash, turn, boundary, epoch, document, digest, created_at) \
             SELECT run, content_hash, turn, boundary, epoch, digest, digest, 0 FROM boundaries WHERE turn = 20",
        )
        .await;
    let drops = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        for _ in 0..3 {
            operator.compact(worker.run, 500).await.unwrap();
        }
    };
    let goes = async {
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        session.execute("ROLLBACK").await;
    };
    let (snapshot, (), ()) = tokio::join!(cx.snapshot(worker.run), drops, goes);
    snapshot.unwrap();
    assert_eq!(check(&engine.plain().await).await.1, []);
    while operator.compact(worker.run, 500).await.unwrap().run.is_some() {}
    assert_eq!(check(&engine.plain().await).await.1, []);
}

async fn nothing_plain_is_written_to_a_run_with_a_data_key(engine: &Engine) {
    let plain_world = engine.plain().await;
    let worker = plain(&plain_world).await;
    engine.sealed().await.write_records(&crate::batch(&worker)).await.unwrap();
    let refused = plain_world.snapshot(worker.run).await;
    assert!(matches!(refused, Err(Error::Unusable(_))), "{refused:?}");
    assert_eq!(left(engine).await, "0");
}
