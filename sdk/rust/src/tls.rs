//! TLS to the gateway. The CA file is read for each new connection, because the operator replaces it.

use std::fmt;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::path::PathBuf;
use std::sync::Arc;

use dalsegno_protocol::env;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use ureq::Error;
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, Either, LazyBuffers, NextTimeout, Transport, TransportAdapter,
};

use crate::race::TcpTransport;

/// The CA file is missing or has no certificate. Trying again does not help.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CaError {
    /// The variable is not set.
    #[error(
        "the gateway speaks TLS, but {} is not set: it must name the file with the gateway's CA",
        env::CA_FILE
    )]
    NotSet,
    /// The file cannot be read.
    #[error("the gateway's CA in {} cannot be read", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file has no certificate.
    #[error("{} has no certificate in PEM, but must have the gateway's CA", .0.display())]
    NoCertificate(PathBuf),
}

/// Makes a connection to an https URL one with TLS, which trusts the CAs of the file and no others.
#[derive(Debug)]
pub(crate) struct TlsConnector {
    pub(crate) ca_file: Option<PathBuf>,
}

impl Connector<TcpTransport> for TlsConnector {
    type Out = Either<TcpTransport, TlsTransport>;

    fn connect(
        &self,
        details: &ConnectionDetails,
        chained: Option<TcpTransport>,
    ) -> Result<Option<Self::Out>, Error> {
        let Some(transport) = chained else { return Ok(None) };
        if !details.needs_tls() {
            return Ok(Some(Either::A(transport)));
        }
        let config = self.config().map_err(|error| Error::Other(error.into()))?;
        let host = details.uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let name = ServerName::try_from(host).map_err(|error| Error::BadUri(error.to_string()))?;
        let mut session =
            ClientConnection::new(config, name).map_err(|error| Error::Io(io::Error::other(error)))?;
        let mut adapter = TransportAdapter::new(transport, details.current_time.clone());
        adapter.set_timeout(details.timeout);
        session.complete_io(&mut adapter).map_err(|error| self.explained(error, details))?;
        let buffers =
            LazyBuffers::new(details.config.input_buffer_size(), details.config.output_buffer_size());
        Ok(Some(Either::B(TlsTransport { buffers, stream: StreamOwned::new(session, adapter) })))
    }
}

impl TlsConnector {
    fn config(&self) -> Result<Arc<ClientConfig>, CaError> {
        let path = self.ca_file.clone().ok_or(CaError::NotSet)?;
        let pem = fs::read(&path).map_err(|source| CaError::Unreadable { path: path.clone(), source })?;
        let mut roots = RootCertStore::empty();
        let certificates = CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok);
        if roots.add_parsable_certificates(certificates).0 == 0 {
            return Err(CaError::NoCertificate(path));
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder =
            ClientConfig::builder_with_provider(provider).with_protocol_versions(rustls::ALL_VERSIONS);
        // The provider has cipher suites of all versions.
        let config = builder.map_err(|_| CaError::NoCertificate(path))?;
        Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
    }

    /// What to do about a handshake that failed.
    fn explained(&self, error: io::Error, details: &ConnectionDetails) -> Error {
        let (uri, tls) = (&details.uri, error.get_ref().and_then(|it| it.downcast_ref::<rustls::Error>()));
        let address = uri.authority().map_or_else(String::new, ToString::to_string);
        let text = match tls {
            Some(rustls::Error::InvalidCertificate(why)) => {
                let file = self.ca_file.clone().unwrap_or_default();
                format!(
                    "the certificate of {address} is not valid for this name and from a CA in {} ({why:?})",
                    file.display()
                )
            }
            Some(rustls::Error::InvalidMessage(_)) => {
                format!("{address} does not speak TLS: {} must name the gateway's port for TLS", env::URL)
            }
            _ => return Error::Io(error),
        };
        Error::Io(io::Error::new(io::ErrorKind::InvalidData, text))
    }
}

/// A connection with TLS.
pub(crate) struct TlsTransport {
    buffers: LazyBuffers,
    stream: StreamOwned<ClientConnection, TransportAdapter<TcpTransport>>,
}

impl Transport for TlsTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        self.stream.sock.set_timeout(timeout);
        Ok(self.stream.write_all(&self.buffers.output()[..amount])?)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        self.stream.sock.set_timeout(timeout);
        let amount = self.stream.read(self.buffers.input_append_buf())?;
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    fn is_open(&mut self) -> bool {
        self.stream.sock.get_mut().is_open()
    }

    fn is_tls(&self) -> bool {
        true
    }
}

