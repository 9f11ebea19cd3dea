//! The documents that the API server asks for by itself. They are the same for every caller and need no store.

use std::sync::LazyLock;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// The API group of what people read and write of a run.
pub const GROUP: &str = "subresources.dalsegno.dev";
/// Its only version.
pub const VERSION: &str = "v1alpha1";

/// A subresource of `agentruns`, as the documents list it.
pub(crate) struct Subresource {
    /// Its name, which is also the name of the call.
    pub(crate) name: &'static str,
    /// The kind of its answers. Discovery demands one.
    kind: &'static str,
    /// What may be done with it.
    pub(crate) verbs: &'static [&'static str],
}

/// Every subresource. A test compares them with the routes.
pub(crate) const SUBRESOURCES: &[Subresource] = &[
    subresource("audit", "AgentRunAudit", &["get"]),
    subresource("calls", "AgentRunCalls", &["get"]),
    subresource("checkpoint", "AgentRunCheckpoint", &["get"]),
    subresource("events", "AgentRunEvents", &["get"]),
    subresource("export", "AgentRunExport", &["get"]),
    subresource("facts", "AgentRunFacts", &["get"]),
    subresource("log", "AgentRunLog", &["get"]),
    subresource("memory-delta", "AgentRunMemoryDelta", &["get"]),
    subresource("messages", "AgentRunMessages", &["create", "get"]),
    subresource("proposal", "AgentRunProposal", &["get"]),
    subresource("records", "AgentRunRecords", &["get"]),
    subresource("settle", "AgentRunSettlement", &["create"]),
    subresource("state", "AgentRunState", &["get"]),
    subresource("turns", "AgentRunTurns", &["get"]),
];

const fn subresource(name: &'static str, kind: &'static str, verbs: &'static [&'static str]) -> Subresource {
    Subresource { name, kind, verbs }
}

/// One document, as it is sent.
struct Document {
    path: String,
    content_type: HeaderValue,
    text: Bytes,
    etag: HeaderValue,
}

/// Media type of the aggregated discovery. Without it the API server takes the document for an older kind.
const DISCOVERY: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

static DOCUMENTS: LazyLock<[Document; 4]> = LazyLock::new(|| {
    [
        document(format!("/apis/{GROUP}/{VERSION}"), "application/json", &resource_list()),
        document("/apis".to_owned(), DISCOVERY, &discovery()),
        document("/openapi/v2".to_owned(), "application/json", &openapi()),
        document("/openapi/v3".to_owned(), "application/json", &json!({ "paths": {} })),
    ]
});

fn document(path: String, content_type: &'static str, value: &Value) -> Document {
    let text = value.to_string();
    let hash: String = Sha256::digest(&text)[..16].iter().map(|byte| format!("{byte:02X}")).collect();
    Document {
        path,
        content_type: HeaderValue::from_static(content_type),
        // Hexadecimal digits and quotes are a valid header.
        etag: HeaderValue::from_str(&format!("\"{hash}\"")).unwrap_or(HeaderValue::from_static("\"0\"")),
        text: text.into(),
    }
}

/// The document of this path, if there is one. `Accept` is ignored: a refusal would make the whole group unavailable.
pub(crate) fn at(path: &str, headers: &HeaderMap) -> Option<Response> {
    let document = DOCUMENTS.iter().find(|document| document.path == path)?;
    let head = [(header::CONTENT_TYPE, document.content_type.clone()), (header::ETAG, document.etag.clone())];
    let known = headers.get_all(header::IF_NONE_MATCH).iter().any(|etag| *etag == document.etag);
    Some(match known {
        true => (StatusCode::NOT_MODIFIED, head, Body::empty()).into_response(),
        false => (head, document.text.clone()).into_response(),
    })
}

/// The list that the availability check reads, and clients that know no aggregated discovery.
fn resource_list() -> Value {
    let resources: Vec<_> = SUBRESOURCES
        .iter()
        .map(|it| {
            json!({
                "name": format!("agentruns/{}", it.name), "singularName": "", "namespaced": true,
                "group": GROUP, "version": VERSION, "kind": it.kind, "verbs": it.verbs,
            })
        })
        .collect();
    json!({
        "kind": "APIResourceList", "apiVersion": "v1",
        "groupVersion": format!("{GROUP}/{VERSION}"), "resources": resources,
    })
}

/// The aggregated discovery. The resource itself has an empty kind: clients then drop it, and `kubectl get agentruns`
/// still means the AgentRun of `dalsegno.dev`.
fn discovery() -> Value {
    let subresources: Vec<_> = SUBRESOURCES
        .iter()
        .map(|it| {
            json!({
                "subresource": it.name, "verbs": it.verbs,
                "responseKind": { "group": GROUP, "version": VERSION, "kind": it.kind },
            })
        })
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {},
        "items": [{
            "metadata": { "name": GROUP, "creationTimestamp": null },
            "versions": [{
                "version": VERSION, "freshness": "Current",
                "resources": [{
                    "resource": "agentruns", "scope": "Namespaced", "singularResource": "", "verbs": [],
                    "responseKind": { "group": "", "version": "", "kind": "" },
                    "subresources": subresources,
                }],
            }],
        }],
    })
}

/// An OpenAPI document without paths. The API server logs an error each minute where there is none.
fn openapi() -> Value {
    let info = json!({ "title": "Dal Segno", "version": env!("CARGO_PKG_VERSION") });
    json!({ "swagger": "2.0", "info": info, "paths": {} })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_sent_once_and_then_not_modified() {
        for path in ["/apis", "/apis/subresources.dalsegno.dev/v1alpha1", "/openapi/v2", "/openapi/v3"] {
            let first = at(path, &HeaderMap::new()).unwrap();
            assert_eq!(first.status(), StatusCode::OK, "{path}");
            let mut again = HeaderMap::new();
            again.insert(header::IF_NONE_MATCH, first.headers()[header::ETAG].clone());
            again.insert(header::ACCEPT, HeaderValue::from_static("application/vnd.kubernetes.protobuf"));
            assert_eq!(at(path, &again).unwrap().status(), StatusCode::NOT_MODIFIED, "{path}");
        }
        assert!(at("/apis/subresources.dalsegno.dev", &HeaderMap::new()).is_none());
    }

    #[test]
    fn the_discovery_has_no_kind_for_the_resource_and_one_for_each_subresource() {
        let discovery = discovery();
        let resource = &discovery["items"][0]["versions"][0]["resources"][0];
        assert_eq!(resource["responseKind"], json!({ "group": "", "version": "", "kind": "" }));
        let subresources = resource["subresources"].as_array().unwrap();
        assert_eq!(subresources.len(), SUBRESOURCES.len());
        assert!(subresources.iter().all(|it| it["responseKind"]["kind"].as_str().unwrap().len() > 3));
    }
}
