//! The paths of the aggregated API. The API server has authorized what it read from the path, so anything that this
//! program could read otherwise is not answered.

use super::documents::{GROUP, VERSION};

/// Whether each segment of a path means itself: no segment is empty, `.` or `..`, and nothing is percent-encoded. The
/// names of Kubernetes need no encoding.
pub(crate) fn is_plain(path: &str) -> bool {
    let is_plain_segment = |segment: &str| {
        !matches!(segment, "" | "." | "..")
            && segment.bytes().all(|it| it.is_ascii_alphanumeric() || matches!(it, b'-' | b'.' | b'_'))
    };
    path.strip_prefix('/').is_some_and(|rest| rest.split('/').all(is_plain_segment))
}

/// The route of a call. It matches paths of exactly these segments.
pub(crate) fn route(call: &str) -> String {
    format!("/apis/{GROUP}/{VERSION}/namespaces/{{namespace}}/agentruns/{{name}}/{call}")
}

/// The name of the run that a path is about, for errors.
pub(crate) fn run_name(path: &str) -> Option<&str> {
    path.split('/').nth(7)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_segments_that_mean_themselves_are_plain() {
        let path = "/apis/subresources.dalsegno.dev/v1alpha1/namespaces/shop/agentruns/nightly/memory-delta";
        assert!(is_plain(path));
        assert_eq!(run_name(path), Some("nightly"));
        for path in [
            "",
            "/",
            "apis",
            "/apis/",
            "//apis",
            "/apis//v1",
            "/apis/./v1",
            "/apis/../v1",
            "/apis/..",
            "/apis/a%2Fb",
            "/apis/%2e%2e/v1",
            "/apis/a\\b",
            "/apis/a;b",
            "/apis/a b",
            "/apis/é",
        ] {
            assert!(!is_plain(path), "{path}");
        }
    }
}
