//! One AgentRun of a story: what it says, what happens to it, and how it is judged.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Context;
use dalsegno_crds::{AgentRun, AgentRunStatus, ConditionType, Summary, names};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, EvictParams};
use serde_json::{Value, json};

use crate::cluster::Processes;
use crate::wait::{eventually, secs};
use crate::{Result, StatusExt, TestContext, ledger, objects};

/// How long a run of the stories may take to reach its end, once nothing more happens to it.
const END: Duration = secs(60);

/// An AgentRun, by name: what it says is always read anew.
#[derive(Clone)]
pub struct Run<'c> {
    ctx: &'c TestContext,
    /// Its name.
    pub name: String,
}

impl<'c> Run<'c> {
    pub(crate) fn new(ctx: &'c TestContext, name: &str) -> Self {
        Self { ctx, name: name.to_owned() }
    }

    /// `namespace/name`, as the ledger knows it.
    pub fn key(&self) -> String {
        format!("{}/{}", self.ctx.namespace, self.name)
    }

    fn api(&self) -> Api<AgentRun> {
        self.ctx.api()
    }

    /// The AgentRun as it is now.
    ///
    /// # Errors
    ///
    /// There is none, or the API server does not answer.
    pub async fn object(&self) -> Result<AgentRun> {
        Ok(self.api().get(&self.name).await?)
    }

    /// Its status as it is now; empty if there is none yet.
    ///
    /// # Errors
    ///
    /// As [`Self::object`].
    pub async fn status(&self) -> Result<AgentRunStatus> {
        Ok(self.object().await?.status.unwrap_or_default())
    }

