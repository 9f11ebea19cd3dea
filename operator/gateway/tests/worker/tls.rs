//! TLS of the listener: the certificate, which may change at any time, the limits of the handshake, and plain HTTP.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dalsegno_gateway::tls::{Acceptor, Transport, server_config};
use dalsegno_gateway::{Config, Listener, serve};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::alone::within;
use crate::connections::metric;
use crate::context::*;
use crate::memory::{CONNECTIONS, growth};
use crate::server::until;

/// Name in the certificates.
const NAME: &str = "dalsegno-gateway.ns.svc";

/// A CA, and a server's configuration with a certificate of it.
struct Ca {
    certificate: CertificateDer<'static>,
    server: Arc<ServerConfig>,
}

impl Ca {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().der().clone();
        let issuer = Issuer::new(params, key);
        let key = KeyPair::generate().unwrap();
        let leaf = CertificateParams::new([NAME.to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
        let server = server_config(leaf.pem().as_bytes(), key.serialize_pem().as_bytes()).unwrap();
        Self { certificate, server }
    }

    fn connector(&self) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        Arc::new(config.unwrap().with_root_certificates(roots).with_no_client_auth()).into()
    }

    /// A session with the server, which trusts this CA alone.
    async fn connect(&self, address: SocketAddr) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(address).await?;
        self.connector().connect(ServerName::try_from(NAME).unwrap(), stream).await
    }
}

/// A gateway that listens with TLS at one port and for workers of before at another.
struct TlsServer {
    tls: SocketAddr,
    legacy: SocketAddr,
    certificate: watch::Sender<Option<Arc<ServerConfig>>>,
    is_open: watch::Sender<bool>,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<std::io::Result<()>>,
}

impl TlsServer {
    async fn start(ctx: &TestContext, ca: Option<&Ca>) -> Self {
        let certificate = watch::Sender::new(ca.map(|ca| ca.server.clone()));
        let is_open = watch::Sender::new(true);
        let sockets = [
            TcpListener::bind("127.0.0.1:0").await.unwrap(),
            TcpListener::bind("127.0.0.1:0").await.unwrap(),
        ];
        let [tls, legacy] = [&sockets[0], &sockets[1]].map(|it| it.local_addr().unwrap());
        let transports =
            [Transport::Tls(Acceptor::new(certificate.subscribe())), Transport::Legacy(is_open.subscribe())];
        let listeners = sockets.into_iter().zip(transports);
        let listeners = listeners.map(|(socket, transport)| Listener::new(socket, transport, &ctx.gateway));
        let (stop, stopped) = oneshot::channel::<()>();
        let ended = tokio::spawn(serve(listeners.collect(), ctx.gateway.clone(), async {
            stopped.await.unwrap();
        }));
        Self { tls, legacy, certificate, is_open, stop, ended }
    }

    async fn end(self) {
        self.stop.send(()).unwrap();
        self.ended.await.unwrap().unwrap();
    }
}

fn heartbeat(ctx: &TestContext) -> String {
    format!(
        "POST /v1/runs/{}/heartbeat HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer {INSTANCE}\r\n\
         Content-Length: 0\r\n\r\n",
        ctx.run
    )
}

/// Sends a heartbeat, and returns the head and the body of the answer.
async fn beat(ctx: &TestContext, mut stream: impl AsyncReadExt + AsyncWriteExt + Unpin) -> String {
    stream.write_all(heartbeat(ctx).as_bytes()).await.unwrap();
    let (mut answer, mut some) = (Vec::new(), [0; 4096]);
    while !answer.ends_with(b"}") {
        let bytes = tokio::time::timeout(Duration::from_secs(10), stream.read(&mut some)).await;
        match bytes.expect("an answer").unwrap_or(0) {
            0 => break,
            bytes => answer.extend_from_slice(&some[..bytes]),
        }
    }
    String::from_utf8(answer).unwrap()
}

fn refused(ctx: &TestContext, reason: &str) -> u64 {
    metric(ctx, &format!("gateway_refused_connections_total{{reason=\"{reason}\"}}"))
}

