//! TLS of a listener: its certificate, which may be replaced at any time, and the handshake.
//!
//! # Guarantees
//!
//! - A new connection gets the newest configuration. Open connections keep the one that they began with.
//! - No session is resumed: a resumed session would restore a client's certificates without verifying them again.
//! - A client that speaks plain HTTP gets an answer that says what to do.
//!
//! # Assumptions
//!
//! - Whoever awaits [`Acceptor::accept`] bounds its time and counts the connection.

use std::fmt;
use std::io;
use std::sync::Arc;

use dalsegno_protocol::Code;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ContentType, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::limits::refused_connection;
use crate::response::ApiProblem;

/// Bytes that TLS buffers of one connection before its peer reads them.
const BUFFER: usize = 32 << 10;

/// How a listener speaks with its peers.
#[derive(Clone, Debug)]
pub enum Transport {
    /// Plain HTTP.
    Plain,
    /// Plain HTTP for the workers that were started before the gateway had TLS. While the value is false, every request is
    /// refused with the advice to use TLS, and may be sent again.
    Legacy(watch::Receiver<bool>),
    /// TLS.
    Tls(Acceptor),
}

/// Accepts TLS with the newest of the given configurations.
#[derive(Clone, Debug)]
pub struct Acceptor {
    configs: watch::Receiver<Option<Arc<ServerConfig>>>,
}

/// The certificates that the peer of a connection has proved to own, its own one first. A request carries them as an
/// extension if the listener asks for them.
#[derive(Clone, Debug)]
pub struct PeerCertificates(pub Arc<[CertificateDer<'static>]>);

/// Why no server configuration can be made.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The certificates are not PEM.
    #[error("the certificates are not valid PEM")]
    Certificates(#[source] pem::Error),
    /// The key is not PEM.
    #[error("the private key is not valid PEM")]
    Key(#[source] pem::Error),
    /// The certificate and the key cannot be used, for example because they do not belong together.
    #[error("the certificate cannot be used with the private key")]
    Unusable(#[source] rustls::Error),
}

/// Why a connection has no TLS session.
#[derive(Debug)]
pub(crate) enum HandshakeError {
    /// The peer closed the connection, or it failed.
    Io(io::Error),
    /// The peer does not speak TLS. It got an answer in plain HTTP.
    NotTls,
    /// The peer and the gateway cannot agree, for example because the peer does not trust the certificate.
    Failed(io::Error),
    /// There is no certificate yet.
    NoCertificate,
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "the connection failed before its TLS handshake: {error}"),
            Self::NotTls => write!(f, "the peer does not speak TLS"),
            Self::Failed(error) => write!(f, "the TLS handshake failed: {error}"),
            Self::NoCertificate => write!(f, "there is no certificate yet"),
        }
    }
}

impl std::error::Error for HandshakeError {}

impl Acceptor {
    /// `configs`: the newest configuration; `None` until there is one.
    pub fn new(configs: watch::Receiver<Option<Arc<ServerConfig>>>) -> Self {
        Self { configs }
    }

    /// Whether there is a certificate.
    pub fn has_certificate(&self) -> bool {
        self.configs.borrow().is_some()
    }

    /// Waits for the first byte of a connection. It is ready without a TLS handshake under way, so that the connection is
    /// idle until then.
    ///
    /// # Errors
    ///
    /// - The connection failed, or its peer closed it.
    /// - Its peer does not speak TLS; then it got an answer.
    pub(crate) async fn peek(&self, connection: TcpStream) -> Result<TcpStream, HandshakeError> {
        let mut first = [0];
        match connection.peek(&mut first).await {
            Ok(0) => Err(HandshakeError::Io(io::ErrorKind::UnexpectedEof.into())),
            Err(error) => Err(HandshakeError::Io(error)),
            Ok(_) if first[0] == u8::from(ContentType::Handshake) => Ok(connection),
            Ok(_) => {
                // Its peer is refused either way.
                let _ = refused_connection::send(connection, &plain_answer()).await;
                Err(HandshakeError::NotTls)
            }
        }
    }

    /// Does the handshake.
    ///
    /// # Errors
    ///
    /// There is no session.
    pub(crate) async fn accept<S>(&self, stream: S) -> Result<TlsStream<S>, HandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let config = self.configs.borrow().clone().ok_or(HandshakeError::NoCertificate)?;
        let accepting = TlsAcceptor::from(config).accept_with(stream, |session| {
            session.set_buffer_limit(Some(BUFFER));
        });
        accepting.await.map_err(HandshakeError::Failed)
    }
}

impl PeerCertificates {
    /// Those of a session, if its peer has shown any.
    pub(crate) fn of<S>(stream: &TlsStream<S>) -> Option<Self> {
        let (_, session) = stream.get_ref();
        let chain = session.peer_certificates()?;
        Some(Self(chain.iter().map(|it| it.clone().into_owned()).collect()))
    }
}

/// A configuration for workers and users: no client certificates.
///
/// # Errors
///
/// The certificates or the key cannot be used.
pub fn server_config(chain: &[u8], key: &[u8]) -> Result<Arc<ServerConfig>, CertificateError> {
    server_config_with(chain, key, WebPkiClientVerifier::no_client_auth())
}

/// A configuration whose clients `clients` verifies. `chain`: the certificate and what leads to its CA, in PEM. `key`: its
/// private key, in PEM.
///
/// # Errors
///
/// The certificates or the key cannot be used.
pub fn server_config_with(
    chain: &[u8],
    key: &[u8],
    clients: Arc<dyn ClientCertVerifier>,
) -> Result<Arc<ServerConfig>, CertificateError> {
    let chain = CertificateDer::pem_slice_iter(chain).collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(CertificateError::Certificates)?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(CertificateError::Key)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|it| it.with_client_cert_verifier(clients).with_single_cert(chain, key))
        .map_err(CertificateError::Unusable)?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// The detail of the problem that answers a request without TLS.
const TLS_REQUIRED: &str = "the gateway speaks TLS: use https:// with the port of DALSEGNO_URL, and verify its certificate with the CA in \
     DALSEGNO_CA_FILE; a worker that was started with an http:// URL must be started again";

/// The problem of a request to a closed [`Transport::Legacy`]. A worker sends it again: if the operator did not know of the
/// worker, it opens the port as soon as it does.
pub(crate) fn legacy_closed() -> ApiProblem {
    ApiProblem::new(Code::Unavailable, TLS_REQUIRED)
}

/// The answer to plain HTTP at the port of TLS, which stays wrong.
fn plain_answer() -> String {
    refused_connection::response("400 Bad Request", &ApiProblem::new(Code::Invalid, TLS_REQUIRED))
}