    /// Waits until its status is so.
    ///
    /// # Errors
    ///
    /// It is not within the limit; the error shows the status.
    pub async fn wait(
        &self,
        what: &str,
        limit: Duration,
        is_so: impl Fn(&AgentRunStatus) -> bool,
    ) -> Result<AgentRunStatus> {
        let found = eventually(format!("run {}: {what}", self.name), limit, async || {
            Ok(Some(self.status().await?).filter(&is_so))
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

    /// Waits until it stands so.
    ///
    /// # Errors
    ///
    /// As [`Self::wait`].
    pub async fn wait_for(&self, summary: Summary, limit: Duration) -> Result<AgentRunStatus> {
        self.wait(&format!("to be {summary}"), limit, |status| status.summary == Some(summary)).await
    }

    /// Waits until its agent has reached its goal.
    ///
    /// # Errors
    ///
    /// As [`Self::wait`].
    pub async fn wait_for_success(&self) -> Result<AgentRunStatus> {
        self.wait_for(Summary::Succeeded, END).await
    }

    /// Waits until an attempt of this number, or a later one, has a worker.
    ///
    /// # Errors
    ///
    /// As [`Self::wait`].
    pub async fn wait_for_attempt(&self, number: i32, limit: Duration) -> Result<AgentRunStatus> {
        let is_so = |status: &AgentRunStatus| {
            status.attempt().number >= number && status.is_true(ConditionType::WorkerReady)
        };
        self.wait(&format!("attempt {number} to have a worker"), limit, is_so).await
    }

    /// Waits until the effect of a turn is in the ledger: the fastest way to know that a run has come so far.
    ///
    /// # Errors
    ///
    /// It is not within a minute.
    pub async fn wait_for_turn(&self, turn: i32) -> Result {
        eventually(format!("turn {turn} of run {}", self.name), END, async || {
            Ok((self.ctx.ledger.turn(&self.key()).await? >= turn).then_some(()))
        })
        .await
    }

    /// The pod of its current attempt.
    ///
    /// # Errors
    ///
    /// There is none within a minute.
    pub async fn pod(&self) -> Result<Pod> {
        let pods: Api<Pod> = self.ctx.api();
        eventually(format!("a pod of run {}", self.name), END, async || {
            match self.status().await?.attempt().pod_name {
                Some(name) => Ok(pods.get_opt(&name).await?),
                None => Ok(None),
            }
        })
        .await
    }

    /// All its pods, ended ones included, by attempt.
    ///
    /// # Errors
    ///
    /// The API server does not answer.
    pub async fn pods(&self) -> Result<Vec<Pod>> {
        objects::pods_of(&self.ctx.client, &self.ctx.namespace, &self.name).await
    }

    /// Evicts its pod by the Eviction API, once.
    ///
    /// # Errors
    ///
    /// The API server refuses it.
    pub async fn evict(&self) -> Result<Pod> {
        let pod = self.pod().await?;
        Api::<Pod>::namespaced(self.ctx.no_retry.clone(), &self.ctx.namespace)
            .evict(&pod.name_any(), &EvictParams::default())
            .await?;
        Ok(pod)
    }

    /// Deletes its pod.
    ///
    /// # Errors
    ///
    /// The API server refuses it.
    pub async fn delete_pod(&self, params: &DeleteParams) -> Result<Pod> {
        let pod = self.pod().await?;
        self.ctx.api::<Pod>().delete(&pod.name_any(), params).await?;
        Ok(pod)
    }

    /// The machine's processes of its current worker.
    ///
    /// # Errors
    ///
    /// It has none.
    pub async fn processes(&self) -> Result<Processes> {
        let pod = self.pod().await?;
        let spec = pod.spec.as_ref().context("a pod without a spec")?;
        let node = spec.node_name.as_deref().context("its pod has no node")?;
        let cluster = self.ctx.cluster()?;
        cluster.processes(node, &self.ctx.namespace, &pod.name_any(), "agent").await
    }

    /// Changes its `spec` by a merge patch.
    ///
    /// # Errors
    ///
    /// The API server refuses it.
    pub async fn change(&self, spec: Value) -> Result {
        self.try_patch_spec(spec).await?;
        Ok(())
    }

    /// The same, for changes that may be refused.
    ///
    /// # Errors
    ///
    /// The API server refuses it; see [`objects::refusal`].
    pub async fn try_patch_spec(&self, spec: Value) -> kube::Result<()> {
        let change = json!({ "spec": spec });
        objects::patch::<AgentRun>(&self.ctx.client, &self.ctx.namespace, &self.name, &change)
            .await
            .map(drop)
    }

    /// Cancels it.
    ///
    /// # Errors
    ///
    /// The API server refuses it.
    pub async fn cancel(&self) -> Result {
        self.change(json!({ "operatingMode": "Cancelled" })).await
    }

    /// Cancels it, and says why.
    ///
    /// # Errors
    ///
    /// The API server refuses it.
    pub async fn cancel_because(&self, reason: &str) -> Result {
        let annotations = json!({ names::ANNOTATION_REASON: reason });
        let change =
            json!({ "metadata": { "annotations": annotations }, "spec": { "operatingMode": "Cancelled" } });
        objects::patch::<AgentRun>(&self.ctx.client, &self.ctx.namespace, &self.name, &change).await?;
        Ok(())
    }

    /// Deletes it and waits until nothing of it is left: no AgentRun and no pod.
    ///
    /// # Errors
    ///
    /// Something is left after the limit.
    pub async fn delete(&self, limit: Duration) -> Result {
        objects::delete::<AgentRun>(&self.ctx.client, &self.ctx.namespace, &self.name).await?;
        eventually(format!("run {} and its pods to be gone", self.name), limit, async || {
            let gone = self.api().get_opt(&self.name).await?.is_none() && self.pods().await?.is_empty();
            Ok(gone.then_some(()))
        })
        .await
    }

    /// The messages of its agents: what the ledger was told beside the effects and the turns that were answered.
    ///
    /// # Errors
    ///
    /// The ledger does not answer.
    pub async fn notes(&self) -> Result<Vec<ledger::Note>> {
        let mut notes = self.ctx.ledger.notes(&self.key()).await?;
        notes.retain(|note| note.committed().is_none());
        Ok(notes)
    }

    /// Judges a run that has ended: it committed these turns and each had its effect once; no turn that its agents were
    /// told to stand was committed anew; no turn that was committed when its attempt ended was ever tried again; and the
    /// API server saw one pod for each attempt and no other.
    ///
    /// # Errors
    ///
    /// It is not so.
    pub async fn expect_nothing_lost_or_repeated(&self, turns: i32) -> Result {
        self.expect_each_effect_once(turns).await?;
        self.expect_acknowledged_turns_kept(turns).await
    }

    /// The same of a run that went back on purpose: what its agents were told of turns after this one need not stand.
    ///
    /// # Errors
    ///
    /// It is not so.
    pub async fn expect_nothing_lost_up_to(&self, kept: i32, turns: i32) -> Result {
        self.expect_each_effect_once(turns).await?;
        self.expect_acknowledged_turns_kept(kept).await
    }

    /// What its agents remember, which no store can take back: each turn was told to stand as one boundary alone. Asked once
    /// they have told of it.
    async fn expect_acknowledged_turns_kept(&self, last: i32) -> Result {
        let notes = self.ctx.ledger.notes(&self.key()).await?;
        let mut told = BTreeMap::<i32, BTreeSet<&str>>::new();
        for (turn, content_hash) in notes.iter().filter_map(ledger::Note::committed) {
            told.entry(turn).or_default().insert(content_hash);
        }
        told.retain(|turn, hashes| *turn <= last && hashes.len() > 1);
        anyhow::ensure!(
            told.is_empty(),
            "turns of {} were acknowledged, and committed anew: {told:?}",
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

    /// There is something to judge by: a note at least, and one for each turn that the last attempt went on from. The note
    /// of a run's last turn may be on its way.
    async fn expect_commit_notes(&self, attempt: i32, turns: i32) -> Result {
        eventually(format!("the notes of run {}", self.name), secs(10), async || {
            let notes = self.ctx.ledger.notes(&self.key()).await?;
            let entries = self.ctx.ledger.entries(&self.key()).await?;
            let untold = ledger::unreported_turns(&entries, &notes, attempt, turns);
            anyhow::ensure!(untold.is_empty(), "attempt {attempt} went on from turns {untold:?} untold");
            Ok(notes.iter().any(|note| note.committed().is_some()).then_some(()))
        })
        .await
    }

    /// A turn was tried by one attempt, and before that by those that ended in the middle of it.
    async fn expect_no_turn_retried(&self, status: &AgentRunStatus) -> Result {
        let history = status.recovery().history;
        for entry in self.ctx.ledger.entries(&self.key()).await? {
            let last = entry.attempts.iter().max();
            let ended_in_it = |attempt: &i32| {
                let end = history.iter().find(|end| end.attempt == *attempt);
                end.is_none_or(|end| end.turn_at_end == entry.turn - 1)
            };
            anyhow::ensure!(
                entry.attempts.iter().filter(|attempt| Some(*attempt) != last).all(ended_in_it),
                "turn {} of {} was tried by attempts {:?}, and not all but the last ended in it: {history:?}",
                entry.turn,
                self.name,
                entry.attempts
            );
        }
        Ok(())
    }
}