#[tokio::test]
async fn a_new_certificate_is_served_to_new_connections_and_open_ones_go_on() {
    let ctx = TestContext::attached().await;
    let [old, new] = [Ca::new(), Ca::new()];
    let server = TlsServer::start(&ctx, Some(&old)).await;
    let mut open = old.connect(server.tls).await.unwrap();
    assert!(beat(&ctx, &mut open).await.starts_with("HTTP/1.1 200"));
    server.certificate.send_replace(Some(new.server.clone()));
    let fresh = new.connect(server.tls).await.unwrap();
    assert!(beat(&ctx, fresh).await.starts_with("HTTP/1.1 200"));
    old.connect(server.tls).await.expect_err("the old CA does not verify the new certificate");
    assert!(beat(&ctx, &mut open).await.starts_with("HTTP/1.1 200"), "an open connection goes on");
    until("it is counted", || refused(&ctx, "handshake") == 1).await;
    server.end().await;
}

#[tokio::test]
async fn without_a_certificate_a_connection_is_closed_and_later_it_is_served() {
    let ctx = TestContext::attached().await;
    let ca = Ca::new();
    let server = TlsServer::start(&ctx, None).await;
    ca.connect(server.tls).await.expect_err("there is no certificate");
    server.certificate.send_replace(Some(ca.server.clone()));
    let stream = ca.connect(server.tls).await.unwrap();
    assert!(beat(&ctx, stream).await.starts_with("HTTP/1.1 200"));
    server.end().await;
}

#[tokio::test]
async fn plain_http_to_the_port_of_tls_is_told_to_use_tls() {
    let ctx = TestContext::attached().await;
    let ca = Ca::new();
    let server = TlsServer::start(&ctx, Some(&ca)).await;
    let answer = beat(&ctx, TcpStream::connect(server.tls).await.unwrap()).await;
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("use https://"), "{answer}");
    assert!(!answer.contains(INSTANCE));
    until("it is counted", || refused(&ctx, "not-tls") == 1).await;
    server.end().await;
}

#[tokio::test]
async fn workers_without_tls_are_served_at_the_old_port_until_it_is_closed() {
    let ctx = TestContext::attached().await;
    let ca = Ca::new();
    let server = TlsServer::start(&ctx, Some(&ca)).await;
    let mut open = TcpStream::connect(server.legacy).await.unwrap();
    assert!(beat(&ctx, &mut open).await.starts_with("HTTP/1.1 200"));
    server.is_open.send_replace(false);
    let answer = beat(&ctx, &mut open).await;
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("\"UNAVAILABLE\""), "{answer}");
    server.is_open.send_replace(true);
    assert!(beat(&ctx, &mut open).await.starts_with("HTTP/1.1 200"), "the same connection");
    server.end().await;
}

