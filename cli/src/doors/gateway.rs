//! The gateway, by a port-forward to one of its pods, with a short-lived token of a ServiceAccount.

use std::sync::Arc;

use bytes::Bytes;
use dalsegno_protocol::AUDIENCE;
use http::{Method, Request, header};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use kube::api::{Api, PostParams};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Mutex;
use tokio_rustls::TlsConnector;

use super::answer::{Answer, BodyError};
use super::forward::{Forwarded, ServiceName, Target};
use crate::failure::{Exit, Failure, Result};
use crate::session::Session;

/// Path of the gateway's documents for people.
pub const PREFIX: &str = "/v1";

/// The ConfigMap in the gateway's namespace with the CAs to trust, and its key.
const CA_CONFIG_MAP: &str = "dalsegno-ca";
const CA_KEY: &str = "ca.crt";

/// How long a token is valid, in seconds: the least that the API server grants.
const TOKEN_SECONDS: i64 = 600;

/// A pod of the gateway, and the user's token for it.
pub struct Gateway {
    target: Target,
    host: String,
    tls: Option<TlsConnector>,
    token: String,
    /// The connection of the last request. It is used again as long as it is open.
    connection: Mutex<Option<SendRequest<Full<Bytes>>>>,
}

impl Gateway {
    /// Finds the gateway, and requests a token.
    pub async fn find(session: &Session) -> Result<Self> {
        let service = ServiceName::parse(&session.global.gateway)?;
        let ca = match session.global.gateway_ca.as_deref() {
            Some(path) => Some(TrustedCa::read(path)?),
            None => TrustedCa::published(session, &service.namespace).await,
        };
        let target = Target::find(&session.client, &service, ca.is_some()).await?;
        let tls = match (&ca, target.is_tls) {
            (Some(ca), true) => Some(TlsConnector::from(Arc::new(ca.client_config()?))),
            // The file says that TLS is wanted, whatever the port is called.
            (Some(ca), false) if ca.is_given => Some(TlsConnector::from(Arc::new(ca.client_config()?))),
            (Some(_) | None, false) => None,
            (None, true) => {
                return Err(Failure::new(
                    Exit::NoDoor,
                    format!(
                        "the gateway {} speaks TLS, and its CA cannot be read from the ConfigMap {}/{CA_CONFIG_MAP}",
                        session.global.gateway, service.namespace
                    ),
                    "give the file of its CA by --gateway-ca",
                ));
            }
        };
        let token = token(session).await?;
        Ok(Self { target, host: service.dns(), tls, token, connection: Mutex::new(None) })
    }

    /// Sends a request.
    pub async fn send(&self, method: Method, path: &str, body: String) -> Result<Answer> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, &self.host)
            .header(header::AUTHORIZATION, format!("Bearer {}", self.token))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)));
        let request = request.map_err(|error| {
            Failure::new(Exit::Failed, format!("the request cannot be written: {error}"), "check the names")
        })?;
        let mut connection = self.connection.lock().await;
        let mut sender = match connection.take() {
            Some(open) if !open.is_closed() => open,
            Some(_) | None => self.connect().await?,
        };
        // An answer that was not read to its end keeps its connection.
        if sender.ready().await.is_err() {
            sender = self.connect().await?;
        }
        let answer = sender.send_request(request).await.map_err(|error| lost(&error))?;
        *connection = Some(sender);
        let (parts, body) = answer.into_parts();
        let body = body.map_err(|error| -> BodyError { Box::new(error) }).boxed_unsync();
        Ok(Answer { status: parts.status, body })
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>> {
        let Forwarded { stream, keeper } = self.target.connect().await?;
        let Some(tls) = &self.tls else { return start(stream, keeper).await };
        let name = ServerName::try_from(self.host.clone()).map_err(|error| lost(&error))?;
        let stream = tls.connect(name, stream).await.map_err(|error| {
            Failure::new(
                Exit::NoDoor,
                format!("the gateway's certificate is not accepted: {error}"),
                "check that --gateway-ca is the CA of this cluster's gateway",
            )
        })?;
        start(stream, keeper).await
    }
}

/// Starts HTTP on a stream. The connection is driven until the sender is dropped.
async fn start<S>(stream: S, keeper: kube::api::Portforwarder) -> Result<SendRequest<Full<Bytes>>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|error| lost(&error))?;
    tokio::spawn(async move {
        // Its error is that of the request that was under way.
        let _ = connection.await;
        drop(keeper);
    });
    Ok(sender)
}

fn lost(error: &dyn std::error::Error) -> Failure {
    Failure::new(
        Exit::Unavailable,
        format!("the connection to the gateway is lost: {}", crate::failure::chain(error)),
        "repeat the command in a few seconds",
    )
}

