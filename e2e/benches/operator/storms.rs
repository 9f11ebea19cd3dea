//! A thousand runs that need something at the same moment: workers that attach, pods that are lost, pods that were lost
//! while no operator was running.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dalsegno_e2e::audit::Entry;
use dalsegno_e2e::wait::secs;
use dalsegno_e2e::{AuditLog, Result, Worker, worker};
use futures::future::try_join_all;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use kube::api::DeleteParams;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::figures::{Samples, about};
use crate::fleet::Fleet;
use crate::scale::{Processes, THOUSAND};

/// Workers that commit one turn after the other during the attaches.
const COMMITTERS: usize = 16;
/// The pause before a commit is sent again.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// How long their commits are measured before the attaches.
const BEFORE: Duration = secs(10);
/// Limit for every replacement pod of a storm to be created.
const LIMIT: Duration = secs(300);
/// Deletions on their way at one time.
const DELETIONS_AT_ONCE: usize = 64;
/// The pause between two looks at the audit log.
const LOOK: Duration = Duration::from_secs(1);

/// The times of one storm.
pub struct Storm {
    what: &'static str,
    /// From the moment at which the storm concerned a run to what the run needed.
    samples: Samples,
    /// From the storm's first moment to the last of what was needed.
    whole: Duration,
    /// p99 of commits before the storm and during it.
    commits: Option<[Duration; 2]>,
}

impl Storm {
    /// The storm's line of the table.
    pub fn row(&self) -> [String; 7] {
        let [before, meanwhile] = self.commits.map(|both| both.map(about)).unwrap_or_default();
        let per_second = format!("{:.0}", THOUSAND as f64 / self.whole.as_secs_f64());
        let [p50, p99, slowest] = [0.5, 0.99, 1.0].map(|share| seconds(self.samples.quantile(share)));
        [self.what.to_owned(), per_second, p50, p99, slowest, before, meanwhile]
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}

/// Measures all storms. The fleet's first runs lose their pods, and its last ones commit.
pub async fn measure(processes: &mut Processes, fleet: &Fleet) -> Result<Vec<Storm>> {
    anyhow::ensure!(fleet.workers.len() > 2 * THOUSAND, "the storms need more than {} runs", 2 * THOUSAND);
    let attached = attach(fleet).await?;
    let lost = lose(fleet).await?;
    let restarted = restart(processes, fleet).await?;
    Ok(vec![attached, lost, restarted])
}

/// The workers of a thousand further runs attach at once, while others commit.
async fn attach(fleet: &Fleet) -> Result<Storm> {
    let workers = fleet.prepare((0..THOUSAND).map(|i| format!("late-{i}"))).await?;
    let stop = AtomicBool::new(false);
    let commits = try_join_all(fleet.workers.iter().rev().take(COMMITTERS).map(|it| commit_until(it, &stop)));
    let attaches = async {
        sleep(BEFORE).await;
        let began = Instant::now();
        let times = try_join_all(workers.iter().map(|worker| async move {
            worker.attach_when_ready().await?;
            anyhow::Ok(began.elapsed())
        }))
        .await;
        let whole = began.elapsed();
        stop.store(true, Ordering::Relaxed);
        times.map(|times| (began, times, whole))
    };
    let (commits, (began, times, whole)) = tokio::try_join!(commits, attaches)?;
    let (mut before, mut meanwhile) = (Samples::default(), Samples::default());
    for (end, took) in commits.into_iter().flatten() {
        if end < began { before.push(took) } else { meanwhile.push(took) }
    }
    let mut samples = Samples::default();
    times.into_iter().for_each(|time| samples.push(time));
    let commits = Some([before.quantile(0.99), meanwhile.quantile(0.99)]);
    Ok(Storm { what: "workers attach", samples, whole, commits })
}

/// Commits one turn after the other until `stop`, from turn 2 on. Returns when each commit ended and how long it took.
async fn commit_until(worker: &Worker, stop: &AtomicBool) -> Result<Vec<(Instant, Duration)>> {
    let mut commits = Vec::new();
    for turn in 2.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let began = Instant::now();
        // As the SDKs do it: the same bytes again, until there is an answer. All tries together are one commit.
        let body = worker::commit(json!({ "turn": turn }));
        loop {
            let answer = worker.post(&format!("turns/{turn}"), body.clone()).await?;
            match answer.status {
                200 => break,
                503 => sleep(RETRY_PAUSE).await,
                _ => anyhow::bail!("a commit was refused: {answer:?}"),
            }
        }
        commits.push((Instant::now(), began.elapsed()));
    }
    Ok(commits)
}

/// The pods of a thousand runs are deleted at once.
async fn lose(fleet: &Fleet) -> Result<Storm> {
    let audit = AuditLog::from_now(&fleet.namespace)?;
    let losses = delete_pods(fleet, 0).await?;
    storm("pods are lost", &audit, &losses).await
}

/// The pods of another thousand runs are deleted while no operator is running. The times count from its start.
async fn restart(processes: &mut Processes, fleet: &Fleet) -> Result<Storm> {
    drop(processes.operator.take());
    let audit = AuditLog::from_now(&fleet.namespace)?;
    let mut losses = delete_pods(fleet, THOUSAND).await?;
    let began = Timestamp::now();
    losses.values_mut().for_each(|lost| *lost = began);
    processes.start_operator().await?;
    storm("pods were lost before the operator's start", &audit, &losses).await
}

/// Deletes the first pods of a thousand runs. Returns by the name of the replacement when each deletion was sent.
async fn delete_pods(fleet: &Fleet, from: usize) -> Result<HashMap<String, Timestamp>> {
    let pods = &fleet.pods();
    stream::iter(from..from + THOUSAND)
        .map(|i| async move {
            let sent = Timestamp::now();
            pods.delete(&format!("run-{i}-1"), &DeleteParams::default().grace_period(0)).await?;
            Ok((format!("run-{i}-2"), sent))
        })
        .buffer_unordered(DELETIONS_AT_ONCE)
        .try_collect()
        .await
}

/// Waits for every replacement pod, and reads from the audit log when each was created.
async fn storm(what: &'static str, audit: &AuditLog, losses: &HashMap<String, Timestamp>) -> Result<Storm> {
    let limit = Instant::now() + LIMIT;
    let creations = loop {
        sleep(LOOK).await;
        let is_replacement = |entry: &Entry| {
            entry.verb == "create" && entry.is_pod() && entry.succeeded() && losses.contains_key(&entry.name)
        };
        let mut found = audit.entries()?;
        found.retain(is_replacement);
        if found.len() >= losses.len() {
            break found;
        }
        anyhow::ensure!(
            Instant::now() < limit,
            "{what}: {} of {} pods were replaced within {LIMIT:?}",
            found.len(),
            losses.len()
        );
    };
    let mut samples = Samples::default();
    for entry in &creations {
        samples.push(entry.at.duration_since(losses[&entry.name]).unsigned_abs());
    }
    let first = losses.values().min().copied().unwrap_or_default();
    let last = creations.iter().map(|entry| entry.at).max().unwrap_or_default();
    Ok(Storm { what, samples, whole: last.duration_since(first).unsigned_abs(), commits: None })
}
