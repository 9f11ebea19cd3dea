//! Dal Segno itself, as it is installed: its Deployment, its pod, its log.

use std::time::Duration;

use anyhow::Context;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::api::{Api, ListParams, LogParams};
use kube::{Client, ResourceExt};

use crate::Result;
use crate::cluster::{Cluster, Processes};
use crate::process::{self, UndoGuard};
use crate::wait::eventually;

/// Namespace of the release.
pub const NAMESPACE: &str = "dalsegno-system";

/// Name of the release and of its Deployment.
pub const RELEASE: &str = "dalsegno";

/// How long the operator may take to come or go.
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

    /// Another Deployment of the release, such as the gateway's where it is one of its own.
    pub fn named(client: &Client, name: &'static str) -> Self {
        Self { client: client.clone(), name }
    }

    fn deployments(&self) -> Api<Deployment> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Its pods, whatever their state.
    ///
    /// # Errors
    ///
    /// It is not installed.
    pub async fn all_pods(&self) -> Result<Vec<Pod>> {
        let deployment = self.deployments().get(self.name).await?;
        let labels = deployment
            .spec
            .and_then(|spec| spec.selector.match_labels)
            .context("the Deployment selects nothing")?;
        let selector: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        Ok(self.pods().list(&ListParams::default().labels(&selector.join(","))).await?.items)
    }

    /// Its pod, ready and alone.
    ///
    /// # Errors
    ///
    /// It does not become ready.
    pub async fn pod(&self) -> Result<Pod> {
        eventually(format!("one ready pod of {}", self.name), LIMIT, async || {
            let mut pods = self.all_pods().await?;
            let alone = pods.len() == 1;
            Ok(pods.pop().filter(|pod| alone && is_ready(pod)))
        })
        .await
    }

    /// How often the processes of its pods have been restarted.
    ///
    /// # Errors
    ///
    /// It is not installed.
    pub async fn restarts(&self) -> Result<i32> {
        let pods = self.all_pods().await?;
        Ok(pods.iter().flat_map(statuses).map(|status| status.restart_count).sum())
    }

    /// Waits until it is installed, ready and alone.
    ///
    /// # Errors
    ///
    /// It does not become ready.
    pub async fn ready(&self) -> Result {
        self.pod().await.map(drop)
    }

    /// The machine's processes of its container.
    ///
    /// # Errors
    ///
    /// It does not run.
    pub async fn processes(&self, cluster: &Cluster) -> Result<Processes> {
        let pod = self.pod().await?;
        let spec = pod.spec.as_ref().context("a pod without a spec")?;
        let node = spec.node_name.as_deref().context("a ready pod without a node")?;
        let container = spec.containers.first().context("a pod without a container")?;
        cluster.processes(node, NAMESPACE, &pod.name_any(), &container.name).await
    }

    /// Takes it away: no pod of it is left when this returns.
    ///
    /// # Errors
    ///
    /// The API server refuses, or its pods do not go.
    pub async fn scale_down(&self) -> Result<OperatorChange> {
        let replicas = self.deployments().get(self.name).await?.spec.and_then(|spec| spec.replicas);
        let back = format!("--replicas={}", replicas.unwrap_or(1));
        let changed = self.changed(&["scale"], "--replicas=0", &back).await?;
        eventually(format!("no pod of {}", self.name), LIMIT, async || {
            Ok(self.all_pods().await?.is_empty().then_some(()))
        })
        .await?;
        Ok(changed)
    }

    /// Sets a variable of its environment and waits until the pod that has it is ready.
    ///
    /// # Errors
    ///
    /// The API server refuses, or the new pod does not become ready.
    pub async fn with_env(&self, name: &str, value: &str) -> Result<OperatorChange> {
        let changed = self.changed(&["set", "env"], &format!("{name}={value}"), &format!("{name}-")).await?;
        self.rolled_out().await?;
        Ok(changed)
    }

    /// Changes the Deployment by `kubectl VERB … change`; `back` undoes it.
    async fn changed(&self, verb: &[&str], change: &str, back: &str) -> Result<OperatorChange> {
        let deployment = format!("deployment/{}", self.name);
        let command = |change: &str| {
            let object = ["-n", NAMESPACE, &deployment, change];
            [&["kubectl"], verb, &object].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        let undo = UndoGuard::by(command(back));
        UndoGuard::by(command(change)).now().await?;
        Ok(OperatorChange { operator: self.clone(), undo })
    }

    /// Waits until the Deployment is as it is written, with no pod of an earlier template.
    ///
    /// # Errors
    ///
    /// It is not within the limit.
    pub async fn rolled_out(&self) -> Result {
        eventually(format!("the rollout of {}", self.name), LIMIT, async || {
            let deployment = self.deployments().get(self.name).await?;
            let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
            let seen = deployment.status.clone().unwrap_or_default();
            let current = seen.observed_generation >= deployment.metadata.generation;
            let ready = seen.updated_replicas == Some(wanted) && seen.ready_replicas == Some(wanted);
            let alone = seen.replicas == Some(wanted) && self.all_pods().await?.len() as i32 == wanted;
            Ok((current && ready && alone).then_some(()))
        })
        .await
    }

    /// The end of its log.
    ///
    /// # Errors
    ///
    /// It has no pod.
    pub async fn log_tail(&self, lines: i64) -> Result<String> {
        let mut log = String::new();
        for pod in self.all_pods().await? {
            let params = LogParams { tail_lines: Some(lines), ..LogParams::default() };
            log += &self.pods().logs(&pod.name_any(), &params).await?;
        }
        Ok(log)
    }
}

/// The operator is not as it was installed. Dropped, it is changed back.
#[must_use = "dropping it changes the operator back at once"]
pub struct OperatorChange {
    operator: Operator,
    undo: UndoGuard,
}

impl OperatorChange {
    /// Gives the variable of its environment another value, and waits until the pod that has it is ready.
    ///
    /// # Errors
    ///
    /// The API server refuses, or the new pod does not become ready.
    pub async fn to(&self, name: &str, value: &str) -> Result {
        self.operator.with_env(name, value).await?.keep();
        Ok(())
    }

    fn keep(self) {
        self.undo.keep();
    }

    /// Changes it back and waits until it is ready.
    ///
    /// # Errors
    ///
    /// It does not become ready.
    pub async fn revert(self) -> Result {
        self.undo.now().await?;
        self.operator.rolled_out().await
    }
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    pod.metadata.deletion_timestamp.is_none()
        && conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn statuses(pod: &Pod) -> &[ContainerStatus] {
    let status = pod.status.as_ref();
    status.and_then(|status| status.container_statuses.as_deref()).unwrap_or_default()
}

/// Runs a command of the program in the operator's pod, as a person does: `show`, `settle`.
///
/// # Errors
///
/// The command fails; what it said is in the error.
pub async fn run(args: &[&str]) -> Result<String> {
    let deployment = format!("deployment/{RELEASE}");
    let exec = ["exec", "-n", NAMESPACE, &deployment, "--", "/dalsegno"];
    process::kubectl([&exec[..], args].concat()).await
}
