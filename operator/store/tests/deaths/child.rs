//! A process of its own: it commits to a SQLite file, so that it can be ended at any moment, or has mounts that nobody else sees.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;

use dalsegno_store::sqlite::Sqlite;
use dalsegno_store::{Committed, Store};

use crate::steady::hash;
pub use crate::traced::{command, folder, say};
use crate::world::{Worker, World};

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
fn worker(folder: &Path) -> Worker {
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
