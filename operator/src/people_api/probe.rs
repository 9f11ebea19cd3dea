//! Whether a gateway serves the certificate that the registration's CAs verify.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use dalsegno_crds::names;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::api_service::SERVICE_PORT;

/// Time for a connection and its handshake.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Connects to the Service as the API server will, and verifies the certificate. Without a certificate of its own: with
/// TLS 1.3 the handshake of a client is complete once it has verified the server.
///
/// # Errors
///
/// No gateway serves a certificate that these CAs, in PEM, verify for the name of the Service.
pub async fn expect_certificate(namespace: &str, ca_bundle: &str) -> anyhow::Result<()> {
    let host = format!("{}.{namespace}.svc", names::AGGREGATED_SERVICE);
    let mut roots = RootCertStore::empty();
    for ca in CertificateDer::pem_slice_iter(ca_bundle.as_bytes()) {
        roots.add(ca.context("reading the bundle of CAs")?).context("reading the bundle of CAs")?;
    }
    let config = ClientConfig::builder_with_provider(default_provider().into())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .context("configuring TLS")?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(host.clone()).context("the name of the Service")?;
    let connect = async {
        let connection = TcpStream::connect((host.as_str(), SERVICE_PORT as u16)).await?;
        TlsConnector::from(Arc::new(config)).connect(name, connection).await
    };
    tokio::time::timeout(TIMEOUT, connect)
        .await
        .context("no gateway answered in time")?
        .map(drop)
        .with_context(|| format!("no gateway serves a certificate for {host}"))
}
