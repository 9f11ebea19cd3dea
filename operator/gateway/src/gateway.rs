//! What every call shares: the store, the authenticator, the budgets.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_protocol::{Limits, State};
use dalsegno_store::{Digest, RunId, Store};
use prometheus_client::registry::Registry;
use quick_cache::sync::Cache;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::Authenticator;
use crate::bases::Bases;
use crate::beat::LastBeat;
use crate::budget::Budget;
use crate::heartbeat::Heartbeats;
use crate::metrics::Metrics;
use crate::readings::Readings;
use crate::refusal::Refusal;
use crate::room::Room;
use crate::snapshots::Snapshots;

/// Runs whose worker's judgement is remembered.
const JUDGED: usize = 16_384;

/// Of the bytes that are held at once one run, or one person, takes no more than one of so many shares.
const SHARES: usize = 4;

/// Streams of events of one run's worker, or of one person, at once.
const STREAMS_EACH: usize = 8;

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

/// One gateway. Cheap to clone; all clones are the same gateway.
#[derive(Clone)]
pub struct Gateway(Arc<Shared>);

/// What all clones share. Public only to the compiler: no path leads here from outside.
pub struct Shared {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) authenticator: Arc<dyn Authenticator>,
    pub(crate) config: Config,
    pub(crate) bodies: Budget,
    pub(crate) answers: Budget,
    pub(crate) streams: Budget,
    pub(crate) readers: Budget,
    /// Calls of workers.
    pub(crate) calls: Budget,
    /// Calls that may wait for the store.
    pub(crate) askers: Semaphore,
    /// For states, and calls, that are being read.
    pub(crate) states: Readings,
    /// For those that attempts go on from: they wait for nobody who looks, and for no snapshot.
    pub(crate) resumes: Readings,
    /// Workers that were current when they were judged last.
    judged: Cache<RunId, Digest>,
    pub(crate) exports: Budget,
    pub(crate) heartbeats: Heartbeats,
    pub(crate) bases: Bases,
    pub(crate) snapshots: Snapshots,
    pub(crate) metrics: Metrics,
    pub(crate) last_beat: LastBeat,
    pub(crate) closing: CancellationToken,
}

impl std::ops::Deref for Gateway {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl Gateway {
    /// A gateway before this store. Must be called within a tokio runtime: the task that gathers heartbeats starts
    /// here, and ends with the last clone.
    pub fn new(store: Arc<dyn Store>, authenticator: Arc<dyn Authenticator>, config: Config) -> Self {
        let metrics = Metrics::default();
        Self(Arc::new(Shared {
            heartbeats: Heartbeats::start(store.clone(), &config, metrics.clone()),
            bodies: Budget::new(config.body_budget, config.body_budget / SHARES),
            answers: Budget::new(config.answer_budget, config.answer_budget / SHARES),
            streams: Budget::new(config.streams, STREAMS_EACH),
            readers: Budget::new(config.readers, config.readers / 2),
            calls: Budget::new(usize::MAX, config.calls_per_run),
            askers: Semaphore::new(config.askers),
            states: Readings::default(),
            resumes: Readings::default(),
            judged: Cache::new(JUDGED),
            exports: Budget::new(config.exports, 1),
            bases: Bases::new(config.base_budget),
            snapshots: Snapshots::default(),
            metrics,
            last_beat: LastBeat::default(),
            closing: CancellationToken::new(),
            store,
            authenticator,
            config,
        }))
    }

    /// Whether it serves, and the store has answered its beat within the last three seconds.
    pub fn is_ready(&self) -> bool {
        !self.closing.is_cancelled() && self.last_beat.is_fresh()
    }

    /// Puts the gateway's metrics into a registry, as `gateway_…` under the registry's own prefix.
    pub fn register(&self, registry: &mut Registry) {
        self.metrics.register(registry);
    }

    /// What attempts that go on take before their state is read. An operator in the same process takes of it too.
    pub fn resumes(&self) -> Room {
        self.0.resumes.room().clone()
    }

    /// Whether this worker is its run's current one, or was when it was judged last: nothing may rest on it but whose share it
    /// takes.
    pub(crate) async fn was_current(&self, run: RunId, capability: Digest) -> Result<bool, Refusal> {
        if self.judged.get(&run) == Some(capability) {
            return Ok(true);
        }
        let is_current = self.ask("judging a capability", || self.store.is_current(run, &capability)).await?;
        if is_current {
            self.judged.insert(run, capability);
        }
        Ok(is_current)
    }

    /// The state after a turn, or at the head.
    pub(crate) async fn state(&self, run: RunId, turn: Option<i32>) -> Result<Option<State>, Refusal> {
        self.ask("reading the state", || self.store.state(run, turn)).await
    }
}

/// An error with its sources, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(": ");
        text.push_str(&source.to_string());
        next = source.source();
    }
    text
}
