//! Withdraws the registration when the last operators of a release stop: nobody else would.

use std::time::Duration;

use dalsegno_core::api_registration::ObservedRelease;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};
use tokio_util::sync::CancellationToken;

use super::RELEASE;
use super::api_service::{Registry, is_ours};
use crate::kube_client::with_timeout;

/// Time for each request. A pod has 30 seconds for all of its end.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// Waits for `stop`, and then withdraws the registration if the release in this namespace ends.
///
/// A namespace that is deleted loses its ServiceAccounts within a second. The API server remembers for 10 seconds that a
/// token was valid, and the registrar uses the token more often than that.
pub async fn withdraw_at_the_end(client: Client, namespace: String, stop: CancellationToken) {
    stop.cancelled().await;
    let client = with_timeout(client, REQUEST_TIMEOUT);
    let release = observe(&client, &namespace).await;
    if !release.ends() {
        return;
    }
    let registry = Registry::new(client, &namespace);
    let withdrawn = async {
        match registry.read().await? {
            Some(service) if is_ours(&service) => registry.delete(&service).await,
            _ => Ok(()),
        }
    };
    match withdrawn.await {
        Ok(()) => tracing::info!(?release, "the release ends: the aggregated API is not registered any more"),
        Err(error) => tracing::error!(
            error = format!("{error:#}"),
            "the release ends, and the aggregated API is still registered: delete its APIService, or no namespace of the \
             cluster can be deleted"
        ),
    }
}

async fn observe(client: &Client, namespace: &str) -> ObservedRelease {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let (namespace, deployment) =
        tokio::join!(namespaces.get_metadata_opt(namespace), deployments.get_opt(RELEASE));
    let ends = |it: Option<kube::core::PartialObjectMeta<Namespace>>| {
        it.is_none_or(|it| it.metadata.deletion_timestamp.is_some())
    };
    let replicas = |it: Option<Deployment>| {
        let current = it.filter(|it| it.metadata.deletion_timestamp.is_none());
        current.map(|it| it.spec.and_then(|spec| spec.replicas).unwrap_or(1))
    };
    ObservedRelease { namespace_ends: namespace.map(ends).ok(), replicas: deployment.map(replicas).ok() }
}
