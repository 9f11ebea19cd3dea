//! A worker that the test plays itself over HTTP, to send what a hostile or faulty agent would send.

use std::net::SocketAddr;

use anyhow::Context;
use dalsegno_crds::names;
use dalsegno_protocol::{AUDIENCE, AttachResponse, env};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Pod, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use kube::api::{Api, ListParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use crate::Result;
use crate::http::{Request, Response};
use crate::route::{self, Route};

/// A worker with its two secrets: the token of its pod, and the instance that it has chosen.
#[derive(Clone, Debug)]
pub struct Worker {
    /// The run's base URL. [`crate::route`] knows the way to it.
    pub url: String,
    /// The pod's token.
    pub token: String,
    /// The bearer of all calls but `attach`.
    pub instance: String,
}

impl Worker {
    /// The worker of this pod. The pod's own agent must not attach: use `neverAttach` in its input.
    pub async fn for_pod(client: &Client, pod: &Pod) -> Result<Self> {
        let url = env_value(pod, env::URL)?;
        let authority = route::authority(&url).context("a URL without a host")?;
        let ca = pod.annotations().get(names::ANNOTATION_CA).cloned();
        route::set(authority, Route { address: gateway_address(client, authority).await?, ca });
        Ok(Self { url, token: token(client, pod, AUDIENCE).await?, instance: new_instance() })
    }

    /// Another process of the same pod: the same token with another instance.
    pub fn with_new_instance(&self) -> Self {
        Self { instance: new_instance(), ..self.clone() }
    }

    /// `POST attach`.
    pub async fn attach(&self) -> Result<Response> {
        let body = json!({ "instance": self.instance }).to_string();
        Request::post(format!("{}/attach", self.url), body).bearer(&self.token).send().await
    }

    /// `POST attach`. Retries for up to a minute while the pod or its version is not recorded yet.
    pub async fn attach_when_ready(&self) -> Result<AttachResponse> {
        let answer = crate::wait::eventually("an attach to be answered", crate::wait::secs(60), async || {
            let answer = self.attach().await?;
            Ok(Some(answer).filter(|answer| answer.status != 503))
        })
        .await?;
        answer.json()
    }

    /// Any POST of the contract with exactly these bytes.
    pub async fn send(&self, path: &str, body: impl Into<Vec<u8>>) -> Result<Response> {
        Request::post(format!("{}/{path}", self.url), body).bearer(&self.instance).send().await
    }

    /// Any POST of the contract with a JSON body.
    pub async fn post(&self, path: &str, body: Value) -> Result<Response> {
        self.send(path, body.to_string()).await
    }

    /// Commits a turn with this state under a new commit id.
    pub async fn commit(&self, turn: i64, state: Value) -> Result<Response> {
        self.post(&format!("turns/{turn}"), commit(state)).await
    }

    /// `POST heartbeat`.
    pub async fn heartbeat(&self) -> Result<Response> {
        self.send("heartbeat", "").await
    }

    /// The base URL of the same gateway's API for people.
    pub fn user_api_url(&self) -> String {
        self.url.split("/v1/").next().unwrap_or_default().to_owned() + "/v1/namespaces"
    }

    /// `GET state`.
    pub async fn state(&self) -> Result<Response> {
        self.get("state").await
    }

    /// Any GET of the contract.
    pub async fn get(&self, path: &str) -> Result<Response> {
        Request::get(format!("{}/{path}", self.url)).bearer(&self.instance).send().await
    }
}

/// The body of a commit of this state under a new commit id.
pub fn commit(state: Value) -> Value {
    json!({ "commitId": uuid::Uuid::new_v4(), "state": state })
}

/// A token of a pod, like the one that the kubelet projects.
pub async fn token(client: &Client, pod: &Pod, audience: &str) -> Result<String> {
    let namespace = pod.namespace().context("a pod without a namespace")?;
    let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone());
    let request = TokenRequest {
        spec: Some(TokenRequestSpec {
            audiences: Some(vec![audience.to_owned()]),
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                name: Some(pod.name_any()),
                uid: pod.uid(),
            }),
            expiration_seconds: Some(600),
        }),
        ..TokenRequest::default()
    };
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &namespace);
    let answer = accounts
        .create_token_request(account.as_deref().unwrap_or("default"), &PostParams::default(), &request)
        .await?;
    answer.status.and_then(|status| status.token).context("a token request without a token")
}

/// The value of an environment variable of this pod's containers.
fn env_value(pod: &Pod, name: &str) -> Result<String> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut variables = containers.flat_map(|container| container.env.iter().flatten());
    let found = variables.find(|variable| variable.name == name).and_then(|variable| variable.value.clone());
    found.with_context(|| format!("pod {} has no {name}", pod.name_any()))
}

/// The address of one of the Service's pods, which can also be reached from outside the cluster.
async fn gateway_address(client: &Client, authority: &str) -> Result<SocketAddr> {
    let (host, port) = authority.split_once(':').context("a URL without a port")?;
    let mut labels = host.split('.');
    let (Some(service), Some(namespace)) = (labels.next(), labels.next()) else {
        anyhow::bail!("{authority} does not name a Service and a namespace");
    };
    let services: Api<Service> = Api::namespaced(client.clone(), namespace);
    let ports = services.get(service).await?.spec.and_then(|spec| spec.ports).unwrap_or_default();
    let named = ports.into_iter().find(|one| one.port.to_string() == port);
    let named = named.with_context(|| format!("Service {service} has no port {port}"))?;
    let name = named.name.unwrap_or_default();
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), namespace);
    let selector = ListParams::default().labels(&format!("kubernetes.io/service-name={service}"));
    for slice in slices.list(&selector).await? {
        let is_ready = |one: &&Endpoint| one.conditions.as_ref().is_none_or(|is| is.ready != Some(false));
        let ready = slice.endpoints.iter().flatten().find(is_ready);
        let ports = slice.ports.iter().flatten();
        let port = ports.into_iter().find(|one| one.name.as_deref().unwrap_or_default() == name);
        let address = ready.and_then(|one| one.addresses.first());
        if let (Some(address), Some(port)) = (address, port.and_then(|one| one.port)) {
            return Ok(SocketAddr::new(address.parse()?, u16::try_from(port)?));
        }
    }
    anyhow::bail!("Service {service} has no endpoint")
}

/// An instance: 256 bits, nearly all of them random, as 43 characters of base64url.
fn new_instance() -> String {
    let random = format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple());
    format!("{}A", &random[..42])
}
