//! The examples of `deploy/examples` on agent frameworks, applied with kubectl as a person does.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use anyhow::Context;
use dalsegno_crds::{AgentApproval, AgentRunStatus, AttemptStatus, Cause, ConditionType, Summary};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::EvictParams;
use serde::Deserialize;
use serde_json::json;

use crate::http::Request;
use crate::ledger::pod_ip;
use crate::process::kubectl;
use crate::wait::{eventually, secs};
use crate::{Ledger, Result, Run, StatusExt, TestContext};

/// The directory of the examples.
const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/examples");

/// Port of the server that plays the model.
const MODEL_PORT: u16 = 8091;

/// Limit for a run to reach its end, or the next step towards it. The first pod waits for the image, which has hundreds
/// of megabytes, and frameworks take seconds to be imported.
const LIMIT: Duration = secs(150);

/// The answer of the model's server to `GET /requests`.
#[derive(Deserialize)]
struct Asked {
    requests: usize,
}

/// A run of an example, in a test's namespace.
pub struct Example<'c> {
    ctx: &'c TestContext,
    /// The run.
    pub run: Run<'c>,
    ledger: Ledger,
}

impl TestContext {
    /// Applies the manifests of the ledger and of the example in this directory, whose run has this name, and waits for
    /// the ledger.
    pub async fn apply_example(&self, directory: &str, run: &str) -> Result<Example<'_>> {
        for file in ["ledger.yaml", &format!("{directory}/agentrun.yaml")] {
            let manifest = self.with_fresh_images(&Path::new(DIRECTORY).join(file))?;
            let file = manifest.display().to_string();
            let applied = kubectl(["apply", "--namespace", &self.namespace, "--filename", &file]).await;
            std::fs::remove_file(&manifest)?;
            applied?;
        }
        let ledger = Ledger::find_in(&self.client, &self.namespace).await?;
        Ok(Example { ctx: self, run: self.run(run), ledger })
    }

    /// Writes a copy of a manifest whose images are pulled each time: each build pushes the same tags again.
    fn with_fresh_images(&self, manifest: &Path) -> Result<PathBuf> {
        let read = || format!("reading {}", manifest.display());
        let mut text = String::new();
        for line in std::fs::read_to_string(manifest).with_context(read)?.lines() {
            text += &format!("{line}\n");
            if let Some((indent, _)) = line.split_once("image: ") {
                text += &format!("{indent}imagePullPolicy: Always\n");
            }
        }
        let copy = std::env::temp_dir().join(format!("{}.yaml", uuid::Uuid::new_v4().simple()));
        std::fs::write(&copy, text)?;
        Ok(copy)
    }
}

