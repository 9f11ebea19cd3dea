//! A body that is far larger than any body may be, sent by a client that does not care.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::Context;

use crate::http::Answer;
use crate::{Result, Worker};

/// How the length of the body is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// In the header: it can be refused unread.
    Announced,
    /// Not at all: the body comes in chunks.
    Unknown,
}

/// Sends a body of this many bytes until it is all sent or the gateway answers or hangs up, and returns the answer.
///
/// # Errors
///
/// No answer came.
pub async fn flood(worker: &Worker, path: &str, bytes: u64, length: Length) -> Result<Answer> {
    let (url, bearer) = (format!("{}/{path}", worker.url), worker.instance.clone());
    tokio::task::spawn_blocking(move || flood_blocking(&url, &bearer, bytes, length)).await?
}

fn flood_blocking(url: &str, bearer: &str, bytes: u64, length: Length) -> Result<Answer> {
    let rest = url.strip_prefix("http://").context("a plain URL")?;
    let (host, path) = rest.split_once('/').context("a URL with a path")?;
    let mut reader = TcpStream::connect(host).context("connecting to the gateway")?;
    reader.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut writer = reader.try_clone()?;
    let framing = match length {
        Length::Declared => format!("content-length: {bytes}"),
        Length::Unknown => "transfer-encoding: chunked".to_owned(),
    };
    let head = format!(
        "POST /{path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {bearer}\r\ncontent-type: application/json\r\n\
         {framing}\r\nconnection: close\r\n\r\n"
    );
    writer.write_all(head.as_bytes())?;
    // Ends when the gateway hangs up, which is what a gateway does that has heard enough.
    let sender = std::thread::spawn(move || pour(&mut writer, bytes, length));
    let mut text = Vec::new();
    // A reset after the answer takes nothing away from it.
    let read = reader.read_to_end(&mut text);
    drop(reader);
    let _ = sender.join();
    answer(&text).with_context(|| format!("the gateway hung up without an answer: {read:?}"))
}

fn pour(writer: &mut TcpStream, bytes: u64, length: Length) -> std::io::Result<()> {
    let block = [b' '; 1 << 16];
    let mut left = bytes;
    while left > 0 {
        let part = &block[..left.min(block.len() as u64) as usize];
        if length == Length::Unknown {
            write!(writer, "{:x}\r\n", part.len())?;
        }
        writer.write_all(part)?;
        if length == Length::Unknown {
            writer.write_all(b"\r\n")?;
        }
        left -= part.len() as u64;
    }
    if length == Length::Unknown { writer.write_all(b"0\r\n\r\n") } else { Ok(()) }
}

fn answer(text: &[u8]) -> Option<Answer> {
    let text = String::from_utf8_lossy(text);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some(Answer { status, body: body.to_owned() })
}
