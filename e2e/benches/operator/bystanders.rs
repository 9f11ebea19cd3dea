//! Runs that have a worker all the time and lose their pods, once while nothing else happens and once while others wake
//! up.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use dalsegno_e2e::wait::{eventually, secs};
use dalsegno_e2e::{AuditLog, Result, Worker};
use futures::future::try_join_all;
use jiff::Timestamp;
use kube::api::DeleteParams;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::figures::Samples;
use crate::fleet::Fleet;

/// The number of these runs.
pub const BYSTANDERS: usize = 20;
/// Their pods are lost one after the other within this time.
const LOSSES: Duration = secs(1);
/// The period of their heartbeats: a third of the timeout.
const HEARTBEAT_PERIOD: Duration = secs(5);
/// The limit for every lost pod to be replaced.
const LIMIT: Duration = secs(300);

/// The runs, and the task that sends their heartbeats.
pub struct Bystanders {
    attempt: i32,
    heartbeats: JoinHandle<()>,
}

/// When the pods of the runs were lost, by the name of the next pod.
pub type Losses = BTreeMap<String, Timestamp>;

impl Bystanders {
    /// Starts the runs and attaches their workers.
    pub async fn start(fleet: &mut Fleet) -> Result<Self> {
        fleet.start((0..BYSTANDERS).map(|i| format!("bystander-{i}"))).await?;
        let workers = std::mem::take(&mut fleet.workers);
        Self::with_progress(1, workers).await
    }

    /// Each worker commits a turn: a run without progress since its last loss would wait before its next pod.
    async fn with_progress(attempt: i32, workers: Vec<Worker>) -> Result<Self> {
        for worker in &workers {
            let answer = worker.commit(attempt.into(), json!({})).await?;
            anyhow::ensure!(answer.status == 200, "turn {attempt} was refused: {answer:?}");
        }
        Ok(Self { attempt, heartbeats: tokio::spawn(send_heartbeats(workers)) })
    }

    /// Deletes the pod of each run within a second.
    pub async fn lose_pods(&self, fleet: &Fleet) -> Result<Losses> {
        let (pods, attempt) = (&fleet.pods(), self.attempt);
        let losses = (0..BYSTANDERS).map(|i| async move {
            sleep(LOSSES * i as u32 / BYSTANDERS as u32).await;
            let lost = Timestamp::now();
            pods.delete(&format!("bystander-{i}-{attempt}"), &DeleteParams::default().grace_period(0))
                .await?;
            anyhow::Ok((format!("bystander-{i}-{}", attempt + 1), lost))
        });
        Ok(try_join_all(losses).await?.into_iter().collect())
    }

    /// The runs lose their pods, and their next workers attach. Returns how long they waited for their next pods.
    pub async fn recover(self, fleet: &Fleet) -> Result<(Self, Samples)> {
        let audit = AuditLog::from_now(&fleet.namespace)?;
        let losses = self.lose_pods(fleet).await?;
        let created = creations(&audit, BYSTANDERS, LIMIT).await?;
        let samples = waits_for_pods(&losses, &created)?;
        let workers = try_join_all(losses.keys().map(|pod| async move {
            let worker = fleet.worker(pod).await?;
            worker.attach_when_ready().await?;
            anyhow::Ok(worker)
        }));
        let next = Self::with_progress(self.attempt + 1, workers.await?).await?;
        Ok((next, samples))
    }
}

impl Drop for Bystanders {
    fn drop(&mut self) {
        self.heartbeats.abort();
    }
}

/// Heartbeats of workers that have no other work.
async fn send_heartbeats(workers: Vec<Worker>) {
    loop {
        // A restart of the gateway or of the store loses some of them.
        futures::future::join_all(workers.iter().map(Worker::heartbeat)).await;
        sleep(HEARTBEAT_PERIOD).await;
    }
}

/// From the loss of each pod to the creation of the next one.
pub fn waits_for_pods(losses: &Losses, created: &BTreeMap<String, Timestamp>) -> Result<Samples> {
    let mut samples = Samples::default();
    for (pod, lost) in losses {
        let at = created.get(pod).with_context(|| format!("pod {pod} was not created"))?;
        samples.push(Duration::try_from(at.duration_since(*lost)).unwrap_or_default());
    }
    Ok(samples)
}

/// Waits until this number of pods were created. Returns when, by their names. Fails if one was created twice.
pub async fn creations(
    audit: &AuditLog,
    count: usize,
    limit: Duration,
) -> Result<BTreeMap<String, Timestamp>> {
    eventually(format!("{count} pods to be created"), limit, async || {
        Ok(Some(creations_so_far(audit)?).filter(|created| created.len() >= count))
    })
    .await
}

/// The pods that were created so far.
pub fn creations_so_far(audit: &AuditLog) -> Result<BTreeMap<String, Timestamp>> {
    let mut created = BTreeMap::new();
    for entry in audit.entries()? {
        if entry.verb == "create" && entry.is_pod() && entry.succeeded() {
            let before = created.insert(entry.name.clone(), entry.at);
            anyhow::ensure!(before.is_none(), "pod {} was created twice", entry.name);
        }
    }
    Ok(created)
}
