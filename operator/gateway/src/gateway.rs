//! What every call shares: the store, the authenticator, the budgets.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dalsegno_store::{BEAT_GAP_MS, Digest, RunId, Store};
use prometheus_client::registry::Registry;
use quick_cache::sync::Cache;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::authenticator::Authenticator;
use crate::background::heartbeat_batcher::Heartbeats;
use crate::background::snapshot_schedule::Snapshots;
use crate::config::{Config, SHARES};
use crate::delta_bases::Bases;
use crate::limits::shared_limit::Budget;
use crate::limits::state_reads::Readings;
use crate::limits::state_reads::Room;
use crate::metrics::Metrics;

/// Runs whose worker's judgement is remembered.
const JUDGED: usize = 16_384;

/// Streams of events of one run's worker, or of one person, at once.
const STREAMS_EACH: usize = 8;

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
    pub(crate) judged: Cache<RunId, Digest>,
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
            states: Readings::new(config.store_deadline),
            resumes: Readings::new(config.store_deadline),
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
}

/// When the store last answered a beat.
#[derive(Default)]
pub(crate) struct LastBeat(Mutex<Option<Instant>>);

impl LastBeat {
    pub(crate) fn set(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Whether that was less than a gap ago.
    pub(crate) fn is_fresh(&self) -> bool {
        self.is_within(Duration::from_millis(BEAT_GAP_MS.unsigned_abs()))
    }

    /// Whether that was less than so long ago.
    pub(crate) fn is_within(&self, limit: Duration) -> bool {
        let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.is_some_and(|last| last.elapsed() < limit)
    }
}