impl fmt::Debug for TlsTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsTransport").field("chained", self.stream.sock.get_ref()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener};
    use std::sync::Mutex;
    use std::thread;
    use std::time::Duration;

    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    use rustls::pki_types::PrivateKeyDer;
    use rustls::{ServerConfig, ServerConnection};
    use ureq::unversioned::resolver::DefaultResolver;

    use super::*;
    use crate::http::{Client, Files};

    /// A CA with a certificate for 127.0.0.1.
    struct Ca {
        pem: String,
        server: Arc<ServerConfig>,
    }

    impl Ca {
        fn new() -> Self {
            let mut params = CertificateParams::default();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let key = KeyPair::generate().unwrap();
            let pem = params.self_signed(&key).unwrap().pem();
            let issuer = Issuer::new(params, key);
            let key = KeyPair::generate().unwrap();
            let names = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
            let leaf = names.signed_by(&key, &issuer).unwrap();
            let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let server = ServerConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(vec![leaf.der().clone()], key)
                .unwrap();
            Self { pem, server: server.into() }
        }
    }

    /// A gateway that answers one request for each connection.
    fn gateway(certificate: Arc<Mutex<Arc<ServerConfig>>>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let session = ServerConnection::new(certificate.lock().unwrap().clone()).unwrap();
                let mut stream = StreamOwned::new(session, stream.unwrap());
                let mut some = [0; 4096];
                if stream.read(&mut some).is_ok() {
                    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
                    stream.write_all(answer).unwrap();
                    stream.conn.send_close_notify();
                    let _ = stream.flush();
                }
            }
        });
        address
    }

    /// The result of one heartbeat, or why it is tried again after a while.
    fn heartbeat(client: &Client) -> crate::Result<Vec<u8>> {
        client.send("heartbeat", Some(b""), Duration::from_secs(2))
    }

    fn client(scheme: &str, address: SocketAddr, ca: Option<PathBuf>) -> Client {
        let base = format!("{scheme}://{address}/v1/runs/r1");
        let files = Files { token: "no token".into(), ca };
        let client = Client::new(&base, files, Box::new(|_| ()), DefaultResolver::default());
        client.instance.set("instance".to_owned()).unwrap();
        client
    }

    fn file(name: &str, text: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("dalsegno-sdk-{}-{name}", std::process::id()));
        fs::write(&path, text).unwrap();
        path
    }

    /// Why a connection is not made.
    fn failure(address: SocketAddr, ca: PathBuf) -> String {
        let connector = Connector::chain(crate::race::RaceConnector, TlsConnector { ca_file: Some(ca) });
        let config = ureq::config::Config::default();
        let agent = ureq::Agent::with_parts(config, connector, DefaultResolver::default());
        agent.get(format!("https://{address}/")).call().unwrap_err().to_string()
    }

    #[test]
    fn a_new_connection_trusts_the_ca_that_the_file_has_then() {
        let [old, new] = [Ca::new(), Ca::new()];
        let served = Arc::new(Mutex::new(old.server.clone()));
        let ca = file("rotated", &old.pem);
        let client = client("https", gateway(served.clone()), Some(ca.clone()));
        heartbeat(&client).unwrap();
        *served.lock().unwrap() = new.server.clone();
        fs::write(&ca, &new.pem).unwrap();
        heartbeat(&client).unwrap();
    }

    #[test]
    fn a_missing_or_empty_ca_file_is_an_error_that_names_it() {
        let address = gateway(Arc::new(Mutex::new(Ca::new().server)));
        for (ca, expected) in [
            (None, "DALSEGNO_CA_FILE is not set"),
            (Some("/nowhere/ca.crt".into()), "the gateway's CA in /nowhere/ca.crt cannot be read"),
            (Some(file("empty", "")), "has no certificate in PEM"),
        ] {
            let error = heartbeat(&client("https", address, ca)).unwrap_err();
            let source = std::error::Error::source(&error).unwrap().to_string();
            assert!(source.contains(expected), "{error}: {source}");
        }
    }

    #[test]
    fn a_wrong_ca_and_a_port_without_tls_are_named() {
        let address = gateway(Arc::new(Mutex::new(Ca::new().server)));
        let ca = file("other", &Ca::new().pem);
        let error = failure(address, ca.clone());
        assert!(error.contains("is not valid for this name and from a CA in"), "{error}");
        let plain = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = plain.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = plain.accept().unwrap();
            let _ = stream.read(&mut [0; 64]);
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        });
        let error = failure(address, ca);
        assert!(
            error.contains("does not speak TLS: DALSEGNO_URL must name the gateway's port for TLS"),
            "{error}"
        );
    }
}
