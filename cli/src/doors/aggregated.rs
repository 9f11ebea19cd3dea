//! The aggregated API: the API server authenticates and authorizes the user, and passes the request on.

use dalsegno_crds::names::SUBRESOURCES_GROUP;
use http::{Method, Request, header};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body as KubeBody;

use super::answer::{Answer, BodyError};
use crate::failure::{Exit, Failure, Result};

/// Path of the group and its version.
pub const PREFIX: &str = "/apis/subresources.dalsegno.dev/v1alpha1";

/// Whether the group is registered, whatever its backend does.
pub async fn is_registered(client: &Client) -> Result<bool> {
    let answer = send(client, Method::GET, PREFIX, String::new()).await?;
    match answer.status.as_u16() {
        404 => Ok(false),
        503 => Err(Failure::new(
            Exit::Unavailable,
            format!("the API group {SUBRESOURCES_GROUP} is registered, and its servers do not answer"),
            "repeat the command in a few seconds, or use `--door gateway`",
        )),
        // 403: a cluster may hide its groups. The request itself shows whether it is there.
        _ => Ok(true),
    }
}

/// Sends a request to the API server.
pub async fn send(client: &Client, method: Method, path: &str, body: String) -> Result<Answer> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::ACCEPT, "application/json, */*")
        .body(KubeBody::from(body.into_bytes()));
    let request = request.map_err(|error| {
        Failure::new(Exit::Failed, format!("the request cannot be written: {error}"), "check the names")
    })?;
    let answer = client.send(request).await;
    let answer = answer.map_err(|error| Failure::of_api("asking the aggregated API", &error))?;
    let (parts, body) = answer.into_parts();
    let body = body.map_err(|error| -> BodyError { Box::new(error) }).boxed_unsync();
    Ok(Answer { status: parts.status, body })
}
