//! The way to a gateway from outside of the cluster: its Service's name leads to a pod's address, and the CA of a worker's
//! pod verifies it.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::Result;

/// How the host and the port of a URL are reached.
#[derive(Clone, Debug)]
pub struct Route {
    /// Address of one of the Service's pods.
    pub address: SocketAddr,
    /// The CAs to trust, in PEM. `None`: plain HTTP.
    pub ca: Option<String>,
}

static ROUTES: Mutex<Option<HashMap<String, Route>>> = Mutex::new(None);

/// Uses this route for requests to `authority`, which is a host with a port.
pub fn set(authority: &str, route: Route) {
    let mut routes = ROUTES.lock().unwrap_or_else(PoisonError::into_inner);
    routes.get_or_insert_default().insert(authority.to_owned(), route);
}

/// The route to the host and port of a URL, if one is known.
pub fn to(url: &str) -> Option<Route> {
    let routes = ROUTES.lock().unwrap_or_else(PoisonError::into_inner);
    routes.as_ref()?.get(authority(url)?).cloned()
}

/// The host and port of a URL.
pub fn authority(url: &str) -> Option<&str> {
    url.split_once("://")?.1.split('/').next()
}

/// A connection with TLS to the gateway at this host and port.
pub fn connect_tls(authority: &str, address: impl std::net::ToSocketAddrs, ca: &str) -> Result<TlsStream> {
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host).to_owned();
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca.as_bytes()) {
        roots.add(certificate.context("reading the CA")?)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let mut session = ClientConnection::new(Arc::new(config), ServerName::try_from(host)?)?;
    let mut stream = TcpStream::connect(address).context("connecting to the gateway")?;
    session.complete_io(&mut stream).context("the TLS handshake with the gateway")?;
    Ok(StreamOwned::new(session, stream))
}

/// A connection with TLS.
pub type TlsStream = StreamOwned<ClientConnection, TcpStream>;
