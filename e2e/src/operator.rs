//! The installed Dal Segno: its Deployment, its pods, its log.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ContainerStatus, Namespace, Pod};
use kube::api::{Api, ListParams, LogParams};
use kube::{Client, ResourceExt};

use crate::Result;
use crate::cluster::{Cluster, Processes};
use crate::http::Request;
use crate::process::{self, UndoGuard};
use crate::wait::eventually;

/// Namespace of the release.
pub const NAMESPACE: &str = "dalsegno-system";

/// Name of the release and of its Deployment.
pub const RELEASE: &str = "dalsegno";

/// Port of its health checks and metrics.
const HEALTH_PORT: u16 = 8081;

/// Limit for the operator's pods to become ready or to end.
const LIMIT: Duration = Duration::from_secs(90);

/// The installed operator.
#[derive(Clone)]
pub struct Operator {
    client: Client,
    name: &'static str,
}

impl Operator {
    /// The Deployment of the release.
    pub fn new(client: &Client) -> Self {
        Self { client: client.clone(), name: RELEASE }
    }

    /// Another Deployment of the release, for example the gateway's if it has its own.
    pub fn named(client: &Client, name: &'static str) -> Self {
        Self { client: client.clone(), name }
    }

    fn deployments(&self) -> Api<Deployment> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Its pods in any state.
    pub async fn all_pods(&self) -> Result<Vec<Pod>> {
        let deployment = self.deployments().get(self.name).await?;
        let labels = deployment
            .spec
            .and_then(|spec| spec.selector.match_labels)
            .context("the Deployment selects nothing")?;
        let selector: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        Ok(self.pods().list(&ListParams::default().labels(&selector.join(","))).await?.items)
    }

    /// Its only pod, once it is ready and there is no other.
    pub async fn pod(&self) -> Result<Pod> {
        eventually(format!("one ready pod of {}", self.name), LIMIT, async || {
            let mut pods = self.all_pods().await?;
            let is_only = pods.len() == 1;
            Ok(pods.pop().filter(|pod| is_only && is_ready(pod)))
        })
        .await
    }

    /// How often the containers of its pods have been restarted.
    pub async fn restarts(&self) -> Result<i32> {
        let pods = self.all_pods().await?;
        Ok(pods.iter().flat_map(container_statuses).map(|status| status.restart_count).sum())
    }

    /// Waits until it has one ready pod and no other.
    pub async fn ready(&self) -> Result {
        self.pod().await.map(drop)
    }

    /// The processes of its container, as the machine numbers them.
    pub async fn processes(&self, cluster: &Cluster) -> Result<Processes> {
        let pod = self.pod().await?;
        let spec = pod.spec.as_ref().context("a pod without a spec")?;
        let container = spec.containers.first().context("a pod without a container")?;
        cluster.processes(&pod, &container.name).await
    }

    /// Waits for the namespaces of earlier tests, whose runs it cleans up.
    pub async fn is_done_with_earlier_tests(&self) -> Result {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        eventually("no namespace of an earlier test is being deleted", LIMIT, async || {
            let all = namespaces.list(&ListParams::default().labels("e2e")).await?;
            Ok(all.iter().all(|namespace| namespace.metadata.deletion_timestamp.is_none()).then_some(()))
        })
        .await
    }

    /// Scales the Deployment to 0 and waits until it has no pod. Waits for the namespaces of earlier tests first: their
    /// runs have a finalizer that only the operator removes.
    pub async fn scale_down(&self) -> Result<OperatorChange> {
        self.is_done_with_earlier_tests().await?;
        let replicas = self.deployments().get(self.name).await?.spec.and_then(|spec| spec.replicas);
        let original = format!("--replicas={}", replicas.unwrap_or(1));
        let change = self.change(&["scale"], "--replicas=0", &original).await?;
        eventually(format!("no pod of {}", self.name), LIMIT, async || {
            Ok(self.all_pods().await?.is_empty().then_some(()))
        })
        .await?;
        Ok(change)
    }

