//! A proxy inside the agent's process, between the SDK and the gateway, that can lose answers.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// The proxy. Once armed, it loses the answer to the next call.
pub struct LossyProxy {
    url: String,
    armed: Arc<AtomicBool>,
}

impl LossyProxy {
    /// Starts a proxy on the loopback interface for the gateway with this base URL. `ca_file`: the CA of a gateway with TLS.
    pub fn start(url: &str, ca_file: Option<String>) -> anyhow::Result<Self> {
        let (gateway, path) = url
            .split_once("://")
            .and_then(|(_, rest)| rest.split_once('/'))
            .with_context(|| format!("{url} is not the URL of a gateway"))?;
        let listener = TcpListener::bind("127.0.0.1:0").context("listening for the SDK")?;
        let armed = Arc::new(AtomicBool::new(false));
        let proxy = Self { url: format!("http://{}/{path}", listener.local_addr()?), armed: armed.clone() };
        let gateway = Gateway { authority: gateway.to_owned(), ca_file };
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = gateway.connect() else { continue };
                let armed = armed.clone();
                thread::spawn(move || relay(client, server, &armed));
            }
        });
        Ok(proxy)
    }

    /// The base URL for the SDK.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Loses the answer to the next call that is not a heartbeat.
    pub fn lose_next_answer(&self) {
        self.armed.store(true, Ordering::SeqCst);
    }
}

/// The gateway behind the proxy.
struct Gateway {
    authority: String,
    ca_file: Option<String>,
}

impl Gateway {
    /// A connection whose reads wait for [`POLL`].
    fn connect(&self) -> anyhow::Result<Box<dyn Stream>> {
        let mut stream = TcpStream::connect(&self.authority)?;
        let Some(file) = &self.ca_file else {
            stream.set_read_timeout(Some(POLL))?;
            return Ok(Box::new(stream));
        };
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(file)? {
            roots.add(certificate?)?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let host = self.authority.rsplit_once(':').map_or(&*self.authority, |(host, _)| host).to_owned();
        let mut session = ClientConnection::new(Arc::new(config), ServerName::try_from(host)?)?;
        session.complete_io(&mut stream)?;
        stream.set_read_timeout(Some(POLL))?;
        Ok(Box::new(StreamOwned::new(session, stream)))
    }
}

/// How long a read waits before the other direction is looked at.
const POLL: Duration = Duration::from_millis(5);

/// A connection, with or without TLS.
trait Stream: Read + Write + Send {}

impl<T: Read + Write + Send> Stream for T {}

/// Copies in both directions until one side closes, or until an answer is lost. Then it closes both sides.
fn relay(mut client: TcpStream, mut server: Box<dyn Stream>, armed: &AtomicBool) -> std::io::Result<()> {
    client.set_read_timeout(Some(POLL))?;
    let (mut buffer, mut losing) = (vec![0; 64 << 10], false);
    loop {
        match read(&mut client, &mut buffer)? {
            Some(0) => return Ok(()),
            Some(count) => {
                // The SDK waits for each answer, so a request begins where a read begins.
                losing |= is_call(&buffer[..count]) && armed.swap(false, Ordering::SeqCst);
                server.write_all(&buffer[..count])?;
                server.flush()?;
            }
            None => {}
        }
        match read(&mut server, &mut buffer)? {
            Some(0) => return Ok(()),
            Some(_) if losing => return Ok(()),
            Some(count) => client.write_all(&buffer[..count])?,
            None => {}
        }
    }
}

/// The number of bytes that were read; `None`: none has arrived yet.
fn read(from: &mut impl Read, buffer: &mut [u8]) -> std::io::Result<Option<usize>> {
    match from.read(buffer) {
        Ok(count) => Ok(Some(count)),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_call(bytes: &[u8]) -> bool {
    let line = bytes.split(|byte| *byte == b'\r').next().unwrap_or_default();
    line.starts_with(b"POST ") && !line.ends_with(b"/heartbeat HTTP/1.1")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};

    /// A gateway that answers each request with the number of requests before it.
    fn counting_gateway() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1/runs/r1", listener.local_addr().unwrap());
        thread::spawn(move || {
            for (count, stream) in listener.incoming().enumerate() {
                let mut stream = BufReader::new(stream.unwrap());
                while stream.by_ref().lines().next().is_some_and(|line| !line.unwrap().is_empty()) {}
                let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1";
                // The proxy may close the connection before the answer is written.
                let _ = stream.get_mut().write_all(format!("{head}\r\n\r\n{count}").as_bytes());
            }
        });
        url
    }

    fn post(proxy: &LossyProxy, path: &str) -> Option<String> {
        let answer = ureq::post(format!("{}/{path}", proxy.url())).send_empty();
        answer.ok().map(|mut answer| answer.body_mut().read_to_string().unwrap())
    }

    #[test]
    fn the_next_call_reaches_the_gateway_and_its_answer_is_lost() {
        let proxy = LossyProxy::start(&counting_gateway(), None).unwrap();
        assert_eq!(post(&proxy, "turns/1").as_deref(), Some("0"));
        proxy.lose_next_answer();
        assert_eq!(post(&proxy, "heartbeat").as_deref(), Some("1"));
        assert_eq!(post(&proxy, "turns/2"), None);
        assert_eq!(post(&proxy, "turns/2").as_deref(), Some("3"));
    }
}
