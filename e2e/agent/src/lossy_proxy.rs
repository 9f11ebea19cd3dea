//! A proxy inside the agent's process, between the SDK and the gateway, that can lose answers.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::Context;

/// The proxy. Once armed, it loses the answer to the next call.
pub struct LossyProxy {
    url: String,
    armed: Arc<AtomicBool>,
}

impl LossyProxy {
    /// Starts a proxy on the loopback interface for the gateway with this base URL.
    pub fn start(url: &str) -> anyhow::Result<Self> {
        let (gateway, path) = url
            .strip_prefix("http://")
            .and_then(|rest| rest.split_once('/'))
            .with_context(|| format!("{url} is not the URL of a gateway"))?;
        let listener = TcpListener::bind("127.0.0.1:0").context("listening for the SDK")?;
        let armed = Arc::new(AtomicBool::new(false));
        let proxy = Self { url: format!("http://{}/{path}", listener.local_addr()?), armed: armed.clone() };
        let gateway = gateway.to_owned();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(&gateway) else {
                    continue;
                };
                let _ = relay(client, server, &armed);
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

fn relay(client: TcpStream, server: TcpStream, armed: &Arc<AtomicBool>) -> std::io::Result<()> {
    let losing = Arc::new(AtomicBool::new(false));
    let (mut from_client, mut to_server) = (client.try_clone()?, server.try_clone()?);
    let (armed, lose) = (armed.clone(), losing.clone());
    thread::spawn(move || {
        copy(&mut from_client, &mut to_server, |bytes| {
            // The SDK waits for each answer, so a request begins where a read begins.
            if is_call(bytes) && armed.swap(false, Ordering::SeqCst) {
                lose.store(true, Ordering::SeqCst);
            }
            true
        });
    });
    let (mut from_server, mut to_client) = (server, client);
    thread::spawn(move || copy(&mut from_server, &mut to_client, |_| !losing.load(Ordering::SeqCst)));
    Ok(())
}

/// Copies until one side closes or `pass` refuses a chunk. Then it closes both sides.
fn copy(from: &mut TcpStream, to: &mut TcpStream, mut pass: impl FnMut(&[u8]) -> bool) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if !pass(&buffer[..count]) || to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
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
        let proxy = LossyProxy::start(&counting_gateway()).unwrap();
        assert_eq!(post(&proxy, "turns/1").as_deref(), Some("0"));
        proxy.lose_next_answer();
        assert_eq!(post(&proxy, "heartbeat").as_deref(), Some("1"));
        assert_eq!(post(&proxy, "turns/2"), None);
        assert_eq!(post(&proxy, "turns/2").as_deref(), Some("3"));
    }
}