    /// Sets an environment variable and waits for the rollout.
    pub async fn with_env(&self, name: &str, value: &str) -> Result<OperatorChange> {
        let change = self.change(&["set", "env"], &format!("{name}={value}"), &format!("{name}-")).await?;
        self.wait_for_rollout().await?;
        Ok(change)
    }

    /// Changes the Deployment by `kubectl VERB … change`. The returned change runs the same command with `original`.
    async fn change(&self, verb: &[&str], change: &str, original: &str) -> Result<OperatorChange> {
        let deployment = format!("deployment/{}", self.name);
        let command = |argument: &str| {
            let object = ["-n", NAMESPACE, &deployment, argument];
            [&["kubectl"], verb, &object].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        let undo = UndoGuard::new(command(original));
        process::run_command(&command(change)).await?;
        Ok(OperatorChange { operator: self.clone(), undo })
    }

    /// Waits until all pods of the Deployment are ready and of its current template.
    pub async fn wait_for_rollout(&self) -> Result {
        eventually(format!("the rollout of {}", self.name), LIMIT, async || {
            let deployment = self.deployments().get(self.name).await?;
            let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
            let status = deployment.status.clone().unwrap_or_default();
            let is_observed = status.observed_generation >= deployment.metadata.generation;
            let are_ready = status.updated_replicas == Some(wanted) && status.ready_replicas == Some(wanted);
            let no_others = status.replicas == Some(wanted) && self.all_pods().await?.len() as i32 == wanted;
            Ok((is_observed && are_ready && no_others).then_some(()))
        })
        .await
    }

    /// The metrics of its only pod.
    pub async fn metrics(&self) -> Result<String> {
        let pod = self.pod().await?;
        let ip = pod.status.and_then(|status| status.pod_ip).context("a ready pod without an address")?;
        Ok(Request::get(format!("http://{ip}:{HEALTH_PORT}/metrics")).send().await?.body)
    }

    /// How often its only pod has performed each effect since it was started, from its metrics.
    pub async fn effects(&self) -> Result<BTreeMap<String, u64>> {
        let count = |line: &str| {
            let (effect, count) =
                line.strip_prefix("dalsegno_operator_effects_total{effect=\"")?.split_once("\"} ")?;
            Some((effect.to_owned(), count.parse().ok()?))
        };
        Ok(self.metrics().await?.lines().filter_map(count).collect())
    }

    /// The last lines of its pods' logs.
    pub async fn log_tail(&self, lines: i64) -> Result<String> {
        let mut log = String::new();
        for pod in self.all_pods().await? {
            let params = LogParams { tail_lines: Some(lines), ..LogParams::default() };
            log += &self.pods().logs(&pod.name_any(), &params).await?;
        }
        Ok(log)
    }
}

/// A change of the operator's Deployment. Dropping it reverts the change.
#[must_use = "dropping it reverts the change at once"]
pub struct OperatorChange {
    operator: Operator,
    undo: UndoGuard,
}

impl OperatorChange {
    /// Sets the environment variable to another value, and waits for the rollout.
    pub async fn set_env(&self, name: &str, value: &str) -> Result {
        self.operator.with_env(name, value).await?.undo.disarm();
        Ok(())
    }

    /// Reverts the change and waits for the rollout.
    pub async fn revert(self) -> Result {
        self.undo.undo().await?;
        self.operator.wait_for_rollout().await
    }
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    pod.metadata.deletion_timestamp.is_none()
        && conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn container_statuses(pod: &Pod) -> &[ContainerStatus] {
    let status = pod.status.as_ref();
    status.and_then(|status| status.container_statuses.as_deref()).unwrap_or_default()
}

/// Runs a subcommand of `dalsegno` in the operator's pod, as a person does: `show`, `settle`.
pub async fn run(args: &[&str]) -> Result<String> {
    let deployment = format!("deployment/{RELEASE}");
    let exec = ["exec", "-n", NAMESPACE, &deployment, "--", "/dalsegno"];
    process::kubectl([&exec[..], args].concat()).await
}
