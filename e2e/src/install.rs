//! Installs what the tests need in the cluster: one Helm release of Dal Segno, and the ledger.

use anyhow::Context;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Service;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::cluster::SAFE_NODE;
use crate::operator::{NAMESPACE, RELEASE};

use crate::wait::{eventually, secs};
use crate::{Operator, Result, objects, process};

/// Namespace of the ledger.
pub const TOOLS_NAMESPACE: &str = "dalsegno-e2e";

/// Port of the ledger.
pub const LEDGER_PORT: u16 = 8090;

/// The image of the ledger: the Rust example's image contains it.
const LEDGER_IMAGE: &str = "registry.dalsegno.test/dalsegno-example-rust:dev";

/// A worker that crashes up to 5 seconds after an outage of the gateway is not charged. Tests count charges, so none may
/// begin earlier.
const OUTAGE_MARGIN: std::time::Duration = std::time::Duration::from_secs(6);

/// Repository of the operator's image.
const IMAGE: &str = "registry.dalsegno.test/dalsegno";

/// The environment variable with the path of the previous version's chart. `hack/lib.sh` sets it, and `hack/previous.sh`
/// makes the chart.
const PREVIOUS_CHART: &str = "DALSEGNO_E2E_PREVIOUS_CHART";

/// A version of Dal Segno: its chart, and the tag of its image.
pub struct Version {
    chart: String,
    tag: &'static str,
}

impl Version {
    /// The version of this checkout.
    pub fn current() -> Self {
        Self { chart: format!("{}/../charts/dalsegno", env!("CARGO_MANIFEST_DIR")), tag: "dev" }
    }

    /// The version before. Fails if [`PREVIOUS_CHART`] is not set.
    pub fn previous() -> Result<Self> {
        let chart = std::env::var(PREVIOUS_CHART)
            .with_context(|| format!("{PREVIOUS_CHART} is not set: run the test with `make upgrade`"))?;
        Ok(Self { chart, tag: "previous" })
    }

    /// The command line of `helm upgrade --install --wait` with these values.
    pub fn helm_command(&self, values: &Value) -> Vec<String> {
        let mut values = values.clone();
        objects::merge(&mut values, &json!({ "image": { "tag": self.tag } }));
        let release = ["helm", "upgrade", "--install", RELEASE, &self.chart, "--namespace", NAMESPACE];
        let wait = ["--create-namespace", "--wait", "--timeout", "100s"];
        let mut command: Vec<String> =
            [&release[..], &wait].concat().into_iter().map(str::to_owned).collect();
        for (key, value) in values.as_object().into_iter().flatten() {
            command.extend(["--set-json".to_owned(), format!("{key}={value}")]);
        }
        command
    }

    /// Installs this version, or changes the release to it, and waits until it is ready.
    pub async fn install(&self, client: &Client, values: &Value) -> Result {
        process::run_command(&self.helm_command(values)).await?;
        Operator::new(client).wait_for_rollout().await
    }
}

/// Installs or upgrades the release and the ledger, and waits until both are ready. It can be called again at any time.
pub async fn set_up(client: &Client) -> Result {
    let (version, values) = (Version::current(), values());
    let (release, ledger) = tokio::join!(version.install(client, &values), install_ledger(client));
    release.and(ledger)?;
    tokio::time::sleep(OUTAGE_MARGIN).await;
    Ok(())
}

/// The values of the release: the embedded store, on the node that no test breaks.
pub fn values() -> Value {
    json!({
        "image": { "repository": IMAGE, "pullPolicy": "Always" },
        "nodeSelector": { "kubernetes.io/hostname": SAFE_NODE },
        // A changed annotation makes a new pod, which pulls the tag again.
        "podAnnotations": { "e2e/installed": jiff::Timestamp::now().to_string() },
    })
}

async fn install_ledger(client: &Client) -> Result {
    objects::create_namespace(client, TOOLS_NAMESPACE, json!({})).await?;
    let labels = json!({ "app": "ledger" });
    apply::<Service>(
        client,
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": "ledger" },
            "spec": { "selector": labels, "ports": [{ "port": LEDGER_PORT }] },
        }),
    )
    .await?;
    apply::<Deployment>(
        client,
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "ledger" },
            "spec": {
                "replicas": 1,
                "selector": { "matchLabels": labels },
                "strategy": { "type": "Recreate" },
                "template": {
                    "metadata": { "labels": labels },
                    "spec": {
                        "nodeSelector": { "kubernetes.io/hostname": SAFE_NODE },
                        // The ledger must not be evicted: it keeps everything in memory, and tests know its address.
                        "tolerations": [{ "operator": "Exists", "effect": "NoExecute" }],
                        "containers": [{
                            "name": "ledger",
                            "image": LEDGER_IMAGE,
                            "command": ["/ledger"],
                            "imagePullPolicy": "Always",
                            "ports": [{ "containerPort": LEDGER_PORT }],
                            "readinessProbe": {
                                "httpGet": { "path": "/healthz", "port": LEDGER_PORT }, "periodSeconds": 1,
                            },
                        }],
                    },
                },
            },
        }),
    )
    .await?;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), TOOLS_NAMESPACE);
    eventually("the ledger", secs(60), async || {
        let status = deployments.get("ledger").await?.status.unwrap_or_default();
        Ok((status.ready_replicas == Some(1) && status.unavailable_replicas.is_none()).then_some(()))
    })
    .await
}

/// Server-side apply of an object in the ledger's namespace.
async fn apply<K>(client: &Client, manifest: Value) -> Result
where
    K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    K: Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(client.clone(), TOOLS_NAMESPACE);
    let name = manifest["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    api.patch(&name, &PatchParams::apply("dalsegno-e2e").force(), &Patch::Apply(&manifest)).await?;
    Ok(())
}
