//! An https URL of somebody else's server.

use std::str::FromStr;

use axum::http::Uri;
use rustls::pki_types::ServerName;

/// Port of https.
const PORT: u16 = 443;

/// An https URL, in the parts that a request needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpsUrl {
    /// Name or address of the host, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Host and port, as in the URL.
    pub authority: String,
    /// Path and query.
    pub path: String,
    /// The name that the server's certificate must have.
    pub server_name: ServerName<'static>,
}

impl FromStr for HttpsUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let uri: Uri = text.parse().map_err(|_| "it is no URL".to_owned())?;
        if uri.scheme_str() != Some("https") {
            return Err("it must begin with https://".to_owned());
        }
        let authority = uri.authority().ok_or_else(|| "it names no host".to_owned())?;
        if authority.as_str().contains('@') {
            return Err("it must contain no user and no password".to_owned());
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let server_name =
            ServerName::try_from(host.clone()).map_err(|_| "its host has no valid name".to_owned())?;
        Ok(Self {
            port: authority.port_u16().unwrap_or(PORT),
            authority: authority.to_string(),
            path: uri.path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string),
            host,
            server_name,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_https_and_has_no_password() {
        let parts = |text: &str| {
            let HttpsUrl { host, port, path, .. } = text.parse().unwrap();
            (host, port, path)
        };
        assert_eq!(
            parts("https://hooks.example.com/a?c=d"),
            ("hooks.example.com".into(), 443, "/a?c=d".into())
        );
        assert_eq!(parts("https://[2001:db8::1]:8443"), ("2001:db8::1".into(), 8443, "/".into()));
        for text in [
            "http://hooks.example.com/",
            "hooks.example.com",
            "/path",
            "https://me:pw@hooks.example.com/",
            "ftp://a/",
        ] {
            assert!(text.parse::<HttpsUrl>().is_err(), "{text}");
        }
    }
}