/// The CAs that the gateway's certificate must be of.
struct TrustedCa {
    pem: Vec<u8>,
    /// Where they come from, for errors.
    source: String,
    /// Whether the user has named the file.
    is_given: bool,
}

impl TrustedCa {
    fn read(path: &std::path::Path) -> Result<Self> {
        let pem = std::fs::read(path).map_err(|error| Failure::of_file("reading the CA", path, &error))?;
        Ok(Self { pem, source: path.display().to_string(), is_given: true })
    }

    /// Those that the operator publishes beside the gateway. `None`: there are none, or the user may not read them.
    async fn published(session: &Session, namespace: &str) -> Option<Self> {
        let api: Api<ConfigMap> = Api::namespaced(session.client.clone(), namespace);
        let found = api.get_opt(CA_CONFIG_MAP).await.ok()??;
        let pem = found.data?.remove(CA_KEY)?.into_bytes();
        Some(Self { pem, source: format!("the ConfigMap {namespace}/{CA_CONFIG_MAP}"), is_given: false })
    }

    /// TLS that trusts these CAs, and no others.
    fn client_config(&self) -> Result<ClientConfig> {
        let invalid = |why: String| {
            Failure::usage(
                format!("{} holds no CA: {why}", self.source),
                "give a file with the CA's certificate in PEM by --gateway-ca",
            )
        };
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&self.pem) {
            let certificate = certificate.map_err(|error| invalid(error.to_string()))?;
            roots.add(certificate).map_err(|error| invalid(error.to_string()))?;
        }
        if roots.is_empty() {
            return Err(invalid("it has no certificate".to_owned()));
        }
        Ok(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth())
    }
}

/// A token of the ServiceAccount that the user names, or that the user is.
async fn token(session: &Session) -> Result<String> {
    let (namespace, name) = account(session).await?;
    let accounts: Api<ServiceAccount> = Api::namespaced(session.client.clone(), &namespace);
    let request = TokenRequest {
        spec: Some(TokenRequestSpec {
            audiences: Some(vec![AUDIENCE.to_owned()]),
            expiration_seconds: Some(TOKEN_SECONDS),
            ..TokenRequestSpec::default()
        }),
        ..TokenRequest::default()
    };
    let denied = |why: String| {
        Failure::new(
            Exit::NoDoor,
            format!("there is no token for the gateway: {why}"),
            format!(
                "name another account by --service-account, or ask an administrator for the right to `create` \
                 serviceaccounts/token of {name} in the namespace {namespace}"
            ),
        )
    };
    let answer = accounts.create_token_request(&name, &PostParams::default(), &request).await;
    let answer = answer.map_err(|error| match &error {
        kube::Error::Api(status) => denied(status.message.clone()),
        error => Failure::of_api("requesting a token", error),
    })?;
    let token = answer.status.and_then(|it| it.token).filter(|it| !it.is_empty());
    token.ok_or_else(|| denied("the API server returned none".to_owned()))
}

/// Namespace and name of the ServiceAccount.
async fn account(session: &Session) -> Result<(String, String)> {
    if let Some(named) = &session.global.service_account {
        let (namespace, name) = named.split_once('/').unwrap_or((&session.namespace, named));
        return Ok((namespace.to_owned(), name.to_owned()));
    }
    let user = session.user().await?;
    let own = user.strip_prefix("system:serviceaccount:").and_then(|it| it.split_once(':'));
    own.map(|(namespace, name)| (namespace.to_owned(), name.to_owned())).ok_or_else(|| {
        let namespace = &session.namespace;
        Failure::new(
            Exit::NoDoor,
            format!(
                "there is no door to what the run has committed: the aggregated API is not registered, and the gateway \
                 takes tokens of ServiceAccounts only, while you are {user:?}"
            ),
            format!(
                "name an account with rights to the runs by --service-account. Once, as an administrator: `kubectl create \
                 serviceaccount me -n {namespace}`, then `kubectl create rolebinding me -n {namespace} --clusterrole edit \
                 --serviceaccount {namespace}:me`"
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ca_that_is_none_is_refused_and_says_where_it_is_from() {
        for pem in ["", "no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            let ca = TrustedCa { pem: pem.into(), source: "ca.crt".into(), is_given: true };
            let failure = ca.client_config().unwrap_err();
            assert!(
                failure.what.starts_with("ca.crt holds no CA") && failure.exit == Exit::Usage,
                "{failure}"
            );
        }
        let missing = TrustedCa::read(std::path::Path::new("/no/such/ca.crt"));
        assert!(missing.is_err_and(|failure| failure.what.contains("/no/such/ca.crt")));
    }
}
