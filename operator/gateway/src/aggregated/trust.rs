//! Whom the aggregated API trusts: the API server's front proxy, as the ConfigMap
//! `kube-system/extension-apiserver-authentication` describes it.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::http::HeaderName;
use rustls::RootCertStore;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// Key of the CA of ordinary client certificates.
const CLIENT_CA: &str = "client-ca-file";
/// Key of the CA of the front proxy's certificate.
const PROXY_CA: &str = "requestheader-client-ca-file";
const ALLOWED_NAMES: &str = "requestheader-allowed-names";
const USER_HEADERS: &str = "requestheader-username-headers";
const EXTRA_PREFIXES: &str = "requestheader-extra-headers-prefix";

/// How the front proxy proves itself, and how it names the person.
#[derive(Debug)]
pub struct RequestHeaderTrust {
    /// Verifies the chain and the usage of a client certificate.
    pub(crate) verifier: Arc<dyn ClientCertVerifier>,
    /// Common names that the certificate may have. Empty: any.
    allowed_names: Vec<String>,
    pub(crate) headers: IdentityHeaders,
}

/// The headers that name a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IdentityHeaders {
    /// Headers with the user name. The first one that a request has counts.
    pub(crate) user: Vec<HeaderName>,
    /// Prefixes of headers with more about the user, in lower case.
    pub(crate) extra_prefixes: Vec<String>,
}

/// Why the aggregated API is not served.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The API server has no front proxy.
    #[error("the ConfigMap extension-apiserver-authentication has no {0}: the API server has no front proxy")]
    Missing(&'static str),
    /// A value cannot be read.
    #[error("the value {0} of the ConfigMap extension-apiserver-authentication cannot be used: {1}")]
    Invalid(&'static str, String),
    /// Everybody with a client certificate of the cluster could name any user.
    #[error(
        "the CA of the front proxy is also the CA of ordinary clients, and requestheader-allowed-names is empty: every \
         client with a certificate could pretend to be anybody"
    )]
    AnyClient,
}

impl RequestHeaderTrust {
    /// Reads the data of the ConfigMap.
    ///
    /// # Errors
    ///
    /// A value is missing or cannot be read, or the values would let any client of the cluster act as anybody.
    pub fn from_config_map(data: &BTreeMap<String, String>) -> Result<Self, TrustError> {
        let cas = certificates(data, PROXY_CA)?;
        if cas.is_empty() {
            return Err(TrustError::Missing(PROXY_CA));
        }
        let allowed_names = list(data, ALLOWED_NAMES)?;
        let clients = certificates(data, CLIENT_CA)?;
        if allowed_names.is_empty() && cas.iter().any(|ca| clients.contains(ca)) {
            return Err(TrustError::AnyClient);
        }
        let user: Result<Vec<HeaderName>, _> =
            list(data, USER_HEADERS)?.iter().map(|it| it.parse()).collect();
        let user = user.map_err(|error| TrustError::Invalid(USER_HEADERS, format!("{error}")))?;
        if user.is_empty() {
            return Err(TrustError::Missing(USER_HEADERS));
        }
        let extra_prefixes = list(data, EXTRA_PREFIXES)?.iter().map(|it| it.to_ascii_lowercase()).collect();
        let headers = IdentityHeaders { user, extra_prefixes };
        Ok(Self { verifier: verifier(cas)?, allowed_names, headers })
    }

    /// Whether a verified client certificate has an allowed name.
    pub(crate) fn allows(&self, certificate: &CertificateDer<'_>) -> bool {
        if self.allowed_names.is_empty() {
            return true;
        }
        let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return false };
        let mut names = certificate.subject().iter_common_name().filter_map(|name| name.as_str().ok());
        // A subject with two common names is no front proxy's: which of them counts is not defined.
        let (name, second) = (names.next(), names.next());
        second.is_none() && name.is_some_and(|name| self.allowed_names.iter().any(|it| it == name))
    }
}

fn verifier(cas: Vec<CertificateDer<'static>>) -> Result<Arc<dyn ClientCertVerifier>, TrustError> {
    let invalid = |error: &dyn std::fmt::Display| TrustError::Invalid(PROXY_CA, error.to_string());
    let mut roots = RootCertStore::empty();
    for ca in cas {
        roots.add(ca).map_err(|error| invalid(&error))?;
    }
    // Strangers do not learn the names of the cluster's CAs.
    WebPkiClientVerifier::builder_with_provider(roots.into(), default_provider().into())
        .clear_root_hint_subjects()
        .build()
        .map_err(|error| invalid(&error))
}

/// The certificates of a value; none if it is missing.
fn certificates(
    data: &BTreeMap<String, String>,
    key: &'static str,
) -> Result<Vec<CertificateDer<'static>>, TrustError> {
    let text = data.get(key).map(String::as_str).unwrap_or_default();
    CertificateDer::pem_slice_iter(text.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|error| TrustError::Invalid(key, error.to_string()))
}

/// The texts of a value, which is a list in JSON; none if it is missing.
fn list(data: &BTreeMap<String, String>, key: &'static str) -> Result<Vec<String>, TrustError> {
    let text = data.get(key).map(String::as_str).unwrap_or_default();
    match text.trim() {
        "" => Ok(Vec::new()),
        text => serde_json::from_str(text).map_err(|error| TrustError::Invalid(key, error.to_string())),
    }
}
