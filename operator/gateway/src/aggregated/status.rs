//! Errors as `metav1.Status`, so that kubectl prints their message.

use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use dalsegno_protocol::{Code, Problem};
use serde_json::json;

use super::documents::GROUP;
use super::paths::run_name;
use crate::response::{ApiProblem, JSON};

/// The response of a handler; a problem as a Status. `path`: of the request.
pub(crate) fn from_response(response: Response, path: &str) -> Response {
    let Some(problem) = response.extensions().get::<Problem>().cloned() else { return response };
    let (mut head, _) = response.into_parts();
    let body = body(&problem, path, &head.headers);
    head.headers.insert(header::CONTENT_TYPE, JSON);
    head.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(head, body.into())
}

/// A problem that no handler has found.
pub(crate) fn of(code: Code, detail: &str, path: &str) -> Response {
    from_response(ApiProblem::new(code, detail).into_response(), path)
}

fn body(problem: &Problem, path: &str, headers: &HeaderMap) -> Vec<u8> {
    let Problem { kind: _, status, code, detail, committed: _ } = problem;
    let retry_after = headers.get(header::RETRY_AFTER).and_then(|it| it.to_str().ok()?.parse::<u32>().ok());
    let mut status_object = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": status,
        "reason": reason(*status), "message": detail,
        "details": {
            "group": GROUP, "kind": "agentruns",
            "causes": [{ "reason": code, "message": detail }],
        },
    });
    let details = &mut status_object["details"];
    if let Some(name) = run_name(path) {
        details["name"] = name.into();
    }
    if let Some(seconds) = retry_after {
        details["retryAfterSeconds"] = seconds.into();
    }
    status_object.to_string().into_bytes()
}

/// The reason that clients of Kubernetes know for an HTTP status.
fn reason(status: u16) -> &'static str {
    match StatusCode::from_u16(status) {
        Ok(StatusCode::BAD_REQUEST) => "BadRequest",
        Ok(StatusCode::UNAUTHORIZED) => "Unauthorized",
        Ok(StatusCode::FORBIDDEN) => "Forbidden",
        Ok(StatusCode::NOT_FOUND) => "NotFound",
        Ok(StatusCode::CONFLICT) => "Conflict",
        Ok(StatusCode::PAYLOAD_TOO_LARGE) => "RequestEntityTooLarge",
        Ok(StatusCode::TOO_MANY_REQUESTS) => "TooManyRequests",
        Ok(StatusCode::SERVICE_UNAVAILABLE) => "ServiceUnavailable",
        _ => "InternalError",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[tokio::test]
    async fn a_problem_is_a_status_with_its_code_as_the_cause() {
        let path = "/apis/subresources.dalsegno.dev/v1alpha1/namespaces/shop/agentruns/nightly/state";
        let response = of(Code::Unavailable, "the store is away", path);
        assert_eq!(
            (response.status().as_u16(), &response.headers()["retry-after"]),
            (503, &"1".parse().unwrap())
        );
        assert_eq!(response.headers()["content-type"], "application/json");
        let bytes = axum::body::to_bytes(response.into_body(), 10_000).await.unwrap();
        let status: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(
            status,
            json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 503,
                "reason": "ServiceUnavailable", "message": "the store is away",
                "details": {
                    "group": "subresources.dalsegno.dev", "kind": "agentruns", "name": "nightly",
                    "causes": [{ "reason": "UNAVAILABLE", "message": "the store is away" }],
                    "retryAfterSeconds": 1,
                },
            })
        );
    }

    #[test]
    fn every_code_has_a_reason() {
        for code in Code::ALL {
            assert_eq!(reason(code.status()) == "InternalError", code == Code::Internal, "{code}");
        }
    }
}
