//! One AgentRun of a test: its status, the operations on it, and the checks of its result.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dalsegno_crds::{AgentRun, AgentRunStatus, ConditionType, Summary, names};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, EvictParams};
use serde_json::{Value, json};

use crate::cluster::Processes;
use crate::wait::{eventually, secs};
use crate::{Agent, Result, StatusExt, TestContext, ledger, objects};

/// Limit for a run to reach its end, or the next step towards it.
const LIMIT: Duration = secs(60);

/// An AgentRun, by name. Each call reads it anew from the API server.
#[derive(Clone)]
pub struct Run<'c> {
    ctx: &'c TestContext,
    /// The run's name.
    pub name: String,
}

impl TestContext {
    /// Creates an AgentRun of this name.
    pub async fn start(&self, name: &str, agent: &Agent) -> Result<Run<'_>> {
        self.create_run(agent.manifest(name, &self.ledger.url())).await?;
        Ok(self.run(name))
    }

    /// The run of this name.
    pub fn run(&self, name: &str) -> Run<'_> {
        Run { ctx: self, name: name.to_owned() }
    }
}

impl Run<'_> {
    /// `namespace/name`, the run's name in the ledger.
    pub fn key(&self) -> String {
        format!("{}/{}", self.ctx.namespace, self.name)
    }

    fn api(&self) -> Api<AgentRun> {
        self.ctx.api()
    }

    /// The current AgentRun.
    pub async fn object(&self) -> Result<AgentRun> {
        Ok(self.api().get(&self.name).await?)
    }

    /// The current status; empty if there is none yet.
    pub async fn status(&self) -> Result<AgentRunStatus> {
        Ok(self.object().await?.status.unwrap_or_default())
    }

    /// Waits until the status meets a condition. If the limit passes, the error shows the status.
    pub async fn wait_until(
        &self,
        what: &str,
        limit: Duration,
        is_met: impl Fn(&AgentRunStatus) -> bool,
    ) -> Result<AgentRunStatus> {
        let found = eventually(format!("run {}: {what}", self.name), limit, async || {
            Ok(Some(self.status().await?).filter(&is_met))
        })
        .await;
        match found {
            Ok(status) => Ok(status),
            Err(error) => {
                let status = self.status().await.map(|status| serde_yaml::to_string(&status));
                Err(error.context(match status {
                    Ok(Ok(yaml)) => format!("its status:\n{yaml}"),
                    _ => "its status cannot be read".to_owned(),
                }))
            }
        }
    }

    /// Waits for a summary.
    pub async fn wait_for(&self, summary: Summary, limit: Duration) -> Result<AgentRunStatus> {
        self.wait_until(&format!("to be {summary}"), limit, |status| status.summary == Some(summary)).await
    }

    /// Waits up to a minute until the run has succeeded.
    pub async fn wait_for_success(&self) -> Result<AgentRunStatus> {
        self.wait_for(Summary::Succeeded, LIMIT).await
    }

    /// Waits until this attempt, or a later one, has a ready worker.
    pub async fn wait_for_attempt(&self, number: i32, limit: Duration) -> Result<AgentRunStatus> {
        let is_met = |status: &AgentRunStatus| {
            status.attempt().number >= number && status.is_true(ConditionType::WorkerReady)
        };
        self.wait_until(&format!("attempt {number} to have a worker"), limit, is_met).await
    }

    /// Waits up to a minute until the effect of this turn, or of a later one, is in the ledger. The ledger shows it
    /// earlier than the status.
    pub async fn wait_for_turn(&self, turn: i32) -> Result {
        eventually(format!("turn {turn} of run {}", self.name), LIMIT, async || {
            Ok((self.ctx.ledger.highest_turn(&self.key()).await? >= turn).then_some(()))
        })
        .await
    }

    /// Waits up to a minute for the pod of the current attempt.
    pub async fn pod(&self) -> Result<Pod> {
        let pods: Api<Pod> = self.ctx.api();
        eventually(format!("a pod of run {}", self.name), LIMIT, async || {
            match self.status().await?.attempt().pod_name {
                Some(name) => Ok(pods.get_opt(&name).await?),
                None => Ok(None),
            }
        })
        .await
    }

    /// All pods of the run, ended ones included, ordered by attempt.
    pub async fn pods(&self) -> Result<Vec<Pod>> {
        objects::pods_of(&self.ctx.client, &self.ctx.namespace, &self.name).await
    }

    /// Waits until all containers of a pod of the run have ended, or the pod is gone.
    pub async fn wait_for_end_of(&self, pod: &Pod, limit: Duration) -> Result {
        eventually(format!("the end of pod {}", pod.name_any()), limit, async || {
            let is_other = |it: &Pod| it.metadata.uid != pod.metadata.uid;
            let is_over = self.pods().await?.iter().all(|it| is_other(it) || objects::has_ended(it));
            Ok(is_over.then_some(()))
        })
        .await
    }

    /// Evicts the current pod through the Eviction API, without a retry.
    pub async fn evict(&self) -> Result<Pod> {
        let pod = self.pod().await?;
        Api::<Pod>::namespaced(self.ctx.no_retry.clone(), &self.ctx.namespace)
            .evict(&pod.name_any(), &EvictParams::default())
            .await?;
        Ok(pod)
    }

    /// Deletes the current pod.
    pub async fn delete_pod(&self, params: &DeleteParams) -> Result<Pod> {
        let pod = self.pod().await?;
        self.ctx.api::<Pod>().delete(&pod.name_any(), params).await?;
        Ok(pod)
    }

    /// The processes of the current worker, as the machine numbers them.
    pub async fn processes(&self) -> Result<Processes> {
        let pod = self.pod().await?;
        self.ctx.cluster()?.processes(&pod, "agent").await
    }

    /// Changes the `spec` by a merge patch.
    pub async fn patch_spec(&self, spec: Value) -> Result {
        self.try_patch_spec(spec).await?;
        Ok(())
    }

    /// Like [`Self::patch_spec`], for a change that may be refused. See [`objects::refusal`].
    pub async fn try_patch_spec(&self, spec: Value) -> kube::Result<()> {
        let change = json!({ "spec": spec });
        objects::patch::<AgentRun>(&self.ctx.client, &self.ctx.namespace, &self.name, &change).await.map(drop)
    }

    /// Cancels the run.
    pub async fn cancel(&self) -> Result {
        self.patch_spec(json!({ "operatingMode": "Cancelled" })).await
    }

    /// Cancels the run with a reason.
    pub async fn cancel_with_reason(&self, reason: &str) -> Result {
        let annotations = json!({ names::ANNOTATION_REASON: reason });
        let change =
            json!({ "metadata": { "annotations": annotations }, "spec": { "operatingMode": "Cancelled" } });
        objects::patch::<AgentRun>(&self.ctx.client, &self.ctx.namespace, &self.name, &change).await?;
        Ok(())
    }

    /// Suspends the run.
    pub async fn suspend(&self) -> Result {
        self.patch_spec(json!({ "operatingMode": "Suspended" })).await
    }

    /// Lifts the suspend.
    pub async fn resume(&self) -> Result {
        self.patch_spec(json!({ "operatingMode": null })).await
    }

    /// Deletes the run and waits until neither the AgentRun nor a pod of it exists.
    pub async fn delete(&self, limit: Duration) -> Result {
        objects::delete::<AgentRun>(&self.ctx.client, &self.ctx.namespace, &self.name).await?;
        eventually(format!("run {} and its pods to be gone", self.name), limit, async || {
            let gone = self.api().get_opt(&self.name).await?.is_none() && self.pods().await?.is_empty();
            Ok(gone.then_some(()))
        })
        .await
    }

    /// The notes of the run's agents, without the notes of acknowledged turns.
    pub async fn notes(&self) -> Result<Vec<ledger::Note>> {
        let mut notes = self.ctx.ledger.notes(&self.key()).await?;
        notes.retain(|note| note.committed().is_none());
        Ok(notes)
    }

    /// Checks a run that has ended:
    ///
    /// - It committed exactly these turns, and each had its effect once.
    /// - No turn that was acknowledged was committed again.
    /// - No turn that was committed when its attempt ended was tried again.
    /// - Each attempt had one pod, and there was no other pod.
    pub async fn expect_nothing_lost_or_repeated(&self, turns: i32) -> Result {
        self.expect_each_effect_once(turns).await?;
        self.expect_acknowledged_turns_kept(turns).await
    }

    /// Like [`Self::expect_nothing_lost_or_repeated`], for a run that was taken back on purpose. Turns after `kept` may
    /// have been committed again.
    pub async fn expect_nothing_lost_up_to(&self, kept: i32, turns: i32) -> Result {
        self.expect_each_effect_once(turns).await?;
        self.expect_acknowledged_turns_kept(kept).await
    }

    /// Checks the agents' notes, which no store can take back: each turn up to `last` was acknowledged with one content
    /// hash.
    async fn expect_acknowledged_turns_kept(&self, last: i32) -> Result {
        let notes = self.ctx.ledger.notes(&self.key()).await?;
        let mut acknowledged = BTreeMap::<i32, BTreeSet<&str>>::new();
        for (turn, content_hash) in notes.iter().filter_map(ledger::Note::committed) {
            acknowledged.entry(turn).or_default().insert(content_hash);
        }
        acknowledged.retain(|turn, hashes| *turn <= last && hashes.len() > 1);
        anyhow::ensure!(
            acknowledged.is_empty(),
            "turns of {} were acknowledged and then committed again: {acknowledged:?}",
            self.name
        );
        Ok(())
    }

    async fn expect_each_effect_once(&self, turns: i32) -> Result {
        let status = self.status().await?;
        let committed = status.turn();
        anyhow::ensure!(committed == turns, "run {} committed {committed} turns, not {turns}", self.name);
        self.ctx.ledger.expect_turns(&self.key(), turns).await?;
        self.expect_no_turn_retried(&status).await?;
        self.expect_commit_notes(status.attempt().number, turns).await?;
        self.ctx.audit.expect_pods(&self.name, 1..=status.attempt().number)
    }

    /// Waits until the notes are complete: there is at least one, and one for each turn of the last attempt but the
    /// run's last turn, whose note may arrive later.
    async fn expect_commit_notes(&self, attempt: i32, turns: i32) -> Result {
        eventually(format!("the notes of run {}", self.name), secs(10), async || {
            let notes = self.ctx.ledger.notes(&self.key()).await?;
            let entries = self.ctx.ledger.entries(&self.key()).await?;
            let unreported = ledger::unreported_turns(&entries, &notes, attempt, turns);
            anyhow::ensure!(unreported.is_empty(), "attempt {attempt} has no note of turns {unreported:?}");
            Ok(notes.iter().any(|note| note.committed().is_some()).then_some(()))
        })
        .await
    }

    async fn expect_no_turn_retried(&self, status: &AgentRunStatus) -> Result {
        self.expect_no_entry_retried(&self.ctx.ledger.entries(&self.key()).await?, status)
    }

    /// Checks that each turn of these entries was tried by one attempt, and before it only by attempts that ended in the
    /// middle of the turn.
    pub(crate) fn expect_no_entry_retried(
        &self,
        entries: &[ledger::Entry],
        status: &AgentRunStatus,
    ) -> Result {
        let history = status.recovery().history;
        for entry in entries {
            let last = entry.attempts.iter().max();
            let ended_in_it = |attempt: &i32| {
                let end = history.iter().find(|end| end.attempt == *attempt);
                end.is_none_or(|end| end.turn_at_end == entry.turn - 1)
            };
            anyhow::ensure!(
                entry.attempts.iter().filter(|attempt| Some(*attempt) != last).all(ended_in_it),
                "turn {} of {} was tried by attempts {:?}, but an earlier one did not end in it: {history:?}",
                entry.turn,
                self.name,
                entry.attempts
            );
        }
        Ok(())
    }
}
