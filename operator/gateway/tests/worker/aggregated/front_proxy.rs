//! The API server's side: its certificates, its front proxy, and requests as it forwards them.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName};
use dalsegno_gateway::{AggregatedApi, CertificatePem, RequestHeaderTrust, ServerIdentity};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair,
};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::context::Answer;

/// Name of the Service.
const SERVICE: &str = "dalsegno-aggregated.dalsegno-system.svc";

/// A certificate with its key, in PEM.
#[derive(Clone)]
pub struct Keyed {
    certificate: String,
    key: String,
}

impl Keyed {
    pub fn der(&self) -> Vec<u8> {
        CertificateDer::from_pem_slice(self.certificate.as_bytes()).unwrap().to_vec()
    }
}

/// A CA of servers and one of the front proxy.
pub struct Pki {
    servers: Authority,
    proxies: Authority,
}

struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name = named(name);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    fn issue(&self, params: CertificateParams) -> Keyed {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        Keyed { certificate, key: key.serialize_pem() }
    }
}

fn named(name: &str) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    if !name.is_empty() {
        subject.push(DnType::CommonName, name);
    }
    subject
}

fn client_params(name: &str, usage: ExtendedKeyUsagePurpose) -> CertificateParams {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name = named(name);
    params.extended_key_usages = vec![usage];
    params
}

impl Pki {
    pub fn new() -> Self {
        Self { servers: Authority::new("servers"), proxies: Authority::new("proxies") }
    }

    pub fn issue_server(&self) -> Keyed {
        self.servers.issue(CertificateParams::new(vec![SERVICE.to_owned()]).unwrap())
    }

    /// A client of the front proxy's CA.
    pub fn client(&self, name: &str) -> Keyed {
        self.proxies.issue(client_params(name, ExtendedKeyUsagePurpose::ClientAuth))
    }

    pub fn server_only(&self, name: &str) -> Keyed {
        self.proxies.issue(client_params(name, ExtendedKeyUsagePurpose::ServerAuth))
    }

    pub fn expired(&self, name: &str) -> Keyed {
        let mut params = client_params(name, ExtendedKeyUsagePurpose::ClientAuth);
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2020, 1, 2);
        self.proxies.issue(params)
    }

    /// A client of a CA that nobody trusts.
    pub fn stranger(&self, name: &str) -> Keyed {
        Authority::new("proxies").issue(client_params(name, ExtendedKeyUsagePurpose::ClientAuth))
    }

    /// The ConfigMap in which the API server describes its front proxy.
    pub fn config_map(&self, names: &[&str]) -> BTreeMap<String, String> {
        let list = |items: &[&str]| serde_json::to_string(items).unwrap();
        [
            ("client-ca-file", self.servers.pem.clone()),
            ("requestheader-client-ca-file", self.proxies.pem.clone()),
            ("requestheader-allowed-names", list(names)),
            ("requestheader-username-headers", list(&["X-Remote-User"])),
            ("requestheader-group-headers", list(&["X-Remote-Group"])),
            ("requestheader-extra-headers-prefix", list(&["X-Remote-Extra-"])),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into()
    }
}

/// An aggregated API that is served, and the API server in front of it.
pub struct ApiServer {
    pub api: AggregatedApi,
    pub pki: Pki,
    address: SocketAddr,
    certificate: watch::Sender<Option<Arc<CertificatePem>>>,
    trust: watch::Sender<Option<Arc<RequestHeaderTrust>>>,
}

impl ApiServer {
    pub fn start() -> Self {
        let (pki, api) = (Pki::new(), AggregatedApi::default());
        let (certificate, certificates) = watch::channel(None);
        let (trust, trusted) = watch::channel(None);
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let address = socket.local_addr().unwrap();
        let socket = tokio::net::TcpListener::from_std(socket).unwrap();
        let identity = ServerIdentity { certificate: certificates, trust: trusted };
        tokio::spawn(api.clone().serve(socket, identity, std::future::pending()));
        let server = Self { api, pki, address, certificate, trust };
        server.serve_certificate(&server.pki.issue_server());
        server.trust(&server.pki.config_map(&["front-proxy-client"]));
        server
    }

    pub fn serve_certificate(&self, keyed: &Keyed) {
        let Keyed { certificate, key } = keyed.clone();
        let pem = CertificatePem { chain: certificate.into_bytes(), key: key.into_bytes() };
        self.certificate.send_replace(Some(Arc::new(pem)));
    }

    pub fn trust(&self, config_map: &BTreeMap<String, String>) {
        let trust = RequestHeaderTrust::from_config_map(config_map).unwrap();
        self.trust.send_replace(Some(Arc::new(trust)));
    }

    pub fn distrust(&self) {
        self.trust.send_replace(None);
    }

    /// The front proxy.
    pub fn client(&self) -> Client {
        self.client_with(self.pki.client("front-proxy-client"))
    }

    pub fn client_with(&self, identity: Keyed) -> Client {
        let server_ca = self.pki.servers.pem.clone();
        Client { address: self.address, server_ca, identity: Some(identity) }
    }

    /// `GET` for ada.
    pub async fn get(&self, path: &str) -> Answer {
        self.client().get(path, &[("x-remote-user", "ada")]).await.unwrap()
    }
}

