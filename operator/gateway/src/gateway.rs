//! What all calls share: the store, the authenticator, the limits, the metrics.

use std::sync::atomic::AtomicI32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dalsegno_model::{Digest, HEARTBEAT_GAP_MS, RunId, Store};
use dalsegno_protocol::{FIRST_CONTRACT, Limits};
use prometheus_client::registry::Registry;
use quick_cache::sync::Cache;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::accept_health::AcceptHealth;
use crate::authenticator::Authenticator;
use crate::background::heartbeat_batcher::HeartbeatBatcher;
use crate::background::snapshot_schedule::SnapshotSchedule;
use crate::background::wait_poller::WaitPoller;
use crate::config::{Config, SHARES};
use crate::delta_base_cache::DeltaBaseCache;
use crate::limits::connections::Connections;
use crate::limits::shared_limit::{Maximum, SharedLimit};
use crate::limits::state_reads::{OwnerTurns, StateReadBudget, StateReadLimiter};
use crate::metrics::Metrics;
use crate::token_reviews::TokenReviews;

/// Workers that attach have this part of the calls that may wait for the store: a thousand new pods must not keep those
/// of the others from committing.
const ATTACH_SHARE: usize = 8;

/// Runs whose current worker is remembered.
const CURRENT_WORKERS: usize = 16_384;

/// Event streams of one run's worker, or of one user, at once.
const STREAMS_PER_OWNER: usize = 8;

/// One gateway. Cheap to clone; all clones are the same gateway.
#[derive(Clone)]
pub struct Gateway(Arc<Shared>);

/// What all clones of a gateway share. Public only because it is the target of `Deref`; no path leads to it.
pub struct Shared {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) token_reviews: TokenReviews,
    pub(crate) config: Config,
    pub(crate) connections: Arc<Connections>,
    /// Bytes of request bodies.
    pub(crate) request_bytes: SharedLimit,
    /// Bytes of responses.
    pub(crate) response_bytes: SharedLimit,
    pub(crate) event_streams: SharedLimit,
    /// Calls of users.
    pub(crate) user_calls: SharedLimit,
    /// Calls of workers.
    pub(crate) worker_calls: SharedLimit,
    /// Calls that may wait for the store.
    pub(crate) store_calls: Semaphore,
    /// Store calls of workers that attach.
    pub(crate) attach_calls: Semaphore,
    pub(crate) exports: SharedLimit,
    /// Limits reads for inspection, and for snapshots.
    pub(crate) inspection_reads: StateReadLimiter,
    /// Limits reads by attempts that resume. They never wait for an inspection or a snapshot.
    pub(crate) resume_reads: StateReadLimiter,
    /// Pages of events and records that are read at once.
    pub(crate) page_reads: Semaphore,
    /// Each owner reads one page at a time.
    pub(crate) page_turns: OwnerTurns,
    /// The capability of each run's current worker, as last verified.
    pub(crate) current_workers: Cache<RunId, Digest>,
    pub(crate) heartbeat_batcher: HeartbeatBatcher,
    pub(crate) wait_poller: WaitPoller,
    pub(crate) delta_bases: DeltaBaseCache,
    pub(crate) snapshot_schedule: SnapshotSchedule,
    pub(crate) metrics: Metrics,
    pub(crate) last_heartbeat: LastHeartbeat,
    /// The lowest version of the contract among the gateways that serve. Until the store has said it: the first one.
    pub(crate) contract: AtomicI32,
    pub(crate) accept_health: AcceptHealth,
    /// Cancelled once the gateway is stopping.
    pub(crate) stopping: CancellationToken,
}

impl std::ops::Deref for Gateway {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl Gateway {
    /// A gateway in front of this store. It starts the tasks that batch heartbeats and poll waits, which end with the
    /// last clone.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn new(store: Arc<dyn Store>, authenticator: Arc<dyn Authenticator>, config: Config) -> Self {
        let limit = |total, per_owner| SharedLimit::new(Maximum { total, per_owner });
        let metrics = Metrics::default();
        Self(Arc::new(Shared {
            heartbeat_batcher: HeartbeatBatcher::start(store.clone(), &config, metrics.clone()),
            wait_poller: WaitPoller::start(store.clone(), &config, metrics.clone()),
            connections: Connections::new(&config, metrics.clone()),
            token_reviews: TokenReviews::new(authenticator, &config, metrics.clone()),
            request_bytes: limit(config.max_request_bytes, config.max_request_bytes / SHARES),
            response_bytes: limit(config.max_response_bytes, config.max_response_bytes / SHARES),
            event_streams: limit(config.max_event_streams, STREAMS_PER_OWNER),
            user_calls: limit(config.max_user_calls, config.max_user_calls / 2),
            worker_calls: limit(usize::MAX, config.max_calls_per_run),
            store_calls: Semaphore::new(config.max_store_calls),
            attach_calls: Semaphore::new((config.max_store_calls / ATTACH_SHARE).max(1)),
            exports: limit(config.max_exports, 1),
            inspection_reads: StateReadLimiter::new(config.max_inspection_bytes, config.store_timeout),
            resume_reads: StateReadLimiter::new(config.max_resume_bytes, config.store_timeout),
            page_reads: Semaphore::new((config.max_page_bytes / Limits::PAGE_BYTES).max(1)),
            page_turns: OwnerTurns::new(),
            current_workers: Cache::new(CURRENT_WORKERS),
            delta_bases: DeltaBaseCache::new(config.max_delta_base_bytes),
            snapshot_schedule: SnapshotSchedule::default(),
            metrics,
            last_heartbeat: LastHeartbeat::default(),
            contract: AtomicI32::new(FIRST_CONTRACT),
            accept_health: AcceptHealth::default(),
            stopping: CancellationToken::new(),
            store,
            config,
        }))
    }

    /// Whether the gateway serves and accepts connections, the store has answered its heartbeat within the last three
    /// seconds, and the gateway has not been full of busy connections for ten seconds.
    pub fn is_ready(&self) -> bool {
        !self.stopping.is_cancelled()
            && self.last_heartbeat.is_fresh()
            && !self.connections.are_exhausted()
            && self.accept_health.is_ready()
    }

    /// Why the process must be restarted, if it must: it has not been able to accept a connection for
    /// [`Config::accept_failure_limit`], for example because it has no file descriptor left.
    pub fn failure(&self) -> Option<String> {
        self.accept_health.failure(self.config.accept_failure_limit)
    }

    /// Registers the gateway's metrics, named `gateway_…` under the registry's own prefix.
    pub fn register(&self, registry: &mut Registry) {
        self.metrics.register(registry);
    }

    /// The budget for reading the heads that attempts resume from. An operator in the same process shares it.
    pub fn resume_reads(&self) -> StateReadBudget {
        self.0.resume_reads.budget().clone()
    }
}

/// When the store last answered a gateway heartbeat.
#[derive(Default)]
pub(crate) struct LastHeartbeat(Mutex<Option<Instant>>);

impl LastHeartbeat {
    /// The store has answered now.
    pub(crate) fn record(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Whether it is recent enough for the operator not to see a gap.
    pub(crate) fn is_fresh(&self) -> bool {
        self.is_within(Duration::from_millis(HEARTBEAT_GAP_MS.unsigned_abs()))
    }

    /// Whether it is less than this long ago.
    pub(crate) fn is_within(&self, limit: Duration) -> bool {
        let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.is_some_and(|last| last.elapsed() < limit)
    }
}
