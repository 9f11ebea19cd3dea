//! A receiver of notifications in the cluster: an HTTPS server behind a Service. It checks each message with the code of
//! `docs/guides/notifications.md`.

use std::collections::BTreeMap;

use anyhow::Context;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use kube::ResourceExt;
use kube::api::{Api, ListParams, LogParams};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::agent::PYTHON;
use crate::wait::{eventually, secs};
use crate::{Result, TestContext, objects};

/// The name of its Deployment, its Service and its files.
const NAME: &str = "receiver";

/// The page that says how a signature is checked.
const PAGE: &str = include_str!("../../docs/guides/notifications.md");

/// A message that the receiver got.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Message {
    /// The path of the request.
    pub path: String,
    /// The headers, with names in lower case.
    pub headers: BTreeMap<String, String>,
    /// The body.
    pub body: String,
    /// Whether the signature is right.
    pub genuine: bool,
    /// Whether the signature would be right for another body too.
    pub changed_is_genuine: bool,
}

impl Message {
    /// The event in the body.
    pub fn event(&self) -> Result<Value> {
        serde_json::from_str(&self.body).with_context(|| format!("the body is no JSON: {self:?}"))
    }
}

/// The receiver in a test's namespace.
pub struct Receiver<'c> {
    ctx: &'c TestContext,
}

impl<'c> Receiver<'c> {
    /// The receiver of a test. It does not exist before [`Self::start`].
    pub fn new(ctx: &'c TestContext) -> Self {
        Self { ctx }
    }

    /// The name of its Service in the cluster's DNS.
    pub fn host(&self) -> String {
        format!("{NAME}.{}.svc.cluster.local", self.ctx.namespace)
    }

    /// Starts it with a certificate, its key, and the secret that signs.
    pub async fn start(&self, (certificate, key): (String, String), secret: &str) -> Result {
        let (client, namespace) = (&self.ctx.client, &self.ctx.namespace);
        let metadata = json!({ "name": NAME });
        let files = json!({ "tls.crt": certificate, "tls.key": key, "secret": secret });
        objects::create::<Secret>(client, namespace, json!({ "metadata": metadata, "stringData": files }))
            .await?;
        let scripts =
            json!({ "receiver.py": include_str!("receiver.py"), "documented.py": documented_check()? });
        objects::create::<ConfigMap>(client, namespace, json!({ "metadata": metadata, "data": scripts }))
            .await?;
        let labels = json!({ "app": NAME });
        let ports = json!([{ "port": 443, "targetPort": 8443 }]);
        let service = json!({ "metadata": metadata, "spec": { "selector": labels, "ports": ports } });
        objects::create::<Service>(client, namespace, service).await?;
        objects::create::<Deployment>(client, namespace, deployment()).await?;
        self.wait_for_pods(1).await
    }

    /// Stops its pod, or starts one.
    pub async fn scale(&self, replicas: i32) -> Result {
        let change = json!({ "spec": { "replicas": replicas } });
        objects::patch::<Deployment>(&self.ctx.client, &self.ctx.namespace, NAME, &change).await?;
        self.wait_for_pods(replicas).await
    }

    async fn wait_for_pods(&self, replicas: i32) -> Result {
        let deployments: Api<Deployment> = self.ctx.api();
        eventually(format!("{replicas} pods of the receiver"), secs(60), async || {
            let status = deployments.get(NAME).await?.status.unwrap_or_default();
            let is_ready = status.ready_replicas.unwrap_or(0) == replicas;
            Ok((is_ready && self.pods().await?.len() as i32 == replicas).then_some(()))
        })
        .await
    }

    async fn pods(&self) -> Result<Vec<Pod>> {
        let labels = ListParams::default().labels(&format!("app={NAME}"));
        Ok(self.ctx.api::<Pod>().list(&labels).await?.items)
    }

    /// The messages that its current pod got, the earliest first.
    pub async fn messages(&self) -> Result<Vec<Message>> {
        let mut messages = Vec::new();
        for pod in self.pods().await? {
            let log = self.ctx.api::<Pod>().logs(&pod.name_any(), &LogParams::default()).await?;
            for line in log.lines() {
                let message = serde_json::from_str(line);
                messages.push(message.with_context(|| format!("the receiver printed {line:?}"))?);
            }
        }
        Ok(messages)
    }
}

/// The code of the documentation.
fn documented_check() -> Result<&'static str> {
    let code = PAGE.split("```python\n").nth(1).and_then(|it| it.split("```").next());
    code.context("docs/guides/notifications.md has no code in Python")
}

fn deployment() -> Value {
    let labels = json!({ "app": NAME });
    let file =
        |name: &str| json!({ "name": name, "mountPath": format!("/receiver/{name}"), "readOnly": true });
    json!({
        "metadata": { "name": NAME },
        "spec": {
            "replicas": 1,
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels },
                "spec": {
                    "terminationGracePeriodSeconds": 0,
                    "containers": [{
                        "name": NAME,
                        "image": PYTHON,
                        "command": ["/usr/bin/python3", "/receiver/script/receiver.py"],
                        "ports": [{ "containerPort": 8443 }],
                        "readinessProbe": { "tcpSocket": { "port": 8443 }, "periodSeconds": 1 },
                        "volumeMounts": [file("script"), file("secret")],
                    }],
                    "volumes": [
                        { "name": "script", "configMap": { "name": NAME } },
                        { "name": "secret", "secret": { "secretName": NAME } },
                    ],
                },
            },
        },
    })
}
