//! Closes connections whose peer does not read.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

use crate::limits::connections::Activity;

/// Bytes that the peer must take within the time-out. Each time it has, the time-out starts anew. A peer that takes
/// less holds up a response as much as one that takes nothing.
const MIN_PROGRESS: usize = 256 << 10;

/// A TCP stream whose writes fail once its peer has taken next to nothing for the whole time-out. It reports what arrives
/// and whether writes are blocked.
pub(crate) struct WriteTimeoutStream {
    stream: TcpStream,
    timeout: Duration,
    activity: Arc<Activity>,
    /// Set while writes find the socket's buffer full.
    blocked: Option<Blocked>,
}

struct Blocked {
    deadline: Pin<Box<Sleep>>,
    /// Bytes that the peer must still take before the deadline.
    remaining: usize,
}

impl WriteTimeoutStream {
    pub(crate) fn new(stream: TcpStream, timeout: Duration, activity: Arc<Activity>) -> Self {
        Self { stream, timeout, activity, blocked: None }
    }

    /// Turns a pending write into an error once the deadline has passed; `offered` is the bytes that were to be
    /// written.
    fn check_progress(
        &mut self,
        context: &mut Context<'_>,
        offered: usize,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        self.activity.wrote(written.is_pending());
        if let Poll::Ready(written) = written {
            if let (Some(blocked), Ok(bytes)) = (&mut self.blocked, &written) {
                blocked.remaining = blocked.remaining.saturating_sub(*bytes);
                if blocked.remaining == 0 || *bytes == offered {
                    self.blocked = None;
                }
            }
            return Poll::Ready(written);
        }
        let blocked = self.blocked.get_or_insert_with(|| Blocked {
            deadline: Box::pin(sleep(self.timeout)),
            remaining: MIN_PROGRESS,
        });
        ready!(blocked.deadline.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer does not read")))
    }
}

impl AsyncWrite for WriteTimeoutStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.check_progress(context, bytes.len(), written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.check_progress(context, slices.iter().map(|slice| slice.len()).sum(), written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl AsyncRead for WriteTimeoutStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let filled = into.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, into);
        if into.filled().len() > filled {
            self.activity.received();
        }
        read
    }
}
