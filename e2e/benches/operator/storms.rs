//! A thousand runs that need something at the same moment: workers that attach, pods that are lost, pods that were lost
//! while no operator was running.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dalsegno_e2e::audit::Entry;
use dalsegno_e2e::wait::secs;
use dalsegno_e2e::{AuditLog, Result, Worker};
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
    let lost = lose(fleet, 0).await?;
    let restarted = restart(processes, fleet).await?;
    Ok(vec![attached, lost, restarted])
}

/// The workers of a thousand further runs attach at once, while others commit.
async fn attach(fleet: &Fleet) -> Result<Storm> {
    let workers = fleet.prepare((0..THOUSAND).map(|i| format!("late-{i}"))).await?;
    let before = Commits::start(&fleet.workers).await?;
    sleep(BEFORE).await;
    let before = before.stop().await?;
    let meanwhile = Commits::start(&fleet.workers).await?;
    let began = Instant::now();
    let times = try_join_all(workers.iter().map(|worker| async move {
        worker.attach_when_ready().await?;
        anyhow::Ok(began.elapsed())
    }))
    .await?;
    let whole = began.elapsed();
    let commits = Some([before, meanwhile.stop().await?].map(|samples| samples.quantile(0.99)));
    let mut samples = Samples::default();
    times.into_iter().for_each(|time| samples.push(time));
    Ok(Storm { what: "workers attach", samples, whole, commits })
}

/// Workers that commit until they are stopped.
struct Commits {
    stop: Arc<AtomicBool>,
    tasks: Vec<tokio::task::JoinHandle<Result<Samples>>>,
}

impl Commits {
    /// The fleet's last workers begin to commit.
    async fn start(workers: &[Worker]) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks = Vec::new();
        for worker in workers.iter().rev().take(COMMITTERS).cloned() {
            let head = worker.state().await?.json::<dalsegno_protocol::AttachResponse>();
            let (stop, mut turn) = (stop.clone(), next_turn(&worker, head.is_ok()).await?);
            tasks.push(tokio::spawn(async move {
                let mut samples = Samples::default();
                while !stop.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    let answer = worker.commit(turn, json!({ "turn": turn })).await?;
                    anyhow::ensure!(answer.status == 200, "a commit was refused: {answer:?}");
                    samples.push(began.elapsed());
                    turn += 1;
                }
                Ok(samples)
            }));
        }
        Ok(Self { stop, tasks })
    }
}