#[tokio::test]
async fn a_slow_handshake_is_cut_off_and_counts_as_a_connection_until_then() {
    let handshake_timeout = Duration::from_secs(5);
    let config = Config { handshake_timeout, max_connections_per_peer: 1, ..test_config() };
    let ctx = TestContext::attached().await.with_config(config);
    let ca = Ca::new();
    let server = TlsServer::start(&ctx, Some(&ca)).await;
    let mut slow = TcpStream::connect(server.tls).await.unwrap();
    let started = Instant::now();
    // The first bytes of a ClientHello, and then one byte at a time.
    slow.write_all(&[22, 3, 1, 2, 0]).await.unwrap();
    until("it is accepted", || metric(&ctx, "gateway_open_connections") == 1).await;
    tokio::time::sleep(handshake_timeout / 20).await;
    ca.connect(server.tls).await.expect_err("the share of this address is used up");
    let mut closed = [0; 16];
    let trickling = async {
        while slow.write_all(&[1]).await.is_ok() {
            let read = tokio::time::timeout(handshake_timeout / 100, slow.read(&mut closed)).await;
            if let Ok(Ok(0) | Err(_)) = read {
                break;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(30), trickling).await.expect("it is closed");
    assert!(started.elapsed() >= handshake_timeout, "{:?}", started.elapsed());
    until("it is counted", || refused(&ctx, "timeout") == 1).await;
    let stream = ca.connect(server.tls).await.unwrap();
    assert!(beat(&ctx, stream).await.starts_with("HTTP/1.1 200"));
    server.end().await;
}

#[tokio::test]
async fn a_session_that_asks_nothing_is_closed_in_favour_of_a_new_connection() {
    let config = Config { max_connections_per_peer: 1, ..test_config() };
    let ctx = TestContext::attached().await.with_config(config);
    let ca = Ca::new();
    let server = TlsServer::start(&ctx, Some(&ca)).await;
    let mut idle = ca.connect(server.tls).await.unwrap();
    until("the handshake is complete for the gateway too", || refused(&ctx, "displaced") == 0).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let stream = ca.connect(server.tls).await.unwrap();
    assert!(beat(&ctx, stream).await.starts_with("HTTP/1.1 200"));
    assert_eq!(refused(&ctx, "displaced"), 1);
    assert!(!matches!(idle.read(&mut [0; 16]).await, Ok(1..)), "it is closed");
    server.end().await;
}

#[tokio::test]
async fn a_large_answer_over_tls_is_cut_off_if_nobody_reads_it() {
    let write_timeout = Duration::from_millis(300);
    let ctx = TestContext::attached().await.with_config(Config { write_timeout, ..test_config() });
    let state = format!("\"{}\"", "x".repeat(8 << 20));
    ctx.post("turns/1", commit(1, &state)).await.ok();
    let ca = Ca::new();
    let server = TlsServer::start(&ctx, Some(&ca)).await;
    let mut unread = ca.connect(server.tls).await.unwrap();
    let request = format!(
        "GET /v1/runs/{}/state HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer {INSTANCE}\r\n\r\n",
        ctx.run
    );
    unread.write_all(request.as_bytes()).await.unwrap();
    until("the gateway gives up", || metric(&ctx, "gateway_open_connections") == 0).await;
    server.end().await;
}

#[test]
fn sessions_take_no_more_memory_than_each_connection_is_allowed() {
    let work = || tokio::runtime::Runtime::new().unwrap().block_on(keep_sessions());
    let name = "tls::sessions_take_no_more_memory_than_each_connection_is_allowed";
    within(2 << 30, Duration::from_secs(600), name, work);
}

/// Only the gateway's side of a session stays in memory: the client's is dropped, and its connection kept.
async fn keep_sessions() {
    let timeout = Duration::from_secs(25);
    let ctx = TestContext::attached().await.with_config(Config {
        first_byte_timeout: timeout,
        handshake_timeout: timeout,
        header_read_timeout: timeout,
        ..test_config()
    });
    let ca = Ca::new();
    let server = TlsServer::start(&ctx, Some(&ca)).await;
    let (begin, heartbeat) = (format!("POST /v1/runs/{}/turns/1 HTTP/1.1\r\n", ctx.run), heartbeat(&ctx));
    let endless = format!("{begin}X-A: {}", "a".repeat(400_000));
    for (kind, bytes) in
        [("silent", ""), ("incomplete head", &begin), ("endless head", &endless), ("idle", &heartbeat)]
    {
        let work = async {
            let mut open = Vec::new();
            for _ in 0..CONNECTIONS {
                let mut stream = ca.connect(server.tls).await.unwrap();
                let _ =
                    tokio::time::timeout(Duration::from_millis(20), stream.write_all(bytes.as_bytes())).await;
                if kind == "idle" {
                    assert!(stream.read(&mut [0; 4096]).await.unwrap() > 0);
                }
                open.push(stream.into_inner().0);
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
            open
        };
        let (grown, open) = growth(kind, work).await;
        println!("{kind}: {} bytes for each of {} sessions", grown / CONNECTIONS, open.len());
        assert!(grown <= CONNECTIONS * Config::CONNECTION_BYTES, "{kind}: {grown} bytes");
    }
    let hello = async {
        let mut open = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut stream = TcpStream::connect(server.tls).await.unwrap();
            // A ClientHello of 16 KiB that never ends.
            let mut bytes = vec![22, 3, 1, 0x40, 0, 1, 0, 0x3f, 0xfc];
            bytes.resize(16_000, 0);
            stream.write_all(&bytes).await.unwrap();
            open.push(stream);
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        open
    };
    let (grown, open) = growth("incomplete handshake", hello).await;
    println!("incomplete handshake: {} bytes for each of {} connections", grown / CONNECTIONS, open.len());
    assert!(grown <= CONNECTIONS * Config::CONNECTION_BYTES, "{grown} bytes");
    server.end().await;
}
