//! A story's own world: a namespace of its own in the one cluster, and the witnesses.

use kube::Client;
use kube::config::{Config, KubeConfigOptions};
use serde_json::json;

use crate::cluster::Cluster;
use crate::{Agent, AuditLog, Definition, Ledger, Operator, Result, Run, objects, process};
use anyhow::Context;
use dalsegno_crds::{AgentDefinition, AgentRun};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::Api;

/// Set to anything, the namespaces of failed stories are kept.
const KEEP: &str = "DALSEGNO_E2E_KEEP";

/// A namespace, the clients and the witnesses of one story. Dropped without [`TestContext::end`], it tells what was there.
pub struct TestContext {
    /// The story's namespace.
    pub namespace: String,
    /// A client that tries again where the API server is busy or away.
    pub client: Client,
    /// A client that never does: an eviction that was refused must not go through later.
    pub no_retry: Client,
    /// The API server's audit log since the story began.
    pub audit: AuditLog,
    /// The ledger.
    pub ledger: Ledger,
    /// The operator.
    pub operator: Operator,
    ended: bool,
}

/// The cluster, which is reached directly, whatever proxy the environment names.
///
/// # Errors
///
/// `KUBECONFIG` names no cluster.
pub async fn config() -> Result<Config> {
    let mut config = Config::from_kubeconfig(&KubeConfigOptions::default())
        .await
        .context("KUBECONFIG names no cluster: bring one up with `make cluster`")?;
    config.proxy_url = None;
    Ok(config)
}

/// The two clients of a story.
///
/// # Errors
///
/// `KUBECONFIG` names no cluster.
pub async fn clients() -> Result<(Client, Client)> {
    // Both may be linked in; kube picks neither by itself.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let config = config().await?;
    let mut no_retry = config.clone();
    no_retry.default_retry = false;
    Ok((Client::try_from(config)?, Client::try_from(no_retry)?))
}

impl TestContext {
    /// A fresh world for the story of this name.
    ///
    /// # Errors
    ///
    /// There is no cluster, or nothing is installed in it.
    pub async fn new(story: &str) -> Result<Self> {
        let (client, no_retry) = clients().await?;
        let random = uuid::Uuid::new_v4().simple().to_string();
        let namespace = format!("{story}-{}", &random[..6]);
        let ctx = Self {
            audit: AuditLog::from_now(&namespace)?,
            ledger: Ledger::find(&client).await?,
            operator: Operator::new(&client),
            namespace,
            client,
            no_retry,
            ended: false,
        };
        objects::create_namespace(&ctx.client, &ctx.namespace, json!({ "e2e": story })).await?;
        Ok(ctx)
    }

    /// The machines under the cluster.
    ///
    /// # Errors
    ///
    /// The stories were not started by `make`.
    pub fn cluster(&self) -> Result<Cluster> {
        Cluster::from_env()
    }

    /// Creates an AgentRun of this name.
    ///
    /// # Errors
    ///
    /// The API server refuses it.
    pub async fn start(&self, name: &str, agent: &Agent) -> Result<Run<'_>> {
        self.create_run(agent.manifest(name, &self.ledger.url())).await?;
        Ok(self.run(name))
    }

    /// Creates an AgentRun from a manifest, as it stands.
    ///
    /// # Errors
    ///
    /// The API server refuses it; see [`objects::refusal`].
    pub async fn create_run(&self, manifest: serde_json::Value) -> kube::Result<()> {
        objects::create::<AgentRun>(&self.client, &self.namespace, manifest).await.map(drop)
    }

    /// Creates an AgentDefinition of this name.
    ///
    /// # Errors
    ///
    /// The API server refuses it.
    pub async fn create_definition(&self, name: &str, definition: &Definition) -> Result {
        objects::create::<AgentDefinition>(&self.client, &self.namespace, definition.manifest(name)).await?;
        Ok(())
    }

    /// Changes an AgentDefinition by a merge patch of its `spec`.
    ///
    /// # Errors
    ///
    /// The API server refuses it.
    pub async fn update_definition(&self, name: &str, definition: &Definition) -> Result {
        let change = json!({ "spec": definition.agent() });
        objects::patch::<AgentDefinition>(&self.client, &self.namespace, name, &change).await?;
        Ok(())
    }

    /// The run of this name.
    pub fn run(&self, name: &str) -> Run<'_> {
        Run::new(self, name)
    }

    /// An API of this world's namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Ends the story: judges once more what holds for every run of every story, and removes the namespace.
    ///
    /// # Errors
    ///
    /// An attempt had more than one pod, or the API server does not answer.
    pub async fn end(mut self) -> Result {
        self.audit.expect_one_pod_per_attempt()?;
        Api::<Namespace>::all(self.client.clone())
            .delete(&self.namespace, &kube::api::DeleteParams::default())
            .await?;
        self.ended = true;
        Ok(())
    }

    /// Ends a story whose namespace is gone.
    ///
    /// # Errors
    ///
    /// An attempt had more than one pod.
    pub fn forget(mut self) -> Result {
        self.audit.expect_one_pod_per_attempt()?;
        self.ended = true;
        Ok(())
    }

    /// What a person would look at first.
    fn dump(&self) {
        let namespace = &self.namespace;
        // One line a run, so that the error, which comes after all this, is not lost among it.
        let status = "jsonpath={range .items[*]}{.metadata.name}{'\\t'}{.status.attempt}{'\\t'}{.status.recovery}{'\\n'}{end}";
        for args in [
            ["get", "agentruns,agentdefinitions,pods", "-o", "wide"].as_slice(),
            &["get", "agentruns", "-o", status],
            &["get", "events", "--sort-by=.metadata.creationTimestamp"],
        ] {
            let args = [&["-n", namespace.as_str()], args].concat();
            println!(
                "{}",
                process::run_blocking("kubectl", args).unwrap_or_else(|error| format!("{error:#}"))
            );
        }
        let deployment = format!("deployment/{}", crate::operator::RELEASE);
        let args = ["logs", "-n", crate::operator::NAMESPACE, &deployment, "--tail=2000"];
        let log = process::run_blocking("kubectl", args).unwrap_or_else(|error| format!("{error:#}"));
        let lines: Vec<&str> = log.lines().filter(|line| line.contains(namespace.as_str())).collect();
        println!("the operator's log:\n{}", lines[lines.len().saturating_sub(60)..].join("\n"));
    }
}

impl Drop for TestContext {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        self.dump();
        if std::env::var_os(KEEP).is_none() {
            let args = ["delete", "namespace", &self.namespace, "--wait=false", "--ignore-not-found"];
            if let Err(error) = process::run_blocking("kubectl", args) {
                println!("cannot remove the namespace: {error:#}");
            }
        }
    }
}
