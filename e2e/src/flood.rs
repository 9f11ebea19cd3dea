//! A client that sends a body far above the limit and ignores early answers.

use std::io::{Read, Write};
use std::time::Duration;

use anyhow::Context;

use crate::http::Response;
use crate::route::{self, Route, TlsStream};
use crate::{Result, Worker};

/// How the request gives the length of its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// In `content-length`, so that the gateway can refuse it unread.
    Declared,
    /// Not at all: the body is chunked.
    Chunked,
}

/// Sends a body of this many bytes, until all of it is sent or the gateway closes the connection. Returns the answer.
pub async fn flood(worker: &Worker, path: &str, bytes: u64, length: Length) -> Result<Response> {
    let (url, bearer) = (format!("{}/{path}", worker.url), worker.instance.clone());
    tokio::task::spawn_blocking(move || flood_blocking(&url, &bearer, bytes, length)).await?
}

fn flood_blocking(url: &str, bearer: &str, bytes: u64, length: Length) -> Result<Response> {
    let authority = route::authority(url).context("a URL with a host")?;
    let path = url.split_once(authority).map_or("/", |(_, path)| path);
    let Route { address, ca } = route::to(url).context("a known route")?;
    let mut stream = route::connect_tls(authority, address, &ca.context("a gateway with TLS")?)?;
    let framing = match length {
        Length::Declared => format!("content-length: {bytes}"),
        Length::Chunked => "transfer-encoding: chunked".to_owned(),
    };
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: {authority}\r\nauthorization: Bearer {bearer}\r\n\
         content-type: application/json\r\n{framing}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    // A gateway that answers early reads no more, so this fails above its limit.
    stream.sock.set_write_timeout(Some(Duration::from_secs(10)))?;
    let sent = send_body(&mut stream, bytes, length);
    stream.sock.set_read_timeout(Some(Duration::from_secs(60)))?;
    let (text, end) = read_answer(&mut stream);
    parse_response(&text)
        .with_context(|| format!("the gateway closed the connection without an answer: {sent:?}, {end:?}"))
}

/// Reads until the connection ends, and returns how it ended. A reset after the answer does not matter. The stream's own
/// `read` first sends what is left to send, and fails where nobody receives it any more.
fn read_answer(stream: &mut TlsStream) -> (Vec<u8>, std::io::Result<()>) {
    let mut text = Vec::new();
    loop {
        match stream.conn.read_tls(&mut stream.sock) {
            Ok(0) => return (text, Ok(())),
            Ok(_) => {}
            Err(error) => return (text, Err(error)),
        }
        if let Err(error) = stream.conn.process_new_packets() {
            return (text, Err(std::io::Error::other(error)));
        }
        // Without more plain text this fails with WouldBlock, and the next packet is read.
        let _ = stream.conn.reader().read_to_end(&mut text);
    }
}

fn send_body(writer: &mut TlsStream, bytes: u64, length: Length) -> std::io::Result<()> {
    let block = [b' '; 1 << 16];
    let mut left = bytes;
    while left > 0 {
        let part = &block[..left.min(block.len() as u64) as usize];
        if length == Length::Chunked {
            write!(writer, "{:x}\r\n", part.len())?;
        }
        writer.write_all(part)?;
        if length == Length::Chunked {
            writer.write_all(b"\r\n")?;
        }
        left -= part.len() as u64;
    }
    if length == Length::Chunked { writer.write_all(b"0\r\n\r\n") } else { Ok(()) }
}

fn parse_response(text: &[u8]) -> Option<Response> {
    let text = String::from_utf8_lossy(text);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some(Response { status, body: body.to_owned() })
}
