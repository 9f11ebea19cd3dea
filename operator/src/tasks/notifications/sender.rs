//! Sends one message over HTTPS.
//!
//! # Guarantees
//!
//! - Only https. A redirect is not followed: it is a failure.
//! - The name is resolved for each message, and an address is used only if [`refusal`] allows it. The connection is made to
//!   that address, so that a second resolution cannot change it.
//! - A message takes at most [`TIMEOUT`] in all.
//! - Of the answer only the status is read. Its body is neither kept nor logged.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::http::header::{CONTENT_TYPE, HOST, USER_AGENT};
use axum::http::{Method, Request, StatusCode};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore};
use thiserror::Error;
use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use uuid::Uuid;

use super::message::Secrets;
use crate::config::HttpsUrl;

/// From the resolution of the name to the status of the answer.
pub const TIMEOUT: Duration = Duration::from_secs(5);

/// For one address of several.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Why a message was not delivered. No variant holds anything of an answer but its status.
#[derive(Debug, Error)]
pub enum SendError {
    /// The secret cannot be used.
    #[error("the secret that signs cannot be used: {0:#}")]
    Secret(anyhow::Error),
    /// The name has no address.
    #[error("the name cannot be resolved")]
    Resolve(#[source] std::io::Error),
    /// No address of the name is allowed.
    #[error("nothing is sent to {address}: {why}")]
    Refused {
        /// An address of the name.
        address: IpAddr,
        /// Why.
        why: &'static str,
    },
    /// There is no connection.
    #[error("no connection with {address}")]
    Connect {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// There is no TLS session.
    #[error("no TLS session")]
    Tls(#[source] std::io::Error),
    /// The exchange broke off.
    #[error("the exchange broke off")]
    Http(#[source] hyper::Error),
    /// The answer is no success.
    #[error("the answer is {0}")]
    Status(StatusCode),
    /// It took too long.
    #[error("no answer within 5 s")]
    Timeout,
}

/// Whether nothing is sent to an address, and why.
pub type AddressCheck = Box<dyn Fn(IpAddr) -> Option<&'static str> + Send + Sync>;

/// Sends messages to one receiver.
pub struct Sender {
    target: HttpsUrl,
    secret_file: PathBuf,
    tls: TlsConnector,
    check: AddressCheck,
}

impl Sender {
    /// `roots`: the certificate authorities that a receiver's certificate may be from. `secret_file`: is read for each
    /// message, so that a replaced secret is used at once.
    ///
    /// # Errors
    ///
    /// TLS cannot be configured.
    pub fn new(
        target: HttpsUrl,
        secret_file: PathBuf,
        roots: RootCertStore,
        check: AddressCheck,
    ) -> Result<Self, rustls::Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self { target, secret_file, tls: TlsConnector::from(Arc::new(config)), check })
    }

    /// Sends a message with this id and body.
    ///
    /// # Errors
    ///
    /// It was not delivered, or it is not known whether it was.
    pub async fn send(&self, id: Uuid, timestamp: i64, body: String) -> Result<(), SendError> {
        timeout(TIMEOUT, self.exchange(id, timestamp, body)).await.unwrap_or(Err(SendError::Timeout))
    }

    async fn exchange(&self, id: Uuid, timestamp: i64, body: String) -> Result<(), SendError> {
        let HttpsUrl { authority, path, server_name, .. } = &self.target;
        let secrets = tokio::fs::read_to_string(&self.secret_file).await.map_err(anyhow::Error::from);
        let secrets = secrets.and_then(|text| Secrets::parse(&text)).map_err(SendError::Secret)?;
        let stream = self.connect().await?;
        let stream = self.tls.connect(server_name.clone(), stream).await.map_err(SendError::Tls)?;
        let (mut sender, connection) =
            http1::handshake::<_, Full<Bytes>>(TokioIo::new(stream)).await.map_err(SendError::Http)?;
        let signature = secrets.sign(id, timestamp, &body);
        let request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header(HOST, authority)
            .header(USER_AGENT, concat!("dalsegno/", env!("CARGO_PKG_VERSION")))
            .header(CONTENT_TYPE, "application/cloudevents+json; charset=utf-8")
            .header("webhook-id", id.to_string())
            .header("webhook-timestamp", timestamp)
            .header("webhook-signature", signature)
            .body(Full::from(body));
        // All parts of the request are valid: the target was parsed, and the others are numbers and base64.
        let request = request.map_err(|error| SendError::Secret(error.into()))?;
        // The connection ends with this function, so the body of the answer is never read.
        let mut connections = JoinSet::new();
        connections.spawn(connection);
        let response = sender.send_request(request).await.map_err(SendError::Http)?;
        match response.status() {
            status if status.is_success() => Ok(()),
            status => Err(SendError::Status(status)),
        }
    }

    /// A connection with the first address of the receiver that is allowed and can be reached.
    async fn connect(&self) -> Result<TcpStream, SendError> {
        let HttpsUrl { host, port, .. } = &self.target;
        let addresses = lookup_host((host.as_str(), *port)).await.map_err(SendError::Resolve)?;
        let mut failure = SendError::Resolve(std::io::ErrorKind::NotFound.into());
        for address in addresses {
            if let Some(why) = (self.check)(address.ip()) {
                failure = SendError::Refused { address: address.ip(), why };
                continue;
            }
            let connected = timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await;
            match connected.unwrap_or_else(|elapsed| Err(elapsed.into())) {
                Ok(stream) => return Ok(stream),
                Err(source) => failure = SendError::Connect { address, source },
            }
        }
        Err(failure)
    }
}
