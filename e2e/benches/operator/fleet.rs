//! Many runs. Their pods are on fake nodes, and this program plays their workers.

use anyhow::Context;
use dalsegno_crds::{AgentRun, Summary};
use dalsegno_e2e::wait::{eventually, secs};
use dalsegno_e2e::{Result, Worker, objects, test_context, worker};
use dalsegno_protocol::{AUDIENCE, env};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};

/// Concurrent requests.
const CONCURRENCY: usize = 16;
/// The limit for one pod to run, also on a busy machine.
const POD_LIMIT: std::time::Duration = secs(300);

/// The runs of one bench, in a namespace of their own.
pub struct Fleet {
    /// A client with an administrator's rights.
    pub client: Client,
    /// The runs' namespace.
    pub namespace: String,
    /// The runs' workers, attached.
    pub workers: Vec<Worker>,
}

impl Fleet {
    /// Creates a namespace without runs.
    pub async fn new(bench: &str) -> Result<Self> {
        let (client, _) = test_context::clients().await?;
        let namespace = format!("bench-{bench}-{}", &uuid::Uuid::new_v4().simple().to_string()[..6]);
        objects::create_namespace(&client, &namespace, json!({})).await?;
        Ok(Self { client, namespace, workers: Vec::new() })
    }

    /// The API of the namespace's pods.
    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Starts runs with these names and attaches their workers.
    pub async fn start(&mut self, names: impl IntoIterator<Item = String>) -> Result {
        let this = &*self;
        let workers: Vec<Worker> = stream::iter(names)
            .map(|name| async move {
                let worker = this.prepare_one(name).await?;
                worker.attach_when_ready().await?;
                anyhow::Ok(worker)
            })
            .buffer_unordered(CONCURRENCY)
            .try_collect()
            .await?;
        self.workers.extend(workers);
        Ok(())
    }

    /// Starts runs with these names and returns their workers, which are not attached.
    pub async fn prepare(&self, names: impl IntoIterator<Item = String>) -> Result<Vec<Worker>> {
        let workers = stream::iter(names).map(|name| self.prepare_one(name)).buffer_unordered(CONCURRENCY);
        workers.try_collect().await
    }

    async fn prepare_one(&self, name: String) -> Result<Worker> {
        objects::create::<AgentRun>(&self.client, &self.namespace, manifest(&name)).await?;
        self.worker(&format!("{name}-1")).await
    }

    /// Waits until the pod with this name runs, and returns its worker, which is not attached.
    pub async fn worker(&self, pod: &str) -> Result<Worker> {
        let pod = self.wait_for_running(pod).await?;
        Ok(Worker {
            url: env_value(&pod, env::URL)?,
            token: worker::token(&self.client, &pod, AUDIENCE).await?,
            instance: format!("{:A<43}", uuid::Uuid::new_v4().simple().to_string()),
        })
    }

    /// Creates runs with these names that are held before their first pod, because their AgentDefinition does not
    /// exist.
    pub async fn hold(&self, names: impl IntoIterator<Item = String>) -> Result {
        let create = |name: String| async move {
            let spec = json!({ "agentRef": { "name": "nobody" }, "input": { "task": "wait" } });
            let held = json!({ "metadata": { "name": name }, "spec": spec });
            objects::create::<AgentRun>(&self.client, &self.namespace, held).await?;
            let runs: Api<AgentRun> = Api::namespaced(self.client.clone(), &self.namespace);
            eventually(format!("run {name} to be held"), secs(60), async || {
                let summary = runs.get(&name).await?.status.and_then(|status| status.summary);
                Ok((summary == Some(Summary::Held)).then_some(()))
            })
            .await
        };
        stream::iter(names).map(create).buffer_unordered(CONCURRENCY).try_collect().await
    }

    /// Waits until the pod with this name runs.
    pub async fn wait_for_running(&self, name: &str) -> Result<Pod> {
        let pods = self.pods();
        eventually(format!("pod {name} to run"), POD_LIMIT, async || {
            let phase = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.clone());
            Ok(pods.get_opt(name).await?.filter(|pod| phase(pod).as_deref() == Some("Running")))
        })
        .await
    }

    /// Deletes every run and waits until none is left.
    pub async fn end(self) -> Result {
        let runs = objects::untyped::<AgentRun>(&self.client, &self.namespace);
        runs.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
        eventually("the runs to be gone", secs(600), async || {
            Ok(runs.list(&ListParams::default().limit(1)).await?.items.is_empty().then_some(()))
        })
        .await
    }
}

/// A run with an inline agent. The image is named by digest, because a fake node does not report an image's digest.
fn manifest(name: &str) -> Value {
    let container = json!({
        "name": "agent",
        "image": format!("registry.example/agent@sha256:{}", "1".repeat(64)),
        "resources": { "requests": { "cpu": "5m", "memory": "16Mi" } },
    });
    let agent = json!({ "agentVersion": "1", "template": { "spec": { "containers": [container] } } });
    // A bench may take longer than the built-in deadlines.
    let liveness = json!({ "startDeadlineSeconds": 86_400, "progressDeadlineSeconds": 86_400 });
    let spec = json!({ "agent": agent, "input": { "task": "wait" }, "liveness": liveness });
    json!({ "metadata": { "name": name }, "spec": spec })
}

fn env_value(pod: &Pod, name: &str) -> Result<String> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut variables = containers.flat_map(|container| container.env.iter().flatten());
    let found = variables.find(|variable| variable.name == name).and_then(|variable| variable.value.clone());
    found.with_context(|| format!("pod {} has no {name}", pod.name_any()))
}
