//! A process of its own: it commits to a SQLite file, so that it can be ended at any moment, or has mounts that nobody else sees.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;

use dalsegno_protocol::{Boundary, Payload, Policy, RecordOp};
use dalsegno_store::sqlite::Sqlite;
use dalsegno_store::{
    Acknowledged, Class, Commit, Committed, Completed, Place, Read as _, RecordBatch, Rewind, Rewound,
    RunRecord, Worker as _, Written,
};
use uuid::Uuid;

use crate::steady::hash;
pub use crate::traced::{command, folder, say};
use crate::world::*;

/// The database in a folder.
pub fn database(folder: &Path) -> PathBuf {
    folder.join("runs.db")
}

/// A migrated database with a run whose worker has attached.
pub async fn prepare(folder: &Path) -> Worker {
    let path = database(folder);
    Sqlite::migrate(&path).await.unwrap();
    let store = Arc::new(Sqlite::open(&path).await.unwrap());
    let worker = World::new(store.clone(), ()).worker().await;
    store.close().await;
    let text =
        serde_json::json!([worker.run, worker.object_uid, worker.attempt, worker.pod_uid, worker.capability]);
    std::fs::write(folder.join("worker"), text.to_string()).unwrap();
    worker
}

/// The worker that was prepared.
pub fn worker(folder: &Path) -> Worker {
    let text = std::fs::read_to_string(folder.join("worker")).unwrap();
    let (run, object_uid, attempt, pod_uid, capability) = serde_json::from_str(&text).unwrap();
    Worker { run, object_uid, attempt, pod_uid, capability }
}

/// What a child does: says where the head is, then commits the turns after it, saying each as soon as it is acknowledged.
/// An answer that is no commit is said, too, and the child ends.
pub async fn commit_turns(folder: &Path, count: i32) {
    let store = Sqlite::open(&database(folder)).await.unwrap();
    let worker = worker(folder);
    let head = store.get_run(worker.run).await.unwrap().unwrap().head;
    let (turn, content_hash) = head.map_or((0, "-".to_owned()), |head| (head.turn, head.content_hash));
    say(&format!("head {turn} {content_hash}"));
    for turn in turn + 1..=turn + count {
        match store.commit(&worker.result(turn)).await {
            Ok(Committed::Ok(standing)) => say(&format!("ack {turn} {}", hash(&standing, turn))),
            other => return say(&format!("refused {turn} {other:?}")),
        }
    }
}

/// What a child does: each write that a worker, and who acts on its run, is answered, said as soon as it is.
pub async fn write_one_of_each(folder: &Path) {
    let path = database(folder);
    Sqlite::migrate(&path).await.unwrap();
    let world = World::new(Arc::new(Sqlite::open(&path).await.unwrap()), ());
    let begin = async |run: RunRecord| {
        let (pod, capability) = (pod(&run), random());
        recorded(world.record_pod(run.id, run.attempt.number, &pod).await.unwrap());
        say("ack record_pod");
        attached(world.attach(run.id, &pod.uid, &capability).await.unwrap());
        say("ack attach");
        let (object_uid, attempt) = (run.object_uid, run.attempt.number);
        Worker { run: run.id, object_uid, attempt, pod_uid: pod.uid, capability }
    };
    let run = world.run().await;
    say("ack create_run");
    let worker = begin(run).await;
    ok(world.commit(&Commit { calls: vec![planned("a", Policy::Probe)], ..worker.plan(1) }).await.unwrap());
    say("ack commit");
    let claim = world.start_call(&worker, "a", Policy::Probe).await;
    say("ack claim");
    assert!(matches!(world.complete(&worker.complete(&claim)).await.unwrap(), Completed::Ok));
    say("ack complete");
    let Worker { run, capability, .. } = worker;
    let value = Payload::Json(json("1"));
    let operations = vec![RecordOp::Put { space: "s".into(), key: "k".into(), value }];
    let batch = RecordBatch { run, capability, batch_id: Uuid::new_v4(), digest: random(), operations };
    assert_eq!(world.write_records(&batch).await.unwrap(), Written::Ok);
    say("ack write_records");
    world.turn(&worker, 1).await;
    say("ack commit");
    world.start_call(&worker, "b", Policy::Probe).await;
    say("ack claim");
    let next = world.lose(&worker, Class::Disruption).await;
    say("ack end_attempt");
    let worker = begin(next).await;
    assert!(matches!(world.settle(&worker.settle("b")).await.unwrap(), Completed::Ok));
    say("ack settle");
    world.turn(&worker, 2).await;
    say("ack commit");
    let to = Place { turn: 1, boundary: Boundary::Result, epoch: 1 };
    let rewind = Rewind { epoch: 2, to, reason: "it went astray".into(), actor: "ada".into() };
    assert!(matches!(world.rewind(run, &rewind).await.unwrap(), Rewound::Done(_)));
    say("ack rewind");
    let worker = begin(world.of(&worker).await).await;
    ok(world.finish(&worker.finish()).await.unwrap());
    say("ack finish");
    let another = world.run().await;
    say("ack create_run");
    let worker = begin(another).await;
    world.request_cancel(worker.run).await.unwrap();
    say("ack request_cancel");
    let acknowledged = world.acknowledge_cancel(worker.run, &worker.capability).await.unwrap();
    assert_eq!(acknowledged, Acknowledged::Cancelled);
    say("ack acknowledge_cancel");
}

/// A line that a child said: what, of which turn, the rest.
pub fn heard(line: &str) -> Option<(&str, usize, &str)> {
    let mut words = line.splitn(3, ' ');
    let what = words.next().filter(|what| ["head", "ack", "refused"].contains(what))?;
    Some((what, words.next()?.parse().ok()?, words.next()?))
}

/// What a child says whose mounts are made by this script; they go with it.
pub fn with_mounts(test: &str, folder: &Path, script: &str) -> Output {
    let mut wrapper = vec!["unshare", "--mount", "sh", "-euc", script, "sh"];
    if !rustix::process::getuid().is_root() {
        wrapper.insert(1, "--map-root-user");
    }
    command(test, folder, &wrapper).output().unwrap()
}