/// A client of the listener.
pub struct Client {
    pub address: SocketAddr,
    pub server_ca: String,
    pub identity: Option<Keyed>,
}

/// An open connection of a client.
pub struct Connection(TlsStream<TcpStream>);

impl Client {
    pub async fn connect(&self) -> io::Result<Connection> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.server_ca.as_bytes()).unwrap()).unwrap();
        let builder = ClientConfig::builder_with_provider(default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some(Keyed { certificate, key }) => {
                let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        };
        let connection = TcpStream::connect(self.address).await?;
        let name = ServerName::try_from(SERVICE).unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, connection).await.map(Connection)
    }

    pub async fn get(&self, path: &str, headers: &[(&str, &str)]) -> io::Result<Answer> {
        self.send(("GET", path), headers, "").await
    }

    /// Sends exactly this method and path, without any change to it.
    pub async fn send(
        &self,
        target: (&str, &str),
        headers: &[(&str, &str)],
        body: &str,
    ) -> io::Result<Answer> {
        let mut connection = self.connect().await?;
        let headers: Vec<_> = headers.iter().copied().chain([("connection", "close")]).collect();
        connection.request(target, &headers, body).await?;
        let mut bytes = Vec::new();
        // A listener that ends without a TLS alert after its answer has answered.
        let read = connection.0.read_to_end(&mut bytes).await;
        if bytes.is_empty() {
            read?;
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(parse(&bytes))
    }
}

impl Connection {
    pub fn server_certificate(&self) -> Vec<u8> {
        self.0.get_ref().1.peer_certificates().unwrap()[0].to_vec()
    }

    /// `GET` on a connection that stays open. The answer must have a length.
    pub async fn get(&mut self, path: &str, headers: &[(&str, &str)]) -> io::Result<Answer> {
        self.request(("GET", path), headers, "").await?;
        let mut bytes = Vec::new();
        loop {
            if self.0.read_buf(&mut bytes).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let Some(end) = find(&bytes, b"\r\n\r\n") else { continue };
            let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
            if bytes.len() >= end + 4 + length.parse::<usize>().unwrap() {
                return Ok(parse(&bytes));
            }
        }
    }

    async fn request(
        &mut self,
        (method, path): (&str, &str),
        headers: &[(&str, &str)],
        body: &str,
    ) -> io::Result<()> {
        let mut text =
            format!("{method} {path} HTTP/1.1\r\nhost: {SERVICE}\r\ncontent-length: {}\r\n", body.len());
        for (name, value) in headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        self.0.write_all(format!("{text}\r\n{body}").as_bytes()).await
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|it| it == what)
}

/// Parses an answer: its head, and its body, which may be chunked.
fn parse(bytes: &[u8]) -> Answer {
    let end = find(bytes, b"\r\n\r\n").unwrap();
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let mut headers = HeaderMap::new();
    for line in lines {
        let (name, value) = line.split_once(": ").unwrap();
        headers.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
    }
    let body = &bytes[end + 4..];
    let is_chunked = headers.get("transfer-encoding").is_some();
    let body = if is_chunked { unchunked(body) } else { body.to_vec() };
    Answer { status, headers, text: String::from_utf8(body).unwrap() }
}

fn unchunked(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = find(rest, b"\r\n") {
        let length = usize::from_str_radix(std::str::from_utf8(&rest[..end]).unwrap(), 16).unwrap();
        if length == 0 {
            break;
        }
        body.extend_from_slice(&rest[end + 2..end + 2 + length]);
        rest = &rest[end + 4 + length..];
    }
    body
}

/// What the ConfigMap of an API server may hold.
mod trust {
    use dalsegno_gateway::TrustError;

    use super::*;

    #[test]
    fn a_config_map_that_would_let_any_client_act_as_anybody_is_refused() {
        let pki = Pki::new();
        let read = |map: &BTreeMap<String, String>| RequestHeaderTrust::from_config_map(map).map(drop);
        assert!(read(&pki.config_map(&["front-proxy-client"])).is_ok());
        assert!(read(&pki.config_map(&[])).is_ok(), "any name of a CA of its own");

        let mut shared = pki.config_map(&[]);
        shared.insert("client-ca-file".into(), format!("{}{}", pki.servers.pem, pki.proxies.pem));
        assert!(matches!(read(&shared), Err(TrustError::AnyClient)));
        shared.insert("requestheader-allowed-names".into(), r#"["front-proxy-client"]"#.into());
        assert!(read(&shared).is_ok(), "the name tells them apart");

        for (key, value, what) in [
            ("requestheader-client-ca-file", "", "no CA"),
            (
                "requestheader-client-ca-file",
                "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----",
                "no PEM",
            ),
            ("requestheader-allowed-names", "front-proxy-client", "no list"),
            ("requestheader-username-headers", "[]", "no header"),
            ("requestheader-username-headers", "", "no header"),
            ("requestheader-username-headers", r#"["X Remote"]"#, "no name of a header"),
        ] {
            let mut map = pki.config_map(&["front-proxy-client"]);
            map.insert(key.into(), value.into());
            assert!(read(&map).is_err(), "{what}");
        }
        assert!(matches!(read(&BTreeMap::new()), Err(TrustError::Missing(_))));
    }
}
