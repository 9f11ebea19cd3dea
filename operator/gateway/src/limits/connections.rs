//! Limits on connections: in all, and of each peer address. They apply before a peer has proved anything.
//!
//! Idle connections do not keep new ones out. If a limit is reached, an idle connection is closed in favour of the new
//! one: of the same peer if its share is used up, otherwise of the peer with the most connections.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::Extensions;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::metrics::{Metrics, RefusedConnection};

/// How long the gateway must have been full before it is no longer ready.
const EXHAUSTED_AFTER: Duration = Duration::from_secs(10);

/// Whose share a connection counts against. A network usually assigns a whole /64 of IPv6 to one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PeerAddress {
    V4(Ipv4Addr),
    /// The first 64 bits of the address.
    V6Network(u64),
}

impl From<IpAddr> for PeerAddress {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::V4(address),
            IpAddr::V6(address) => Self::V6Network((address.to_bits() >> 64) as u64),
        }
    }
}

/// The address of a request's peer. `None`: the request came over no connection.
pub(crate) fn peer_of(extensions: &Extensions) -> Option<PeerAddress> {
    extensions.get().copied()
}

/// The open connections of a gateway.
pub(crate) struct Connections {
    max: usize,
    max_per_peer: usize,
    metrics: Metrics,
    open: Mutex<OpenConnections>,
}

#[derive(Default)]
struct OpenConnections {
    next_id: u64,
    by_id: HashMap<u64, (PeerAddress, Arc<Activity>)>,
    by_peer: HashMap<PeerAddress, usize>,
    /// Since when new connections are refused because of the total.
    full_since: Option<Instant>,
}

/// One open connection. It counts until it is dropped.
pub(crate) struct OpenConnection {
    connections: Arc<Connections>,
    id: u64,
    pub(crate) activity: Arc<Activity>,
}

impl Connections {
    pub(crate) fn new(config: &Config, metrics: Metrics) -> Arc<Self> {
        let (max, max_per_peer) = (config.max_connections, config.max_connections_per_peer);
        Arc::new(Self { max, max_per_peer, metrics, open: Mutex::default() })
    }

    /// Counts a new connection, or says why it is refused.
    pub(crate) fn admit(self: &Arc<Self>, address: IpAddr) -> Result<OpenConnection, RefusedConnection> {
        let peer = PeerAddress::from(address);
        let mut open = self.open();
        let used = open.by_peer.get(&peer).copied().unwrap_or_default();
        let admitted = if used >= self.max_per_peer {
            self.close_idle(&open, Some(peer)).ok_or(RefusedConnection::PeerLimit)
        } else if open.by_id.len() >= self.max {
            let closed = self.close_idle(&open, None).ok_or(RefusedConnection::TotalLimit);
            if closed.is_err() {
                open.full_since.get_or_insert_with(Instant::now);
            }
            closed
        } else {
            Ok(())
        };
        if let Err(why) = admitted {
            self.metrics.connection_refused(why);
            return Err(why);
        }
        let (id, activity) = (open.next_id, Arc::new(Activity::new()));
        open.next_id += 1;
        open.by_id.insert(id, (peer, activity.clone()));
        *open.by_peer.entry(peer).or_default() += 1;
        self.metrics.connection_opened();
        Ok(OpenConnection { connections: self.clone(), id, activity })
    }

    /// Closes an idle connection of this peer, or of the peer with the most connections. A connection that has never
    /// sent a request is closed first, then the one that has been idle for longest. The connection counts until its
    /// task has ended, which takes an instant.
    fn close_idle(&self, open: &OpenConnections, of: Option<PeerAddress>) -> Option<()> {
        let idle = open.by_id.values().filter(|(peer, _)| of.is_none_or(|of| of == *peer));
        let idle = idle.filter_map(|(peer, activity)| {
            let (unused, since) = activity.idle()?;
            let connections = open.by_peer.get(peer).copied().unwrap_or_default();
            Some(((connections, unused, since.elapsed()), activity))
        });
        // It may have become busy in between; then the new connection is refused, and its client tries again.
        let (_, activity) = idle.max_by_key(|(order, _)| *order)?;
        activity.close_if_idle().then(|| self.metrics.connection_refused(RefusedConnection::Displaced))
    }

    /// Whether new connections have been refused because of the total for ten seconds, and none has ended since.
    pub(crate) fn are_exhausted(&self) -> bool {
        self.open().full_since.is_some_and(|since| since.elapsed() >= EXHAUSTED_AFTER)
    }

    fn open(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let mut open = self.connections.open();
        let Some((peer, _)) = open.by_id.remove(&self.id) else { return };
        if let Some(used) = open.by_peer.get_mut(&peer) {
            *used -= 1;
            if *used == 0 {
                open.by_peer.remove(&peer);
            }
        }
        if open.by_id.len() < self.connections.max {
            open.full_since = None;
        }
        self.connections.metrics.connection_closed();
    }
}

