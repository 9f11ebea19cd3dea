//! Kubernetes objects as JSON, so that a test can also write what a typed client would not.

use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, NamespaceResourceScope, Resource};
use kube::{Client, ResourceExt};
use serde::Serialize;
use serde_json::Value;

use crate::Result;

/// Applies `patch` to `target` as a JSON merge patch (RFC 7386), but joins lists instead of replacing them.
pub fn merge(target: &mut Value, patch: &Value) {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            for (key, value) in patch {
                if value.is_null() {
                    target.remove(key);
                } else {
                    merge(target.entry(key.clone()).or_insert(Value::Null), value);
                }
            }
        }
        (Value::Array(target), Value::Array(patch)) => target.extend(patch.iter().cloned()),
        (target, patch) => *target = patch.clone(),
    }
}

/// An API of kind `K` that accepts any JSON.
pub fn untyped<K>(client: &Client, namespace: &str) -> Api<DynamicObject>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    Api::namespaced_with(client.clone(), namespace, &ApiResource::erase::<K>(&()))
}

/// Creates an object of kind `K` from exactly this JSON. See [`refusal`].
pub async fn create<K>(client: &Client, namespace: &str, mut manifest: Value) -> kube::Result<DynamicObject>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    let types = serde_json::json!({ "apiVersion": K::api_version(&()), "kind": K::kind(&()) });
    merge(&mut manifest, &types);
    let object: DynamicObject = serde_json::from_value(manifest).map_err(kube::Error::SerdeError)?;
    untyped::<K>(client, namespace).create(&PostParams::default(), &object).await
}

/// Changes an object of kind `K` by a merge patch. See [`refusal`].
pub async fn patch<K>(
    client: &Client,
    namespace: &str,
    name: &str,
    change: &Value,
) -> kube::Result<DynamicObject>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    untyped::<K>(client, namespace).patch(name, &PatchParams::default(), &Patch::Merge(change)).await
}

/// The API server's message if it refused a request with 4xx. Fails if it accepted the request or failed otherwise.
pub fn refusal<T>(answer: kube::Result<T>) -> Result<String> {
    match answer {
        Ok(_) => anyhow::bail!("the API server accepted a request that it should refuse"),
        Err(kube::Error::Api(status)) if (400..500).contains(&status.code) => Ok(status.message),
        Err(error) => Err(error.into()),
    }
}

/// The pods of a run, ended ones included, ordered by attempt.
pub async fn pods_of(client: &Client, namespace: &str, run: &str) -> Result<Vec<Pod>> {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let selector = format!("{}={run}", dalsegno_crds::names::LABEL_RUN);
    let mut pods = api.list(&ListParams::default().labels(&selector)).await?.items;
    pods.sort_by_key(|pod| attempt_of(pod).unwrap_or(0));
    Ok(pods)
}

/// The attempt of a pod.
pub fn attempt_of(pod: &Pod) -> Option<i32> {
    pod.labels().get(dalsegno_crds::names::LABEL_ATTEMPT)?.parse().ok()
}

/// Whether all containers of a pod have ended.
pub fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Creates a namespace, and waits for its ServiceAccount, without which pods are refused.
pub async fn create_namespace(client: &Client, name: &str, labels: impl Serialize) -> Result {
    let manifest = serde_json::json!({ "metadata": { "name": name, "labels": labels } });
    let namespace: Namespace = serde_json::from_value(manifest)?;
    match Api::all(client.clone()).create(&PostParams::default(), &namespace).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => {}
        answer => drop(answer?),
    }
    let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> = Api::namespaced(client.clone(), name);
    crate::wait::eventually(format!("the ServiceAccount of {name}"), crate::wait::secs(30), async || {
        Ok(accounts.get_opt("default").await?)
    })
    .await
    .map(drop)
}

/// Deletes an object without waiting until it is gone.
pub async fn delete<K>(client: &Client, namespace: &str, name: &str) -> Result
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    untyped::<K>(client, namespace).delete(name, &DeleteParams::default()).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_merge_joins_lists_and_null_removes() {
        let mut target = json!({ "a": { "b": 1, "c": 2 }, "l": [1] });
        merge(&mut target, &json!({ "a": { "b": null, "d": 3 }, "l": [2] }));
        assert_eq!(target, json!({ "a": { "c": 2, "d": 3 }, "l": [1, 2] }));
    }
}
