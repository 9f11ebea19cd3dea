//! The ground of a laptop: one run, its processes, and a terminal in place of an API server.

use std::sync::{Arc, Mutex};

use dalsegno_core::version::Templates;
use dalsegno_core::{EffectResult, EventSpec, Observed, ObservedAgent, ObservedNode, ObservedStore};
use dalsegno_crds::{
    AgentRun, AgentRunStatus, OnMismatch, Reason, Retention, RunDefaults, VersionPolicy, names,
};
use dalsegno_gateway::Room;
use dalsegno_store::{LookUp, RunRecord, Store};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::kubelet::Kubelet;
use super::program::Program;
use super::tell::Teller;
use crate::error::{Error, Result};
use crate::ground::Ground;
use crate::output::mention;
use crate::sync::lock;

/// UID of the only namespace that there is.
const TENANT: &str = "laptop";

/// What stands for a cluster.
pub struct Laptop {
    /// The store.
    pub store: Arc<dyn Store>,
    /// Its URL, as a shell takes it.
    pub url: String,
    /// The gateway's room for the states that are read for attempts that go on.
    pub resumes: Room,
    /// Where workers reach the gateway.
    pub gateway_url: String,
    /// The processes.
    pub kubelet: Kubelet,
    /// What is run.
    pub program: Program,
    /// What it is to do, as it was written.
    pub input: String,
    /// Since when the gateway, which is in this process, serves.
    pub since: Timestamp,
    /// The status that was last written.
    pub status: Mutex<Option<AgentRunStatus>>,
    /// Tells of it.
    pub teller: Mutex<Teller>,
}

/// What a laptop has in place of a definition's defaults. An old program cannot be brought back, so that a changed one
/// goes on, with a warning.
pub fn defaults() -> RunDefaults {
    RunDefaults {
        version_policy: Some(VersionPolicy { on_mismatch: Some(OnMismatch::Allow) }),
        retention: Some(Retention { keep_pods: Some(0), ..Retention::default() }),
        ..RunDefaults::default()
    }
}

impl Laptop {
    /// What is run, as a definition would say it.
    fn agent(&self) -> Result<ObservedAgent> {
        let agent = self.program.agent().map_err(Error::laptop("reading the program"))?;
        Ok(ObservedAgent::Found { agent: Box::new(agent), defaults: Box::new(defaults()) })
    }

    /// The gateways' silence before this gateway began is of no worker that began after it.
    fn without_our_silence(&self, mut row: RunRecord) -> RunRecord {
        if row.beat.since <= self.since {
            row.beat.gap_from = row.beat.since;
        }
        row
    }

    /// What a person does about a hold, here.
    pub fn way_out(&self, run: &AgentRun, reason: Option<Reason>) -> String {
        match reason {
            Some(Reason::EffectUnknown | Reason::KeyRefused) => format!(
                "find out whether the call took effect (`dalsegno show --calls` lists it), say so by `dalsegno settle \
                 --database-url {} {}/{} CALL --outcome completed|failed --reason TEXT`, then run the same command \
                 again",
                self.url,
                run.namespace().unwrap_or_default(),
                run.name_any(),
            ),
            Some(Reason::InputTooLarge) => "pass a smaller input, or one that refers to a file; --fresh".to_owned(),
            _ => "mend the agent, then run the same command again: that grants a fresh budget; --fresh begins a new run"
                .to_owned(),
        }
    }
}

impl Ground for Laptop {
    fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    fn resumes(&self) -> &Room {
        &self.resumes
    }

    async fn observe(&self, run: &AgentRun) -> Result<Observed> {
        // The processes first: one that ends while the row is read is seen the next time.
        let pods = self.kubelet.pods();
        let store = match self.store.look_up(&run.uid().unwrap_or_default()).await {
            Ok(LookUp::Found(row)) => ObservedStore::Found(Box::new(self.without_our_silence(*row))),
            Ok(LookUp::NotFound { store_id, .. }) => ObservedStore::NotFound { store_id },
            Err(error) => ObservedStore::Unknown(crate::telemetry::chain(&error)),
        };
        Ok(Observed {
            store,
            agent: self.agent()?,
            pods,
            node: Some(ObservedNode { ready: true, since: self.since }),
            templates: Templates::new(),
            head: None,
            pod_create_error: None,
            name_taken: false,
            gateway_url: self.gateway_url.clone(),
        })
    }

    async fn tenant(&self, _: &str) -> Result<String> {
        Ok(TENANT.to_owned())
    }

    async fn create_worker(&self, _: &AgentRun, mut pod: Pod, _: String) -> Result<EffectResult> {
        pod.annotations_mut().insert(names::ANNOTATION_INPUT.to_owned(), self.input.clone());
        let pod = self.kubelet.run(pod).map_err(Error::laptop("beginning a process"))?;
        Ok(EffectResult::Pod(Box::new(pod)))
    }

    async fn stop_worker(&self, _: &str, _: &str, uid: String) -> Result<()> {
        self.kubelet.delete(&uid);
        Ok(())
    }

    /// Here a run is no object that could be deleted, and nothing gives it a time to live.
    async fn delete_run(&self, _: &AgentRun) -> Result<()> {
        Ok(())
    }

    async fn write_status(&self, _: &AgentRun, status: AgentRunStatus) -> Result<()> {
        *lock(&self.status) = Some(status);
        Ok(())
    }

    /// The teller has its own words for a terminal, and none where there is no row to look at.
    async fn tell(&self, _: &AgentRun, notices: &mut Vec<EventSpec>) {
        for notice in notices.drain(..).filter(|it| it.reason == Reason::StoreUnavailable.as_str()) {
            say(&format!("waiting: {}", notice.note));
        }
    }

    fn before(&self, _: &'static str) {}

    fn after(&self, _: &'static str) {}

    fn ended(&self, _: &str) {}

    fn head_is_damaged(&self) {}

    fn store_away(&self, _: &Error) {}

    fn at_rest(&self, row: &RunRecord) {
        self.kubelet.forget_ended(row.attempt.pod_uid.as_deref());
        let status = lock(&self.status);
        let recovery = status.as_ref().and_then(|it| it.recovery.as_ref());
        let next = recovery.and_then(|it| it.next_attempt_time.as_ref()).map(|at| at.0);
        for line in lock(&self.teller).look(row, next) {
            say(&line);
        }
    }
}

/// One line for a person, apart from what the agent says: nothing of that comes in between.
pub fn say(line: &str) {
    mention(&format!("dalsegno: {line}"));
}
