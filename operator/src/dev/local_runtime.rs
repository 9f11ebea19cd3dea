//! The worker runtime of one machine: one run, its processes, and a terminal.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use dalsegno_core::approvals::{ApprovalEffect, ObservedApprovals};
use dalsegno_core::version::Templates;
use dalsegno_core::{
    CliLocation, EffectResult, EventSpec, GatewayAddress, Observed, ObservedAgent, ObservedNode,
    ObservedStore,
};
use dalsegno_crds::{
    AgentRun, AgentRunStatus, OnMismatch, Reason, Retention, RunDefaults, VersionPolicy, names,
};
use dalsegno_gateway::StateReadBudget;
use dalsegno_model::{Ending, LookUp, RunRecord, Store};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::Value;

use super::kubelet::Kubelet;
use super::program::Program;
use super::progress::ProgressPrinter;
use crate::controller::error::{Error, Result};
use crate::controller::worker_runtime::{PodRef, WorkerRuntime};
use crate::log::error_chain;
use crate::mutex::lock;
use crate::output::print_message;

/// UID of the only namespace.
pub const NAMESPACE_UID: &str = "laptop";

/// The worker runtime of one machine.
pub struct LocalRuntime {
    /// The store.
    pub store: Arc<dyn Store>,
    /// URL of the store.
    pub url: String,
    /// The gateway's limiter of state reads.
    pub state_reads: StateReadBudget,
    /// URL at which workers reach the gateway.
    pub gateway_url: String,
    /// The processes.
    pub kubelet: Kubelet,
    /// The worker's program.
    pub program: Program,
    /// The run's input, as it was written.
    pub input: String,
    /// The file that exists while a person suspends the run.
    pub suspend_file: PathBuf,
    /// Since when the gateway of this process serves.
    pub serving_since: Timestamp,
    /// The last status that was written.
    pub status: Mutex<Option<AgentRunStatus>>,
    /// Prints progress.
    pub printer: Mutex<ProgressPrinter>,
}

/// The defaults of a definition. An old program cannot be restored, so a changed one continues with a warning.
pub fn defaults() -> RunDefaults {
    RunDefaults {
        version_policy: Some(VersionPolicy { on_mismatch: Some(OnMismatch::Allow) }),
        retention: Some(Retention { keep_pods: Some(0), ..Retention::default() }),
        ..RunDefaults::default()
    }
}

impl LocalRuntime {
    /// The program, as a definition would describe it.
    fn agent(&self) -> Result<ObservedAgent> {
        let agent = self.program.agent().map_err(Error::io("reading the program"))?;
        Ok(ObservedAgent::Found { agent: Box::new(agent), defaults: Box::new(defaults()) })
    }

    /// Treats the time before this gateway served as an outage of the gateway, so that it does not count against a worker.
    fn forgive_time_before_start(&self, mut row: RunRecord) -> RunRecord {
        if row.beat.since <= self.serving_since {
            row.beat.gap_from = row.beat.since;
        }
        row
    }
}

impl WorkerRuntime for LocalRuntime {
    fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    fn state_reads(&self) -> &StateReadBudget {
        &self.state_reads
    }

    async fn observe(&self, run: &AgentRun) -> Result<Observed> {
        // The processes first: if one ends while the row is read, the next observation shows both.
        let pods = self.kubelet.pods();
        let store = match self.store.find_by_object(&run.uid().unwrap_or_default()).await {
            Ok(LookUp::Found(row)) => ObservedStore::Found(Box::new(self.forgive_time_before_start(*row))),
            Ok(LookUp::NotFound { store_id, .. }) => ObservedStore::NotFound { store_id },
            Err(error) => ObservedStore::Unknown(error_chain(&error)),
        };
        Ok(Observed {
            store,
            agent: self.agent()?,
            pods,
            node: Some(ObservedNode { ready: true, since: self.serving_since, zone_lost: false }),
            past_nodes: None,
            ready_nodes: 1,
            templates: Templates::new(),
            head: None,
            pod_create_error: None,
            quota: None,
            queue_position: None,
            name_taken: None,
            calls_to_settle: None,
            fork: None,
            step_back_refused: false,
            approvals: Some(ObservedApprovals::without_objects()),
            cli: CliLocation::Local { store_url: self.url.clone() },
            gateway: GatewayAddress { url: self.gateway_url.clone(), ca: None },
        })
    }

    async fn namespace_uid(&self, _: &str) -> Result<String> {
        Ok(NAMESPACE_UID.to_owned())
    }

    async fn create_worker(&self, _: &AgentRun, pod: Value, _: String) -> Result<EffectResult> {
        let pod: serde_json::Result<Pod> = serde_json::from_value(pod);
        let mut pod = pod.map_err(|error| Error::io("reading the pod of a process")(error.into()))?;
        pod.annotations_mut().insert(names::ANNOTATION_INPUT.to_owned(), self.input.clone());
        let pod = self.kubelet.run(pod).map_err(Error::io("starting a process"))?;
        Ok(EffectResult::Pod(Box::new(pod)))
    }

    async fn stop_worker(&self, pod: PodRef<'_>) -> Result<()> {
        self.kubelet.delete(pod.uid);
        Ok(())
    }

    async fn release_pod(&self, _: PodRef<'_>) -> Result<()> {
        Ok(())
    }

    /// Does nothing: there is no object to delete, and no time to live.
    /// There are no AgentApprovals: `dalsegno dev approve` and `deny` write to the store.
    async fn approval(&self, _: &AgentRun, effect: ApprovalEffect) -> Result<Option<EffectResult>> {
        let ApprovalEffect::TimeOutWait(run, wait) = effect else { return Ok(None) };
        let row = self.store.time_out_wait(run, &wait.id, wait.epoch).await;
        Ok(Some(EffectResult::Row(Box::new(row.map_err(Error::store("timing out an approval"))?))))
    }

    async fn delete_run(&self, _: &AgentRun) -> Result<()> {
        Ok(())
    }

    async fn write_status(&self, _: &AgentRun, status: AgentRunStatus) -> Result<()> {
        *lock(&self.status) = Some(status);
        Ok(())
    }

    /// Prints only that the store is unavailable: everything else the progress printer reads from the row.
    async fn publish_events(&self, _: &AgentRun, events: &mut Vec<EventSpec>) {
        for event in events.drain(..).filter(|it| it.reason == Reason::StoreUnavailable.as_str()) {
            print_message(&format!("waiting: {}", event.note));
        }
    }

    fn before_effect(&self, _: &'static str) {}

    fn after_effect(&self, _: &'static str) {}

    fn attempt_ended(&self, _: &RunRecord, _: &Ending) {}

    fn head_corrupt(&self) {}

    fn store_unavailable(&self, _: &Error) {}

    fn converged(&self, row: &RunRecord) {
        self.kubelet.remove_ended(row.attempt.pod_uid.as_deref());
        let status = lock(&self.status);
        let recovery = status.as_ref().and_then(|it| it.recovery.as_ref());
        let next = recovery.and_then(|it| it.next_attempt_time.as_ref()).map(|at| at.0);
        for line in lock(&self.printer).new_lines(row, next) {
            print_message(&line);
        }
    }
}
