//! Creates a pod from its JSON, so that the API server receives also the fields that this program does not know.

use axum::http::uri::InvalidUri;
use dalsegno_crds::names;
use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use kube::core::request::{Error as RequestError, Request};
use kube::{Client, Resource as _};
use serde_json::Value;

/// Creates a pod, or tries to with a dry run, which stores nothing. The API server rejects a pod with a field that it does
/// not know itself, such as a field with a typing error.
///
/// # Errors
///
/// The API server did not create the pod, or its response is not a pod.
pub async fn create_pod(client: &Client, namespace: &str, pod: &Value, dry_run: bool) -> kube::Result<Pod> {
    let params = PostParams { dry_run, field_manager: Some(names::FIELD_MANAGER.to_owned()) };
    let body = serde_json::to_vec(pod).map_err(RequestError::SerializeBody);
    let request = body.and_then(|body| {
        let mut request = Request::new(Pod::url_path(&(), Some(namespace))).create(&params, body)?;
        // The parameters of a POST have no field for it.
        let uri = format!("{}&fieldValidation=Strict", request.uri());
        *request.uri_mut() =
            uri.parse().map_err(|error: InvalidUri| RequestError::BuildRequest(error.into()))?;
        Ok(request)
    });
    client.request(request.map_err(kube::Error::BuildRequest)?).await
}
