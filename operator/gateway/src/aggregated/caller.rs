//! The person whom the API server has authenticated, from the headers that its front proxy sets.

use axum::http::{HeaderMap, HeaderName};

use super::trust::IdentityHeaders;

/// Where Kubernetes notes the pod that a token is bound to.
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";

/// The id that the API server's audit log has of a request.
const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

/// Most characters of that id. Kubernetes cuts it at 64.
const AUDIT_ID_CHARS: usize = 128;

/// A person, as the API server's front proxy names them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FrontProxyUser {
    /// The user name.
    pub(crate) name: String,
    /// UID of the pod that the person's token is bound to, if it is bound to one.
    pub(crate) pod_uid: Option<String>,
    /// The id of the request in the API server's audit log.
    pub(crate) audit_id: Option<String>,
}

impl FrontProxyUser {
    /// Reads the headers of a request whose client certificate is the front proxy's. `None`: they name no user, or more
    /// than one.
    pub(crate) fn from_headers(headers: &HeaderMap, names: &IdentityHeaders) -> Option<Self> {
        let present = names.user.iter().find(|name| headers.contains_key(*name))?;
        let mut users = headers.get_all(present).iter();
        let name = users.next()?.to_str().ok().filter(|name| !name.is_empty())?.to_owned();
        if users.next().is_some() {
            return None;
        }
        Some(Self { name, pod_uid: pod_uid(headers, names)?, audit_id: audit_id(headers) })
    }
}

/// The pod's UID; `None`: the headers name more than one pod, or what they name cannot be read.
fn pod_uid(headers: &HeaderMap, names: &IdentityHeaders) -> Option<Option<String>> {
    let mut found = None;
    for (header, value) in headers {
        let Some(key) = names.extra_prefixes.iter().find_map(|it| header.as_str().strip_prefix(it.as_str()))
        else {
            continue;
        };
        if unescaped(key)? != POD_UID {
            continue;
        }
        let value = value.to_str().ok()?.to_owned();
        if found.replace(value).is_some() {
            return None;
        }
    }
    Some(found)
}

/// Decodes a percent-escaped key of `extra`; `None`: it is not valid.
fn unescaped(key: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(key.len());
    let mut rest = key.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || char::from(rest.next()?).to_digit(16);
        bytes.push(u8::try_from(digit()? << 4 | digit()?).ok()?);
    }
    String::from_utf8(bytes).ok().map(|key| key.to_ascii_lowercase())
}

fn audit_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(AUDIT_ID)?.to_str().ok()?;
    ((1..=AUDIT_ID_CHARS).contains(&id.len()) && id.bytes().all(|it| it.is_ascii_graphic()))
        .then(|| id.to_owned())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn names() -> IdentityHeaders {
        IdentityHeaders {
            user: vec![HeaderName::from_static("x-remote-user")],
            extra_prefixes: vec!["x-remote-extra-".into()],
        }
    }

    fn read(headers: &[(&'static str, &'static str)]) -> Option<FrontProxyUser> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(name.parse::<HeaderName>().unwrap(), HeaderValue::from_static(value));
        }
        FrontProxyUser::from_headers(&map, &names())
    }

    #[test]
    fn a_user_has_a_name_and_perhaps_a_pod_and_an_audit_id() {
        let user = |pod: Option<&str>, id: Option<&str>| {
            Some(FrontProxyUser {
                name: "ada".into(),
                pod_uid: pod.map(Into::into),
                audit_id: id.map(Into::into),
            })
        };
        assert_eq!(read(&[("x-remote-user", "ada")]), user(None, None));
        assert_eq!(
            read(&[
                ("x-remote-user", "ada"),
                ("x-remote-extra-authentication.kubernetes.io%2fpod-uid", "uid-1"),
                ("x-remote-extra-authentication.kubernetes.io%2Fpod-name", "pod-1"),
                ("audit-id", "5f0e"),
            ]),
            user(Some("uid-1"), Some("5f0e"))
        );
        assert_eq!(read(&[("x-remote-user", "ada"), ("audit-id", "a b")]), user(None, None));
    }

    #[test]
    fn headers_that_name_nobody_or_two_are_refused() {
        let pod = "x-remote-extra-authentication.kubernetes.io%2fpod-uid";
        for headers in [
            &[][..],
            &[("x-remote-user", "")],
            &[("x-remote-user", "ada"), ("x-remote-user", "root")],
            &[("x-forwarded-user", "ada")],
            &[("x-remote-user", "ada"), (pod, "uid-1"), (pod, "uid-2")],
            &[("x-remote-user", "ada"), ("x-remote-extra-a%zz", "1")],
        ] {
            assert_eq!(read(headers), None, "{headers:?}");
        }
    }
}
