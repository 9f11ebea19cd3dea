//! One test's namespace in the shared cluster, its clients, and the sources that it checks.

use anyhow::Context;
use dalsegno_crds::{AgentDefinition, AgentRun};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::Client;
use kube::api::{Api, PostParams};
use kube::config::{Config, KubeConfigOptions};
use serde_json::json;

use crate::cluster::Cluster;
use crate::wait::{eventually, secs};
use crate::{AuditLog, Definition, Ledger, Operator, Result, objects, process};

/// If this variable is set, the namespaces of failed tests are kept.
const KEEP: &str = "DALSEGNO_E2E_KEEP";

/// Verbs on resources of an API group.
#[derive(Clone, Copy, Debug)]
pub struct Rights<'a> {
    /// The API group.
    pub group: &'a str,
    /// The resources, with subresources after a `/`.
    pub resources: &'a [&'a str],
    /// The verbs.
    pub verbs: &'a [&'a str],
}

/// The namespace, the clients and the sources of one test. If it is dropped without [`TestContext::end`], it prints
/// what a person would look at, and deletes the namespace.
pub struct TestContext {
    /// The test's own namespace.
    pub namespace: String,
    /// A client that retries while the API server is busy or unavailable.
    pub client: Client,
    /// A client that does not retry: an eviction that was refused must not succeed later.
    pub no_retry: Client,
    /// The API server's audit log since the test began.
    pub audit: AuditLog,
    /// The ledger, which all tests share.
    pub ledger: Ledger,
    /// The installed operator.
    pub operator: Operator,
    ended: bool,
}

/// The client configuration of the cluster that `KUBECONFIG` names, without the environment's proxy.
pub async fn config() -> Result<Config> {
    let mut config = Config::from_kubeconfig(&KubeConfigOptions::default())
        .await
        .context("KUBECONFIG names no cluster: bring one up with `make cluster`")?;
    config.proxy_url = None;
    Ok(config)
}

/// Two clients of the cluster: one that retries and one that does not.
pub async fn clients() -> Result<(Client, Client)> {
    // Two TLS providers may be linked in. kube does not choose one by itself.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let config = config().await?;
    let mut no_retry = config.clone();
    no_retry.default_retry = false;
    Ok((Client::try_from(config)?, Client::try_from(no_retry)?))
}

impl TestContext {
    /// Creates a namespace for the test of this name.
    pub async fn new(test: &str) -> Result<Self> {
        let (client, no_retry) = clients().await?;
        let random = uuid::Uuid::new_v4().simple().to_string();
        let namespace = format!("{test}-{}", &random[..6]);
        let ctx = Self {
            audit: AuditLog::from_now(&namespace)?,
            ledger: Ledger::find(&client).await?,
            operator: Operator::new(&client),
            namespace,
            client,
            no_retry,
            ended: false,
        };
        objects::create_namespace(&ctx.client, &ctx.namespace, json!({ "e2e": test })).await?;
        Ok(ctx)
    }

    /// The machines of the cluster. Fails if the tests were not started by `make` or a script of `hack/`.
    pub fn cluster(&self) -> Result<Cluster> {
        Cluster::from_env()
    }

    /// Creates an AgentRun from exactly this manifest. See [`objects::refusal`].
    pub async fn create_run(&self, manifest: serde_json::Value) -> kube::Result<()> {
        objects::create::<AgentRun>(&self.client, &self.namespace, manifest).await.map(drop)
    }

    /// Creates an AgentDefinition of this name.
    pub async fn create_definition(&self, name: &str, definition: &Definition) -> Result {
        objects::create::<AgentDefinition>(&self.client, &self.namespace, definition.manifest(name)).await?;
        Ok(())
    }

    /// Changes the `spec` of an AgentDefinition by a merge patch.
    pub async fn update_definition(&self, name: &str, definition: &Definition) -> Result {
        let change = json!({ "spec": definition.agent() });
        objects::patch::<AgentDefinition>(&self.client, &self.namespace, name, &change).await?;
        Ok(())
    }

    /// An API of the test's namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Ends the test: checks that no attempt had more than one pod, and deletes the namespace.
    pub async fn end(mut self) -> Result {
        self.audit.expect_one_pod_per_attempt()?;
        Api::<Namespace>::all(self.client.clone())
            .delete(&self.namespace, &kube::api::DeleteParams::default())
            .await?;
        self.ended = true;
        Ok(())
    }

    /// Ends a test that has deleted its namespace itself. It makes the same check as [`Self::end`].
    pub fn end_without_namespace(mut self) -> Result {
        self.audit.expect_one_pod_per_attempt()?;
        self.ended = true;
        Ok(())
    }

    /// Prints the runs, their pods, the events and the operator's log.
    fn dump(&self) {
        let namespace = &self.namespace;
        // One line per run: the test's error is printed after all this and must stay visible.
        let status = "jsonpath={range .items[*]}{.metadata.name}{'\\t'}{.status.attempt}{'\\t'}{.status.recovery}{'\\n'}{end}";
        for args in [
            ["get", "pods", "-o", "wide", "--field-selector=status.phase!=Succeeded"].as_slice(),
            &["get", "agentruns,agentdefinitions", "-o", "wide"],
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

impl TestContext {
    /// A client that impersonates this user. It does not retry.
    pub async fn as_user(&self, user: &str) -> Result<Client> {
        let mut config = config().await?;
        config.auth_info.impersonate = Some(user.to_owned());
        config.default_retry = false;
        Ok(Client::try_from(config)?)
    }

    /// Grants these rights to this user, in the test's namespace. Returns once the API server applies them.
    pub async fn grant(&self, user: &str, rights: Rights<'_>) -> Result {
        let Rights { group, resources, verbs } = rights;
        let name = format!("{user}-{}", resources.join("-")).replace('/', "-");
        let role = json!({
            "metadata": { "name": name },
            "rules": [{ "apiGroups": [group], "resources": resources, "verbs": verbs }],
        });
        objects::create::<Role>(&self.client, &self.namespace, role).await?;
        let api = "rbac.authorization.k8s.io";
        let binding = json!({
            "metadata": { "name": name },
            "roleRef": { "apiGroup": api, "kind": "Role", "name": name },
            "subjects": [{ "apiGroup": api, "kind": "User", "name": user }],
        });
        objects::create::<RoleBinding>(&self.client, &self.namespace, binding).await?;
        let reviews = Api::<SubjectAccessReview>::all(self.client.clone());
        for (resource, verb) in resources.iter().flat_map(|it| verbs.iter().map(move |verb| (it, verb))) {
            let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
            let of = json!({ "namespace": self.namespace, "group": group, "resource": resource,
                             "subresource": subresource, "verb": verb });
            let review: SubjectAccessReview =
                serde_json::from_value(json!({ "spec": { "user": user, "resourceAttributes": of } }))?;
            eventually(format!("{user} to have the right to {verb} {resource}"), secs(30), async || {
                let answer = reviews.create(&PostParams::default(), &review).await?;
                Ok(answer.status.filter(|it| it.allowed).map(|_| ()))
            })
            .await?;
        }
        Ok(())
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
                println!("cannot delete the namespace: {error:#}");
            }
        }
    }
}