impl Example<'_> {
    /// Lets the run succeed, while a person approves what it asks for, and two of its pods are evicted: the first one that
    /// has asked the model, and a later one, after the first approval. Returns the status.
    pub async fn succeed_through_two_evictions(&self) -> Result<AgentRunStatus> {
        // The attempt that asked for the first approval; 0 if nothing is approved yet.
        let asked_by = AtomicI32::new(0);
        let disturb = async {
            let first =
                self.evict_worker("the model is asked", async |_| Ok(self.asked().await? > 0)).await?;
            let is_later = async |attempt: i32| {
                let asked_by = asked_by.load(Ordering::SeqCst);
                Ok(asked_by > 0 && attempt > first.max(asked_by))
            };
            self.evict_worker("something is approved", is_later).await
        };
        let end = async {
            let finished = eventually(format!("the end of run {}", self.run.name), LIMIT, async || {
                if let Some(attempt) = self.approve_all().await? {
                    let _ = asked_by.compare_exchange(0, attempt, Ordering::SeqCst, Ordering::SeqCst);
                }
                Ok(Some(self.run.status().await?).filter(|it| it.is_true(ConditionType::Finished)))
            });
            finished.await
        };
        let (last, status) = match tokio::try_join!(disturb, end) {
            Ok(done) => done,
            Err(error) => {
                return Err(error.context(serde_yaml::to_string(&self.run.status().await?)?));
            }
        };
        anyhow::ensure!(status.summary == Some(Summary::Succeeded), "{}", serde_yaml::to_string(&status)?);
        anyhow::ensure!(status.attempt().number > last, "attempt {last} was evicted, and was the last");
        Ok(status)
    }

    /// Evicts the worker of an attempt for which `is_due` is true. Returns the attempt. A pod that has just ended by
    /// itself is not there any more: then the next one is evicted.
    async fn evict_worker(&self, when: &str, is_due: impl AsyncFn(i32) -> Result<bool>) -> Result<i32> {
        let what = format!("an eviction of run {} after {when}", self.run.name);
        eventually(what, LIMIT, async || {
            let status = self.run.status().await?;
            let attempt = status.attempt();
            let Some(pod) = attempt.pod_name else { return Ok(None) };
            if !status.is_true(ConditionType::WorkerReady) || !is_due(attempt.number).await? {
                return Ok(None);
            }
            let pods = kube::Api::<Pod>::namespaced(self.ctx.no_retry.clone(), &self.ctx.namespace);
            pods.evict(&pod, &EvictParams::default()).await?;
            Ok(Some(attempt.number))
        })
        .await
    }

    /// Approves all open AgentApprovals with kubectl. Returns the attempt that has asked, if there was one to approve.
    async fn approve_all(&self) -> Result<Option<i32>> {
        let AttemptStatus { number, pod_name, .. } = self.run.status().await?.attempt();
        // A run that waits already has the number of its next attempt, and no pod.
        let attempt = if pod_name.is_some() { number } else { number - 1 };
        let all = self.ctx.api::<AgentApproval>().list(&Default::default()).await?.items;
        let mut approved = None;
        for approval in all.into_iter().filter(|it| it.spec.decision.is_none()) {
            let me = kubectl(["auth", "whoami", "--output", "jsonpath={.status.userInfo.username}"]).await?;
            let decision = json!({ "spec": { "decision": {
                "verdict": "Approved", "proposalHash": approval.spec.proposal_hash, "reason": "it is due", "by": me,
            } } });
            let name = format!("agentapproval/{}", approval.name_any());
            let patch = ["--type", "merge", "--patch", &decision.to_string()];
            kubectl([&["patch", "--namespace", &self.ctx.namespace, &name], &patch[..]].concat()).await?;
            approved = Some(attempt);
        }
        Ok(approved)
    }

    /// How many requests came to the server that plays the model. No pod of it is evicted.
    async fn asked(&self) -> Result<usize> {
        let app = format!("{}-model", self.run.name);
        let ip = pod_ip(&self.ctx.client, &self.ctx.namespace, &app).await?;
        let answer = Request::get(format!("http://{ip}:{MODEL_PORT}/requests")).send().await?;
        Ok(answer.json::<Asked>()?.requests)
    }

    /// Checks the effects: the ledger has exactly these notes, each once and under a key of its own, and no effect was
    /// requested again after its turn was committed.
    pub async fn expect_effects(&self, status: &AgentRunStatus, notes: &[&str]) -> Result {
        let entries = self.ledger.entries(&self.run.key()).await?;
        let mut found: Vec<&str> = entries.iter().map(|entry| entry.note.as_str()).collect();
        let mut expected = notes.to_vec();
        found.sort_unstable();
        expected.sort_unstable();
        anyhow::ensure!(found == expected, "the ledger has {found:?}, not {expected:?}");
        let keys: BTreeSet<&str> = entries.iter().map(|entry| entry.key.as_str()).collect();
        anyhow::ensure!(keys.len() == entries.len(), "a key is there twice: {entries:?}");
        self.run.expect_no_entry_retried(&entries, status)
    }

    /// Checks that both evictions have ended an attempt, that the run has committed exactly so many turns, as it does
    /// without an eviction, that each attempt had one pod, and that the model was asked as often as without an eviction,
    /// and at most once more for each.
    pub async fn expect_nothing_repeated(&self, status: &AgentRunStatus, turns: i32, asked: usize) -> Result {
        anyhow::ensure!(status.turn() == turns, "{} turns were committed, not {turns}", status.turn());
        let (causes, attempts) = (status.causes(), status.attempt().number);
        let evicted = causes.iter().filter(|cause| **cause == Cause::Evicted).count();
        anyhow::ensure!(evicted == 2, "two attempts should have been evicted: {causes:?}");
        let found = self.asked().await?;
        println!("{}: {attempts} attempts, and {found} requests for a model's answer", self.run.name);
        anyhow::ensure!(
            (asked..=asked + evicted).contains(&found),
            "the model was asked {found} times, not {asked} times and at most once more for each eviction"
        );
        self.ctx.audit.expect_pods(&self.run.name, 1..=attempts)
    }
}
