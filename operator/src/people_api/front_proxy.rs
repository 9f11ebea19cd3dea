//! Watches how the API server's front proxy proves itself.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;

use dalsegno_gateway::RequestHeaderTrust;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::watch_object;
use kube::{Api, Client};
use tokio::sync::watch;

/// Namespace of the ConfigMap.
const NAMESPACE: &str = "kube-system";
/// Name of the ConfigMap. The API server writes it.
const NAME: &str = "extension-apiserver-authentication";

/// Publishes the trust whenever the ConfigMap changes. While the ConfigMap cannot be used, the trust is `None` and nothing
/// is served; while the API server is unavailable, the last trust stays.
pub async fn run(client: Client, trust: watch::Sender<Option<Arc<RequestHeaderTrust>>>) {
    let api: Api<ConfigMap> = Api::namespaced(client, NAMESPACE);
    let mut changes = pin!(watch_object(api, NAME).default_backoff());
    let mut known = None;
    while let Some(change) = changes.next().await {
        let data = match change {
            Ok(map) => map.and_then(|it| it.data).unwrap_or_default(),
            Err(error) => {
                tracing::warn!(%error, "the ConfigMap of the API server's front proxy cannot be watched");
                continue;
            }
        };
        if known.as_ref() != Some(&data) {
            trust.send_replace(read(&data));
            known = Some(data);
        }
    }
}

fn read(data: &BTreeMap<String, String>) -> Option<Arc<RequestHeaderTrust>> {
    match RequestHeaderTrust::from_config_map(data) {
        Ok(trust) => {
            tracing::info!("the front proxy of the API server is known");
            Some(Arc::new(trust))
        }
        Err(error) => {
            tracing::error!(%error, "the aggregated API is not served");
            None
        }
    }
}
