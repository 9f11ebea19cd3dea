//! Child processes of these tests: they commit to a SQLite file until they are killed, or run with mounts of their own.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;

use dalsegno_model::{
    Acknowledged, Class, Commit, Committed, Completed, Parked, Read as _, Rewound, RunRecord, Worker as _,
    Written,
};
use dalsegno_protocol::{Payload, Policy, RecordOp};
use dalsegno_store::sqlite::Sqlite;

use crate::context::*;
use crate::retrying_worker::hash;
pub use crate::strace::{command, folder, print_line};

/// The database in a folder.
pub fn database(folder: &Path) -> PathBuf {
    folder.join("runs.db")
}

/// Creates a migrated database with a run whose worker has attached.
pub async fn prepare(folder: &Path) -> Worker {
    let path = database(folder);
    Sqlite::migrate(&path).await.unwrap();
    let store = Arc::new(Sqlite::open(&path).await.unwrap());
    let worker = TestContext::new(store.clone(), ()).worker().await;
    store.close().await;
    let text =
        serde_json::json!([worker.run, worker.object_uid, worker.attempt, worker.pod_uid, worker.capability]);
    std::fs::write(folder.join("worker"), text.to_string()).unwrap();
    worker
}

/// The worker of the prepared database.
pub fn worker(folder: &Path) -> Worker {
    let text = std::fs::read_to_string(folder.join("worker")).unwrap();
    let (run, object_uid, attempt, pod_uid, capability) = serde_json::from_str(&text).unwrap();
    Worker { run, object_uid, attempt, pod_uid, capability }
}

/// The work of a child: prints the head, then commits the turns after it and prints each one when it is acknowledged.
/// Prints any other answer too, and ends.
pub async fn commit_turns(folder: &Path, count: i32) {
    let store = Sqlite::open(&database(folder)).await.unwrap();
    let worker = worker(folder);
    let head = store.get_run(worker.run).await.unwrap().unwrap().head;
    let (turn, content_hash) = head.map_or((0, "-".to_owned()), |head| (head.turn, head.content_hash));
    print_line(&format!("head {turn} {content_hash}"));
    for turn in turn + 1..=turn + count {
        match store.commit(&worker.result(turn)).await {
            Ok(Committed::Ok(receipt)) => print_line(&format!("ack {turn} {}", hash(&receipt, turn))),
            other => return print_line(&format!("refused {turn} {other:?}")),
        }
    }
}

/// The work of a child: every write of a worker, an operator and a person. Prints each one when it is answered.
pub async fn write_one_of_each(folder: &Path) {
    let path = database(folder);
    Sqlite::migrate(&path).await.unwrap();
    let cx = TestContext::new(Arc::new(Sqlite::open(&path).await.unwrap()), ());
    let begin = async |run: RunRecord| {
        let (pod, capability) = (pod(&run), random_digest());
        recorded(cx.record_pod(run.id, run.attempt.number, &pod).await.unwrap());
        print_line("ack record_pod");
        attached(cx.attach(run.id, &pod.uid, &capability).await.unwrap());
        print_line("ack attach");
        let (object_uid, attempt) = (run.object_uid, run.attempt.number);
        Worker { run: run.id, object_uid, attempt, pod_uid: pod.uid, capability }
    };
    let run = cx.run().await;
    print_line("ack create_run");
    let worker = begin(run).await;
    ok(cx.commit(&Commit { calls: vec![planned("a", Policy::Probe)], ..worker.plan(1) }).await.unwrap());
    print_line("ack commit");
    let claim = cx.start_call(&worker, "a", Policy::Probe).await;
    print_line("ack claim");
    assert!(matches!(cx.complete(&worker.complete(&claim)).await.unwrap(), Completed::Ok));
    print_line("ack complete");
    let run = worker.run;
    let value = Payload::Json(json("1"));
    let operations = vec![RecordOp::Put { space: "s".into(), key: "k".into(), value }];
    let batch = worker.record_batch(operations);
    assert_eq!(cx.write_records(&batch).await.unwrap(), Written::Ok);
    print_line("ack write_records");
    cx.commit_turn(&worker, 1).await;
    print_line("ack commit");
    cx.start_call(&worker, "b", Policy::Probe).await;
    print_line("ack claim");
    let next = cx.end_and_reserve(&worker, Class::Disruption).await;
    print_line("ack end_attempt");
    let worker = begin(next).await;
    assert!(matches!(cx.settle(&worker.settle("b")).await.unwrap(), Completed::Ok));
    print_line("ack settle");
    cx.commit_turn(&worker, 2).await;
    print_line("ack commit");
    let rewind = rewind_to(2, result_place(1));
    assert!(matches!(cx.rewind(run, &rewind).await.unwrap(), Rewound::Done(_)));
    print_line("ack rewind");
    let worker = begin(cx.run_of(&worker).await).await;
    cx.suspend(run).await.unwrap();
    print_line("ack suspend");
    assert_eq!(cx.park(&worker.park()).await.unwrap(), Parked::Parked);
    print_line("ack park");
    let resumed = cx.resume(run).await.unwrap();
    print_line("ack resume");
    let worker = begin(resumed).await;
    ok(cx.finish(&worker.finish()).await.unwrap());
    print_line("ack finish");
    let another = cx.run().await;
    print_line("ack create_run");
    let worker = begin(another).await;
    cx.request_cancel(worker.run).await.unwrap();
    print_line("ack request_cancel");
    let acknowledged = cx.acknowledge_cancel(worker.run, &worker.capability).await.unwrap();
    assert_eq!(acknowledged, Acknowledged::Cancelled);
    print_line("ack acknowledge_cancel");
}

/// A line of a child: its kind, its turn, and the rest.
pub fn parse_line(line: &str) -> Option<(&str, usize, &str)> {
    let mut words = line.splitn(3, ' ');
    let what = words.next().filter(|what| ["head", "ack", "refused"].contains(what))?;
    Some((what, words.next()?.parse().ok()?, words.next()?))
}

/// Runs a child with the mounts of this script. The mounts end with the child.
pub fn with_mounts(test: &str, folder: &Path, script: &str) -> Output {
    let mut wrapper = vec!["unshare", "--mount", "sh", "-euc", script, "sh"];
    if !rustix::process::getuid().is_root() {
        wrapper.insert(1, "--map-root-user");
    }
    command(test, folder, &wrapper).output().unwrap()
}