impl OpenConnection {
    /// Serves until `serving` ends, the connection is closed in favour of another, or a time-out for the peer expires.
    pub(crate) async fn serve<T>(&self, serving: impl Future<Output = T>, config: &Config) -> Option<T> {
        let mut serving = std::pin::pin!(serving);
        let timeouts = [
            config.first_byte_timeout,
            config.handshake_timeout,
            config.header_read_timeout,
            config.idle_timeout,
        ];
        let longest_pause = timeouts.into_iter().min().unwrap_or_default();
        loop {
            let pause = match self.activity.time_left(config) {
                Some(Duration::ZERO) => {
                    self.connections.metrics.connection_refused(RefusedConnection::Timeout);
                    return None;
                }
                Some(left) => left.min(longest_pause),
                None => longest_pause,
            };
            tokio::select! {
                biased;
                ended = &mut serving => return Some(ended),
                () = self.activity.closing.cancelled() => return None,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
}

/// What a connection is doing. The parts of a connection report it, and the limits read it.
pub(crate) struct Activity {
    phase: Mutex<(Phase, Instant)>,
    /// The peer does not read as fast as the gateway writes.
    write_blocked: AtomicBool,
    closing: CancellationToken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No byte has arrived, or none since the TLS handshake.
    New,
    /// A TLS handshake is under way.
    Handshake,
    /// A part of a request's head has arrived.
    ReadingHead,
    /// A request is answered.
    Busy,
    /// Between two requests.
    Idle,
}

impl Activity {
    fn new() -> Self {
        Self {
            phase: Mutex::new((Phase::New, Instant::now())),
            write_blocked: AtomicBool::new(false),
            closing: CancellationToken::new(),
        }
    }

    /// Bytes have arrived.
    pub(crate) fn received(&self) {
        let mut phase = self.phase();
        if matches!(phase.0, Phase::New | Phase::Idle) {
            *phase = (Phase::ReadingHead, Instant::now());
        }
    }

    /// The first byte of a TLS handshake has arrived.
    pub(crate) fn begin_handshake(&self) {
        *self.phase() = (Phase::Handshake, Instant::now());
    }

    /// The TLS handshake is complete. The connection is again one that has sent no request.
    pub(crate) fn end_handshake(&self) {
        *self.phase() = (Phase::New, Instant::now());
    }

    /// A write was tried; `blocked`: it found the socket's buffer full.
    pub(crate) fn wrote(&self, blocked: bool) {
        self.write_blocked.store(blocked, Ordering::Relaxed);
    }

    /// A request's head is complete. The connection is busy until the guard is dropped.
    pub(crate) fn begin_request(self: &Arc<Self>) -> BusyGuard {
        *self.phase() = (Phase::Busy, Instant::now());
        BusyGuard(self.clone())
    }

    /// If the connection is idle: whether it has never been used, and since when it is idle.
    fn idle(&self) -> Option<(bool, Instant)> {
        let phase = self.phase();
        self.is_idle(&phase).then_some((phase.0 == Phase::New, phase.1))
    }

    fn close_if_idle(&self) -> bool {
        let phase = self.phase();
        let closes = self.is_idle(&phase);
        if closes {
            self.closing.cancel();
        }
        closes
    }

    fn is_idle(&self, phase: &(Phase, Instant)) -> bool {
        matches!(phase.0, Phase::New | Phase::Idle)
            && !self.write_blocked.load(Ordering::Relaxed)
            && !self.closing.is_cancelled()
    }

    /// Time that is left for the peer's next step; `None` while the gateway answers.
    fn time_left(&self, config: &Config) -> Option<Duration> {
        let (phase, since) = *self.phase();
        let timeout = match phase {
            Phase::New => config.first_byte_timeout,
            Phase::Handshake => config.handshake_timeout,
            Phase::ReadingHead => config.header_read_timeout,
            Phase::Idle if self.write_blocked.load(Ordering::Relaxed) => return None,
            Phase::Idle => config.idle_timeout,
            Phase::Busy => return None,
        };
        Some(timeout.saturating_sub(since.elapsed()))
    }

    fn phase(&self) -> MutexGuard<'_, (Phase, Instant)> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request is being answered. The response's body holds it to its end.
pub(crate) struct BusyGuard(Arc<Activity>);

impl Drop for BusyGuard {
    fn drop(&mut self) {
        *self.0.phase() = (Phase::Idle, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_an_ipv4_address_or_a_network_of_ipv6() {
        let peer = |text: &str| PeerAddress::from(text.parse::<IpAddr>().unwrap());
        assert_eq!(peer("::ffff:10.0.0.1"), peer("10.0.0.1"));
        assert_ne!(peer("10.0.0.1"), peer("10.0.0.2"));
        assert_eq!(peer("2001:db8:0:1::1"), peer("2001:db8:0:1:ffff::2"));
        assert_ne!(peer("2001:db8:0:1::1"), peer("2001:db8:0:2::1"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_gateway_that_stays_full_is_exhausted_until_a_connection_ends() {
        let config = Config { max_connections: 1, ..Config::default() };
        let connections = Connections::new(&config, Metrics::default());
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let open = connections.admit(address).ok().unwrap();
        let busy = open.activity.begin_request();
        assert_eq!(connections.admit(address).err(), Some(RefusedConnection::TotalLimit));
        assert!(!connections.are_exhausted(), "full for a moment");
        tokio::time::advance(EXHAUSTED_AFTER).await;
        assert!(connections.are_exhausted());
        drop(busy);
        drop(open);
        assert!(!connections.are_exhausted());
        assert!(connections.open().by_peer.is_empty());
    }
}
