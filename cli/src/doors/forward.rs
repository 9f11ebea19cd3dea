//! A stream to a pod behind a Service, through the API server: as `kubectl port-forward` does, and without a local port.

use k8s_openapi::api::core::v1::{Pod, Service, ServicePort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt as _};
use tokio::io::DuplexStream;

use crate::failure::{Exit, Failure, Result};

/// A port of a pod.
pub struct Target {
    pods: Api<Pod>,
    pod: String,
    port: u16,
    /// Whether the Service says that the port speaks TLS.
    pub is_tls: bool,
}

/// A stream, and what keeps it open.
pub struct Forwarded {
    /// The stream.
    pub stream: DuplexStream,
    /// It must live as long as the stream.
    pub keeper: kube::api::Portforwarder,
}

/// Name of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl ServiceName {
    /// From `NAMESPACE/NAME`.
    pub fn parse(text: &str) -> Result<Self> {
        match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
                Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
            }
            _ => Err(Failure::usage(
                format!("{text:?} is not the name of a Service"),
                "write --gateway NAMESPACE/NAME, such as dalsegno-system/dalsegno-gateway",
            )),
        }
    }

    /// Its name in the DNS of the cluster.
    pub fn dns(&self) -> String {
        format!("{}.{}.svc", self.name, self.namespace)
    }
}

impl Target {
    /// A ready pod of the Service. `wants_tls`: prefer the port that speaks TLS.
    pub async fn find(client: &Client, service: &ServiceName, wants_tls: bool) -> Result<Self> {
        let ServiceName { namespace, name } = service;
        let services: Api<Service> = Api::namespaced(client.clone(), namespace);
        let found = services.get(name).await.map_err(|error| closed(service, &api_reason(&error)))?;
        let spec = found.spec.unwrap_or_default();
        let port = choose_port(spec.ports.as_deref().unwrap_or_default(), wants_tls)
            .ok_or_else(|| closed(service, "the Service has no port"))?
            .clone();
        let selector = spec.selector.unwrap_or_default();
        let selector: Vec<_> = selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let listed = pods.list(&ListParams::default().labels(&selector.join(","))).await;
        let listed = listed.map_err(|error| closed(service, &api_reason(&error)))?.items;
        let pod = listed.iter().find(|it| is_ready(it)).ok_or_else(|| {
            Failure::new(
                Exit::Unavailable,
                format!("no pod of the gateway {namespace}/{name} is ready"),
                format!("look at them with `kubectl get pods -n {namespace}`, then repeat the command"),
            )
        })?;
        let number = target_port(pod, &port).ok_or_else(|| closed(service, "its port is not known"))?;
        Ok(Self { pod: pod.name_any(), port: number, is_tls: speaks_tls(&port), pods })
    }

    /// Opens a stream.
    pub async fn connect(&self) -> Result<Forwarded> {
        let opened = self.pods.portforward(&self.pod, &[self.port]).await;
        let mut keeper = opened.map_err(|error| {
            Failure::new(
                Exit::NoDoor,
                format!("the port-forward to the gateway's pod {} fails: {}", self.pod, api_reason(&error)),
                "ask an administrator for the rights to `get` and `create` pods/portforward in the gateway's namespace",
            )
        })?;
        let stream = keeper.take_stream(self.port).ok_or_else(|| {
            Failure::new(
                Exit::NoDoor,
                "the port-forward has no stream",
                "repeat the command in a few seconds",
            )
        })?;
        Ok(Forwarded { stream, keeper })
    }
}

fn closed(service: &ServiceName, why: &str) -> Failure {
    let ServiceName { namespace, name } = service;
    Failure::new(
        Exit::NoDoor,
        format!(
            "there is no door to what the run has committed: the aggregated API is not registered, and the gateway {namespace}/{name} cannot be reached: {why}"
        ),
        format!(
            "if Dal Segno is installed elsewhere, name its gateway by --gateway NAMESPACE/SERVICE. You need the rights to \
             get services, list pods, and get and create pods/portforward in the namespace {namespace}"
        ),
    )
}

fn api_reason(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        error => crate::failure::chain(error),
    }
}

fn speaks_tls(port: &ServicePort) -> bool {
    port.name.as_deref().is_some_and(|it| it.contains("https"))
        || port.app_protocol.as_deref() == Some("https")
}

fn choose_port(ports: &[ServicePort], wants_tls: bool) -> Option<&ServicePort> {
    ports.iter().find(|it| speaks_tls(it) == wants_tls).or_else(|| ports.first())
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().filter_map(|it| it.conditions.as_ref()).flatten();
    pod.metadata.deletion_timestamp.is_none()
        && conditions.into_iter().any(|it| it.type_ == "Ready" && it.status == "True")
}

/// The number of the pod's port that the Service's port leads to.
fn target_port(pod: &Pod, port: &ServicePort) -> Option<u16> {
    let number = match &port.target_port {
        None => port.port,
        Some(IntOrString::Int(number)) => *number,
        Some(IntOrString::String(name)) => {
            let containers = pod.spec.iter().flat_map(|it| &it.containers);
            let ports = containers.filter_map(|it| it.ports.as_ref()).flatten();
            ports.into_iter().find(|it| it.name.as_ref() == Some(name))?.container_port
        }
    };
    u16::try_from(number).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_port_that_speaks_tls_is_preferred_if_it_is_wanted_and_there() {
        let port = |name: &str, number: i32| ServicePort {
            name: Some(name.into()),
            port: number,
            ..Default::default()
        };
        let both = [port("http", 8080), port("https", 8443)];
        assert_eq!(choose_port(&both, true).unwrap().port, 8443);
        assert_eq!(choose_port(&both, false).unwrap().port, 8080);
        assert_eq!(choose_port(&both[1..], false).unwrap().port, 8443);
        assert!(choose_port(&[], true).is_none());
    }

    #[test]
    fn a_named_port_is_looked_up_in_the_pod() {
        let pod = json!({ "spec": { "containers": [{ "name": "a", "ports": [{ "name": "gateway", "containerPort": 8080 }] }] } });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let to =
            |target: IntOrString| ServicePort { port: 1, target_port: Some(target), ..Default::default() };
        assert_eq!(target_port(&pod, &to(IntOrString::String("gateway".into()))), Some(8080));
        assert_eq!(target_port(&pod, &to(IntOrString::String("other".into()))), None);
        assert_eq!(target_port(&pod, &to(IntOrString::Int(9))), Some(9));
    }

    #[test]
    fn a_service_has_a_namespace_and_a_name() {
        assert_eq!(ServiceName::parse("a/b").unwrap().dns(), "b.a.svc");
        for text in ["a", "/b", "a/", "a/b/c"] {
            assert_eq!(ServiceName::parse(text).unwrap_err().exit, Exit::Usage, "{text}");
        }
    }
}
