//! How long the gateway waits for what, and how much it takes at once.

use std::path::PathBuf;
use std::time::Duration;

use dalsegno_protocol::Limits;

/// Of the bytes that are held at once one run, or one person, takes no more than one of so many shares.
pub(crate) const SHARES: usize = 4;

/// How long the gateway waits for what, and how much it takes at once.
#[derive(Clone, Debug)]
pub struct Config {
    /// Within this the store answers, or the call is `UNAVAILABLE`; the authenticator has as long.
    pub store_deadline: Duration,
    /// How long an attach waits for its pod to be recorded before it is `NOT_READY`.
    pub record_wait: Duration,
    /// How long an attach waits for its image to be judged before it is `VERSION_PENDING`.
    pub verdict_wait: Duration,
    /// How often a waiting attach asks the store.
    pub poll: Duration,
    /// Within this the head of a request has arrived, after the one before it on the same connection; else the
    /// connection is closed.
    pub head_deadline: Duration,
    /// Within this a body has arrived whole.
    pub body_deadline: Duration,
    /// Connections open at once; more wait to be accepted.
    pub connections: usize,
    /// Bytes of bodies held at once by this process.
    pub body_budget: usize,
    /// Bytes of answers on their way out at once, small ones not counted, apart from the bodies: whoever does not read keeps
    /// no worker from committing.
    pub answer_budget: usize,
    /// A connection whose peer takes next to nothing of an answer for as long is closed.
    pub stall_limit: Duration,
    /// Streams of events at once in this process.
    pub streams: usize,
    /// How often a stream of events asks the store.
    pub follow_poll: Duration,
    /// After this long without an event a stream shows that it lives.
    pub follow_idle: Duration,
    /// After this long a stream ends, and its reader asks anew; a bundle that is not out by then breaks off.
    pub follow_limit: Duration,
    /// How often it is judged anew whether a worker may still read a bundle that is on its way out.
    pub rejudge: Duration,
    /// Calls of people under way at once, streams too: they leave room for workers.
    pub readers: usize,
    /// Bytes of full states that are remembered, so that the next ones can be kept as patches.
    pub base_budget: usize,
    /// Calls of one worker under way at once; heartbeats not counted.
    pub calls_per_run: usize,
    /// Calls that wait for the store at once, heartbeats not counted; more are refused at once.
    pub askers: usize,
    /// Bundles on their way out at once, one of each run, each of them on a connection of its own to the database.
    pub exports: usize,
    /// File of the key that signs them, Ed25519 in PEM (PKCS#8); `None`: the store's own.
    pub signing_key: Option<PathBuf>,
    /// Heartbeats that arrive within this after a batch wait for the next one.
    pub heartbeat_window: Duration,
    /// How often the gateway tells the store that it serves.
    pub beat_period: Duration,
    /// How long calls under way may take to end once the gateway is told to stop.
    pub shutdown_limit: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            store_deadline: Duration::from_secs(5),
            record_wait: Duration::from_secs(5),
            verdict_wait: Duration::from_secs(20),
            poll: Duration::from_millis(100),
            head_deadline: Duration::from_secs(60),
            body_deadline: Duration::from_secs(30),
            connections: 4_096,
            body_budget: Limits::PROCESS_BYTES,
            answer_budget: Limits::ANSWERS_BYTES,
            stall_limit: Duration::from_secs(30),
            streams: 64,
            follow_poll: Duration::from_millis(500),
            follow_idle: Duration::from_secs(15),
            follow_limit: Duration::from_secs(600),
            rejudge: Duration::from_secs(10),
            readers: 32,
            base_budget: 64 << 20,
            calls_per_run: 16,
            askers: 512,
            exports: 2,
            signing_key: None,
            heartbeat_window: Duration::from_millis(200),
            beat_period: Duration::from_secs(1),
            shutdown_limit: Duration::from_secs(10),
        }
    }
}

impl Config {
    /// Bytes of an answer that takes no place of its own: one on each connection is one share at most.
    pub(crate) fn small_answer(&self) -> usize {
        self.answer_budget / SHARES / self.connections.max(1)
    }
}
