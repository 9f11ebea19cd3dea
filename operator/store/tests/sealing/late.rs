//! Snapshots that are begun in time and come too late: after what they stand for was dropped, or beside a data key.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_store::keys::{KeyProvider, Wrapped};
use dalsegno_store::seal::DataKey;
use dalsegno_store::{Commit, Error, Result, Retention, RunId, open_beside};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::{Face, Worker, World, check, keys, ok, on_both, turn};

on_both! {
    a_snapshot_that_comes_after_its_run_was_dropped_leaves_nothing,
    a_snapshot_that_is_being_written_while_its_run_is_dropped_goes_with_it,
    a_snapshot_of_a_boundary_that_was_dropped_meanwhile_is_not_taken,
    a_snapshot_whose_shared_chunks_go_meanwhile_is_not_taken,
    a_snapshot_that_is_being_written_keeps_the_chunks_that_it_shares,
    nothing_plain_is_written_beside_a_data_key,
}

/// Keys that make a process wait where it wraps its first data key: its state is rebuilt by then, and not yet written.
struct Gate {
    keys: Arc<dyn KeyProvider>,
    reached: Semaphore,
    open: Semaphore,
}

impl Gate {
    fn of(face: &Face) -> Arc<Self> {
        let (reached, open) = (Semaphore::new(0), Semaphore::new(0));
        Arc::new(Self { keys: keys::shared(&face.keys).unwrap(), reached, open })
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

/// A run of twelve turns with a large state that nobody has sealed yet.
async fn plain(world: &World) -> Worker {
    let worker = world.worker().await;
    turns(world, &worker, 1..=12).await;
    worker
}

async fn turns(world: &World, worker: &Worker, turns: std::ops::RangeInclusive<i32>) {
    for number in turns {
        let mut commit = turn(worker, number);
        let item: String =
            (0..2_000).map(|n: i32| format!("{:x} ", n.wrapping_mul(number * 7_919))).collect();
        commit.ops = Some(format!(r#"{{"append":{{"log":[{{"json":"{item}"}}]}}}}"#).into_bytes());
        ok(world.commit(&commit).await.unwrap());
    }
}

async fn expires(world: &World, worker: &Worker) {
    world.finish(&worker.finish()).await.unwrap();
    world.set_retention(worker.run, &Retention { days: 0, ..Retention::default() }).await.unwrap();
}

async fn drop_all(world: &World) {
    while world.drop_expired(500).await.unwrap().run.is_some() {}
}

async fn left(face: &Face) -> String {
    face.ask("SELECT CAST((SELECT count(*) FROM snapshots) + (SELECT count(*) FROM chunks) AS text)").await
}

async fn a_snapshot_that_comes_after_its_run_was_dropped_leaves_nothing(face: &Face) {
    let world = face.plain().await;
    let worker = plain(&world).await;
    let gate = Gate::of(face);
    let late = World::new(open_beside(&face.url, Some(gate.clone())).await.unwrap(), ());
    let meanwhile = async {
        gate.is_reached().await;
        expires(&world, &worker).await;
        drop_all(&world).await;
        gate.open.add_permits(9);
    };
    let (snapshot, ()) = tokio::join!(late.snapshot(worker.run), meanwhile);
    assert!(!snapshot.unwrap().made);
    assert_eq!(left(face).await, "0");
    assert_eq!(check(&face.sealed().await).await.1, []);
}

/// The row that it is about to write is another's for a while: it waits in the midst of its writing.
async fn a_snapshot_that_is_being_written_while_its_run_is_dropped_goes_with_it(face: &Face) {
    let (world, operator) = (face.plain().await, face.plain().await);
    let worker = plain(&world).await;
    expires(&world, &worker).await;
    let mut session = face.session().await;
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
    let (_, (), ()) = tokio::join!(world.snapshot(worker.run), drops, goes);
    drop_all(&operator).await;
    assert_eq!(left(face).await, "0");
    assert_eq!(check(&face.plain().await).await.1, []);
}

async fn a_snapshot_of_a_boundary_that_was_dropped_meanwhile_is_not_taken(face: &Face) {
    let world = face.plain().await;
    let worker = plain(&world).await;
    let gate = Gate::of(face);
    let late = World::new(open_beside(&face.url, Some(gate.clone())).await.unwrap(), ());
    let mut before = String::new();
    let meanwhile = async {
        gate.is_reached().await;
        turns(&world, &worker, 13..=30).await;
        let retention = Retention { keep_last: Some(5), ..Retention::default() };
        world.set_retention(worker.run, &retention).await.unwrap();
        while world.drop_old(worker.run, 500).await.unwrap().run.is_some() {}
        before = left(face).await;
        gate.open.add_permits(9);
    };
    let (snapshot, ()) = tokio::join!(late.snapshot(worker.run), meanwhile);
    assert!(!snapshot.unwrap().made);
    assert_eq!(left(face).await, before);
    assert_eq!(check(&face.sealed().await).await.1, []);
}

/// Twenty turns whose state is large, and the same at turns 10 and 20 alone, with a snapshot of the first.
async fn alike(world: &World) -> Worker {
    let worker = world.worker().await;
    for number in 1..=20 {
        let item: String = (0..9_000).map(|n: i32| format!("{:x} ", n.wrapping_mul(7_919))).collect();
        let item = if number % 10 == 0 { item } else { number.to_string() };
        let text = format!(r#"{{"set":{{"log":{{"json":"{item}"}}}}}}"#);
        ok(world
            .commit(&Commit { ops: Some(text.into()), full: false, ..worker.result(number) })
            .await
            .unwrap());
        if number == 10 {
            assert!(world.snapshot(worker.run).await.unwrap().made);
        }
    }
    let retention = Retention { keep_last: Some(5), ..Retention::default() };
    world.set_retention(worker.run, &retention).await.unwrap();
    worker
}

/// Returns once somebody waits for a lock. SQLite tells nobody of it: there, once anybody must have come to it.
async fn waits(face: &Face) {
    if !face.is_postgres() {
        return tokio::time::sleep(Duration::from_secs(3)).await;
    }
    let waiting = "SELECT CAST(count(*) AS text) FROM pg_stat_activity \
         WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let waits = async {
        while face.ask(waiting).await == "0" {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(60), waits).await.expect("somebody waits for a lock");
}

/// The first snapshot is dropped while the next is under way, which has read it and not yet written.
async fn a_snapshot_whose_shared_chunks_go_meanwhile_is_not_taken(face: &Face) {
    let world = face.plain().await;
    let worker = alike(&world).await;
    let mut session = face.session().await;
    session.execute("BEGIN").await;
    if face.is_postgres() {
        let lock = "SELECT pg_advisory_xact_lock(hashtextextended('snapshot/' || id, 0)) FROM runs";
        session.execute(lock).await;
    }
    session.execute("DELETE FROM snapshots").await;
    session.execute("DELETE FROM chunks").await;
    let goes = async {
        waits(face).await;
        session.execute("COMMIT").await;
    };
    let (snapshot, ()) = tokio::join!(world.snapshot(worker.run), goes);
    assert!(!snapshot.unwrap().made);
    assert_eq!(check(&world).await.1, []);
    assert!(world.snapshot(worker.run).await.unwrap().made, "the next is made without it");
    assert_eq!(check(&world).await.1, []);
}

/// The row that it is about to write is another's for a while, as above.
async fn a_snapshot_that_is_being_written_keeps_the_chunks_that_it_shares(face: &Face) {
    let (world, operator) = (face.plain().await, face.plain().await);
    let worker = alike(&world).await;
    let mut session = face.session().await;
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
            operator.drop_old(worker.run, 500).await.unwrap();
        }
    };
    let goes = async {
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        session.execute("ROLLBACK").await;
    };
    let (snapshot, (), ()) = tokio::join!(world.snapshot(worker.run), drops, goes);
    snapshot.unwrap();
    assert_eq!(check(&face.plain().await).await.1, []);
    while operator.drop_old(worker.run, 500).await.unwrap().run.is_some() {}
    assert_eq!(check(&face.plain().await).await.1, []);
}

async fn nothing_plain_is_written_beside_a_data_key(face: &Face) {
    let plain_world = face.plain().await;
    let worker = plain(&plain_world).await;
    face.sealed().await.write_records(&crate::batch(&worker)).await.unwrap();
    let refused = plain_world.snapshot(worker.run).await;
    assert!(matches!(refused, Err(Error::Unfit(_))), "{refused:?}");
    assert_eq!(left(face).await, "0");
}
