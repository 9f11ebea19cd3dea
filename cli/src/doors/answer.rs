//! Answers of either door, and what an error means for the user.

use bytes::Bytes;
use dalsegno_crds::names::SUBRESOURCES_GROUP;
use dalsegno_protocol::{Code, Problem};
use http::StatusCode;
use http_body_util::combinators::UnsyncBoxBody;
use serde_json::Value;

use super::document::Document;
use crate::failure::{Exit, Failure};

/// Any error of a body.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// The body of an answer.
pub type Body = UnsyncBoxBody<Bytes, BodyError>;

/// An answer of any status.
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its body.
    pub body: Body,
}

/// The failure that an answer means: a problem document of the gateway, or a Status of the API server.
pub fn failure(document: &Document<'_>, namespace: &str, (status, text): (StatusCode, &[u8])) -> Failure {
    let what = |detail: &str| format!("{} of {}/{}: {detail}", document.name, namespace, document.run);
    if let Ok(problem) = serde_json::from_slice::<Problem>(text) {
        if problem.code == Code::NotFound && problem.detail.contains("no such call") {
            return unknown_document(what("this version of Dal Segno does not have it"));
        }
        let (exit, next) = meaning(problem.code, document);
        return Failure::new(exit, what(&problem.detail), next);
    }
    let of_status: Option<Value> = serde_json::from_slice(text).ok();
    let message =
        of_status.as_ref().and_then(|it| it["message"].as_str()).unwrap_or("the answer has no explanation");
    match status.as_u16() {
        403 => Failure::new(Exit::Forbidden, what(message), right(document)),
        404 if of_status.is_none() => unknown_document(what("this version of Dal Segno does not have it")),
        code => Failure::of_status(&what("refused"), code, message),
    }
}

fn unknown_document(what: String) -> Failure {
    Failure::new(Exit::Failed, what, "use the plugin of the version that is installed in the cluster")
}

/// The exit code of a problem, and what to do next.
fn meaning(code: Code, document: &Document<'_>) -> (Exit, String) {
    let retry = || "repeat the command in a few seconds".to_owned();
    match code {
        Code::Forbidden => (Exit::Forbidden, right(document)),
        Code::Unauthenticated => (
            Exit::Forbidden,
            "check that the ServiceAccount of --service-account still exists, then repeat the command".to_owned(),
        ),
        Code::NotFound | Code::NoSuchWait => (
            Exit::NotFound,
            "check the names with `kubectl dalsegno list`, `turns` and `calls`; retention may have deleted the data".to_owned(),
        ),
        Code::TooManyRequests
        | Code::NotReady
        | Code::VersionPending
        | Code::StorageFull
        | Code::Unavailable
        | Code::Internal => (Exit::Unavailable, retry()),
        Code::TooManyMessages => {
            (Exit::Refused, "wait until the worker has read some messages, then repeat the command".to_owned())
        }
        Code::TooLarge => (Exit::Refused, "send less, or a reference to where the rest is stored".to_owned()),
        Code::CheckpointCorrupt => {
            (Exit::Failed, "restore the damaged rows of the store (docs/guides/backup.md)".to_owned())
        }
        Code::Finished => (
            Exit::Refused,
            format!("the run is over: look at it with `kubectl dalsegno status {}`", document.run),
        ),
        Code::Invalid
        | Code::Conflict
        | Code::Fenced
        | Code::AttemptSpent
        | Code::VersionIncompatible
        | Code::UnsettledCalls
        | Code::ApprovalNotGranted
        | Code::ApprovalSpent
        | Code::TooManyWaits => (
            Exit::Refused,
            format!("look at the run with `kubectl dalsegno status {}`, then do what the message says", document.run),
        ),
    }
}

fn right(document: &Document<'_>) -> String {
    format!(
        "ask an administrator for the right to agentruns/{} of the API group {SUBRESOURCES_GROUP}; the built-in role `edit` \
         has it. A new right may take 10 s",
        document.name
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(status: u16, text: &str) -> Failure {
        failure(
            &Document::new("nightly", "state"),
            "shop",
            (StatusCode::from_u16(status).unwrap(), text.as_bytes()),
        )
    }

    #[test]
    fn every_problem_of_the_gateway_leads_to_a_next_step() {
        for code in Code::ALL {
            let problem = serde_json::to_string(&Problem::new(code, "a detail")).unwrap();
            let failure = of(code.status(), &problem);
            assert!(failure.what.contains("a detail") && !failure.next.is_empty(), "{failure}");
            let is_temporary = failure.exit == Exit::Unavailable;
            assert!(!is_temporary || code.is_retryable(), "{code}");
        }
    }

    #[test]
    fn a_status_of_the_api_server_is_understood_and_so_is_plain_text() {
        let status = r#"{"kind":"Status","code":403,"message":"ann may not"}"#;
        assert_eq!(
            (of(403, status).exit, of(403, status).what.contains("ann may not")),
            (Exit::Forbidden, true)
        );
        assert_eq!(of(404, "404 page not found").exit, Exit::Failed);
        let no_such_call =
            serde_json::to_string(&Problem::new(Code::NotFound, "there is no such call; …")).unwrap();
        assert_eq!(of(404, &no_such_call).exit, Exit::Failed);
        assert_eq!(of(503, "upstream").exit, Exit::Unavailable);
    }
}
