//! The addresses of the API server, to which no notification is sent.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use anyhow::Context as _;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api, Client};
use tokio::net::lookup_host;

use crate::mutex::lock;

/// Namespace and name of the EndpointSlice that each API server keeps of the addresses of all of them.
const SLICE: (&str, &str) = ("default", "kubernetes");

/// The addresses of the API server: of its Service, of the host that the operator connects to, and of each API server
/// behind them. They are found anew before each batch of notifications, because API servers come and go.
pub struct ApiServer {
    hosts: Vec<String>,
    slices: Api<EndpointSlice>,
    known: Arc<Mutex<Vec<IpAddr>>>,
}

impl ApiServer {
    /// `hosts`: names or addresses that lead to the API server.
    pub fn new(client: Client, hosts: Vec<String>) -> Self {
        Self { hosts, slices: Api::namespaced(client, SLICE.0), known: Arc::default() }
    }

    /// Finds the addresses.
    ///
    /// # Errors
    ///
    /// A host cannot be resolved, or the API server cannot be asked. Then it is not known what must not be sent to.
    pub async fn find(&self) -> anyhow::Result<()> {
        let mut found = Vec::new();
        for host in &self.hosts {
            let addresses = lookup_host((host.as_str(), 0)).await;
            found.extend(addresses.context("resolving the API server's host")?.map(|it| it.ip()));
        }
        let slice = self.slices.get_opt(SLICE.1).await.context("reading the API server's EndpointSlice")?;
        let addresses = slice.and_then(|it| it.endpoints).into_iter().flatten().flat_map(|it| it.addresses);
        // An EndpointSlice may hold names too.
        found.extend(addresses.filter_map(|it| it.parse::<IpAddr>().ok()));
        *lock(&self.known) = found;
        Ok(())
    }

    /// The addresses that were found last, shared with whoever checks an address.
    pub fn known(&self) -> Arc<Mutex<Vec<IpAddr>>> {
        self.known.clone()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic fails the test")]

    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::body::Body;
    use axum::http::{Request, Response};
    use kube::client::Body as KubeBody;
    use serde_json::json;
    use tower::service_fn;

    use super::*;

    /// An API server that answers the requests for its EndpointSlice with these states and bodies, one after the other.
    fn answering(answers: Vec<(u16, serde_json::Value)>) -> Client {
        let asked = AtomicUsize::new(0);
        let service = service_fn(move |request: Request<KubeBody>| {
            let path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";
            assert_eq!(request.uri().path(), path);
            let (status, body) = answers[asked.fetch_add(1, Ordering::Relaxed)].clone();
            let response = Response::builder().status(status).body(Body::from(body.to_string())).unwrap();
            async move { Ok::<_, Infallible>(response) }
        });
        Client::new(service, "default")
    }

    fn slice(addresses: &[&str]) -> (u16, serde_json::Value) {
        let endpoints: Vec<_> = addresses.iter().map(|it| json!({ "addresses": [it] })).collect();
        let slice = json!({ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {},
                            "addressType": "IPv4", "endpoints": endpoints });
        (200, slice)
    }

    fn status(code: u16) -> (u16, serde_json::Value) {
        // kube tells these errors apart by the reason alone.
        let reason = if code == 404 { "NotFound" } else { "Forbidden" };
        let status = json!({ "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure", "code": code,
                             "reason": reason, "message": "no" });
        (code, status)
    }

    fn addresses(api_server: &ApiServer) -> Vec<String> {
        lock(&api_server.known()).iter().map(ToString::to_string).collect()
    }

    #[tokio::test]
    async fn the_addresses_of_each_api_server_are_found_anew() {
        let answers = vec![slice(&["10.0.0.1", "10.0.0.2"]), slice(&["10.0.0.3"]), status(404)];
        let api_server = ApiServer::new(answering(answers), vec!["10.96.0.1".into()]);
        for expected in
            [&["10.96.0.1", "10.0.0.1", "10.0.0.2"][..], &["10.96.0.1", "10.0.0.3"], &["10.96.0.1"]]
        {
            api_server.find().await.unwrap();
            assert_eq!(addresses(&api_server), expected);
        }
    }

    #[tokio::test]
    async fn addresses_that_cannot_be_found_are_an_error() {
        let api_server = ApiServer::new(answering(vec![status(403)]), Vec::new());
        api_server.find().await.unwrap_err();
        let api_server = ApiServer::new(answering(Vec::new()), vec!["name.invalid".into()]);
        api_server.find().await.unwrap_err();
    }
}
