//! New connections: attempts race, so that a gateway that is gone costs a moment and not the lease.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, Transport,
};
use ureq::{Error, Timeout};

/// How long all attempts together may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// After so long without a connection another attempt starts beside the earlier ones.
const STAGGER: Duration = Duration::from_millis(100);

/// Connects to the first address of the name that accepts.
///
/// A cluster's service has one address for all gateways, and each attempt may lead to another one. So attempts are also
/// repeated while earlier ones to the same address are waiting.
#[derive(Debug)]
pub(crate) struct RaceConnector;

impl Connector<()> for RaceConnector {
    type Out = TcpTransport;

    fn connect(&self, details: &ConnectionDetails, _: Option<()>) -> Result<Option<TcpTransport>, Error> {
        let limit = CONNECT_TIMEOUT.min(*details.timeout.after);
        let stream = race(&details.addrs, limit).map_err(|error| match error.kind() {
            ErrorKind::TimedOut => Error::Timeout(Timeout::Connect),
            _ => Error::Io(error),
        })?;
        stream.set_nodelay(true)?;
        let config = details.config;
        let buffers = LazyBuffers::new(config.input_buffer_size(), config.output_buffer_size());
        Ok(Some(TcpTransport { stream, buffers }))
    }
}

/// Returns the first connection that is made within `limit`; if each address has refused, the last refusal.
fn race(addresses: &[SocketAddr], limit: Duration) -> io::Result<TcpStream> {
    let deadline = Instant::now() + limit;
    let mut targets = addresses.iter().copied().cycle();
    let (sender, results) = mpsc::channel();
    let (mut waiting, mut refused) = (0, 0);
    let mut next_start = Instant::now();
    loop {
        let now = Instant::now();
        let left = deadline.saturating_duration_since(now);
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        if now >= next_start {
            let target = targets.next().ok_or(ErrorKind::AddrNotAvailable)?;
            let sender = sender.clone();
            // The receiver is gone if another attempt was faster. Then this connection is closed.
            let attempt = move || drop(sender.send(TcpStream::connect_timeout(&target, left)));
            thread::Builder::new().spawn(attempt)?;
            waiting += 1;
            next_start = now + STAGGER;
        }
        match results.recv_timeout(next_start.min(deadline).saturating_duration_since(now)) {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(refusal)) => {
                (waiting, refused) = (waiting - 1, refused + 1);
                if refused < addresses.len() {
                    next_start = now;
                } else if waiting == 0 {
                    return Err(refusal);
                }
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
    }
}

/// A plain TCP connection.
#[derive(Debug)]
pub(crate) struct TcpTransport {
    stream: TcpStream,
    buffers: LazyBuffers,
}

impl Transport for TcpTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        self.stream.set_write_timeout(timeout.not_zero().map(|it| *it))?;
        let sent = self.stream.write_all(&self.buffers.output()[..amount]);
        sent.map_err(|error| timed_out(error, &timeout))
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        let deadline = timeout.not_zero().map(|it| Instant::now() + *it);
        let input = self.buffers.input_append_buf();
        let amount = loop {
            let left = deadline.map(|it| it.saturating_duration_since(Instant::now()));
            if left.is_some_and(|it| it.is_zero()) {
                return Err(Error::Timeout(timeout.reason));
            }
            self.stream.set_read_timeout(left)?;
            match self.stream.read(input) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read.map_err(|error| timed_out(error, &timeout))?,
            }
        };
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    /// Between two requests there is nothing to read from a connection that is open.
    fn is_open(&mut self) -> bool {
        let peeked = self.stream.set_nonblocking(true).and_then(|()| self.stream.peek(&mut [0]));
        let is_quiet = peeked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        is_quiet && self.stream.set_nonblocking(false).is_ok()
    }
}

/// A socket's timeout is reported as `WouldBlock`.
fn timed_out(error: io::Error, timeout: &NextTimeout) -> Error {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Error::Timeout(timeout.reason),
        _ => Error::Io(error),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// More than any attempt needs on a slow machine.
    const LONG: Duration = Duration::from_secs(60);

    /// A listener that answers no attempt, as if its node had lost the network: its queue is full.
    fn lost_gateway() -> (TcpListener, SocketAddr, Vec<TcpStream>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut queued = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(200)) {
            queued.push(stream);
        }
        (listener, address, queued)
    }

    #[test]
    fn an_address_that_does_not_answer_costs_a_moment() {
        let (_lost, lost, _queued) = lost_gateway();
        let live = TcpListener::bind("127.0.0.1:0").unwrap();
        let began = Instant::now();
        let stream = race(&[lost, live.local_addr().unwrap()], LONG).unwrap();
        assert_eq!(stream.peer_addr().unwrap(), live.local_addr().unwrap());
        assert!(began.elapsed() < LONG / 2, "{:?}", began.elapsed());
    }

    /// How long it takes to reach an address that leads to a gateway which accepts a little later.
    fn time_to_reach_a_later_gateway() -> Duration {
        let (service, address, _queued) = lost_gateway();
        let began = Instant::now();
        let accepting = thread::spawn(move || {
            thread::sleep(STAGGER * 3);
            (service.accept().unwrap(), service)
        });
        race(&[address], LONG).unwrap();
        let took = began.elapsed();
        accepting.join().unwrap();
        took
    }

    #[test]
    fn another_attempt_to_the_same_address_may_reach_another_gateway() {
        // The kernel repeats the first attempt after 1 s and never sooner. A slow machine gets more than one chance.
        for _ in 0..10 {
            let took = time_to_reach_a_later_gateway();
            assert!(took > STAGGER * 2, "{took:?}");
            if took < CONNECT_TIMEOUT {
                return;
            }
        }
        panic!("no other attempt has reached it");
    }

    #[test]
    fn no_attempt_outlasts_its_time() {
        let (_lost, address, _queued) = lost_gateway();
        let began = Instant::now();
        let error = race(&[address], CONNECT_TIMEOUT / 2).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        // The kernel alone would take minutes.
        assert!(began.elapsed() < LONG / 2, "{:?}", began.elapsed());
    }

    #[test]
    fn a_refusal_is_reported_at_once_after_each_address_has_refused() {
        let closed = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let began = Instant::now();
        let error = race(&[closed(), closed()], LONG).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        assert!(began.elapsed() < LONG / 2, "{:?}", began.elapsed());
    }
}
