//! The operator's Prometheus metrics.

mod labels;
mod people_api;
mod runs;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dalsegno_model::{NamespaceUsage, NotificationKind};
use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

pub use labels::NotificationOutcome;
use labels::{
    CauseLabel, EffectLabel, KindLabel, NamespaceLabel, NotificationLabel, OTHER_NAMESPACES, OutcomeLabel,
    PlaceLabel, ResultLabel, SinkLabel, WatchLabel, notification_label, outcome,
};
pub use people_api::PeopleApiMetrics;
pub use runs::{RunMetrics, StateLabel};

use crate::mutex::lock;

/// The operator's metrics. No label names a run; one names the few namespaces with the most stored bytes.
#[derive(Clone, Default)]
pub struct Metrics {
    /// Metrics of runs and their recoveries.
    pub runs: RunMetrics,
    /// Metrics of the registration of the aggregated API.
    pub people_api: PeopleApiMetrics,
    effects: Family<EffectLabel, Counter>,
    attempts_ended: Family<CauseLabel, Counter>,
    reconciles: Family<OutcomeLabel, Counter>,
    reconcile_seconds: ReconcileSeconds,
    reconcile_panics: Counter,
    queue_oldest: Gauge<f64, AtomicU64>,
    deadline_polls: Family<OutcomeLabel, Counter>,
    lookups: Family<ResultLabel, Counter>,
    invalid_objects: Family<KindLabel, Gauge>,
    damage: Family<PlaceLabel, Counter>,
    status_conflicts: Counter,
    waiting_runs: Gauge,
    policies_in_place: Gauge,
    certificate_expiry: Family<[(String, String); 0], Gauge>,
    ca_expiry: Family<[(String, String); 0], Gauge>,
    ca_waiting_pods: Gauge,
    plain_workers: Gauge,
    active_runs: Gauge,
    watch_age: Family<WatchLabel, Gauge<f64, AtomicU64>>,
    anchored_until: Family<SinkLabel, Gauge>,
    expired_runs: Counter,
    expired_rows: Counter,
    old_rows: Counter,
    /// Unset until the first round has ended.
    retention_round: Family<[(String, String); 0], Gauge>,
    purged_runs: Counter,
    purged_rows: Counter,
    notifications: Family<NotificationLabel, Counter>,
    notifications_waiting: Gauge,
    notifications_oldest: Gauge<f64, AtomicU64>,
    stored_bytes: Family<NamespaceLabel, Gauge>,
    /// The namespaces that `stored_bytes` has now.
    namespaces: Arc<Mutex<Vec<NamespaceLabel>>>,
}

/// Where damage can be found: when a head is verified, a run is looked up, or retention drops payloads.
const DAMAGE_PLACES: [&str; 3] = ["head", "run", "retention"];

/// Kinds whose objects can be invalid.
const KINDS: [&str; 2] = ["AgentRun", "AgentDefinition"];

#[derive(Clone)]
struct ReconcileSeconds(Histogram);

impl Default for ReconcileSeconds {
    fn default() -> Self {
        // 1 ms to 33 s.
        Self(Histogram::new(exponential_buckets(0.001, 2.0, 16)))
    }
}

impl Metrics {
    /// Registers the metrics: those of runs and of the queue as they are, and the others as `operator_…`, below the prefix of
    /// the registry.
    pub fn register(&self, registry: &mut Registry) {
        // Series that are alerted on exist from the start, so that `rate` sees their first increment.
        for kind in KINDS {
            drop(self.invalid_objects.get_or_create(&KindLabel { kind }));
        }
        for place in DAMAGE_PLACES {
            drop(self.damage.get_or_create(&PlaceLabel { place }));
        }
        for kind in NotificationKind::ALL {
            for outcome in NotificationOutcome::ALL {
                drop(self.notifications.get_or_create(&notification_label(*kind, outcome)));
            }
        }
        self.runs.register(registry);
        registry.register(
            "queue_oldest_seconds",
            "How long the run that waits longest for a reconcile has waited",
            self.queue_oldest.clone(),
        );
        registry.register(
            "reconcile_panics",
            "Reconciles that a defect of the operator stopped",
            self.reconcile_panics.clone(),
        );
        let registry = registry.sub_registry_with_prefix("operator");
        self.people_api.register(registry);
        registry.register("effects", "Effects performed, by effect", self.effects.clone());
        registry.register("attempts_ended", "Attempts ended, by cause", self.attempts_ended.clone());
        registry.register("reconciles", "Reconciles, by outcome", self.reconciles.clone());
        registry.register("reconcile_seconds", "Duration of a reconcile", self.reconcile_seconds.0.clone());
        registry.register(
            "deadline_polls",
            "Queries for expired deadlines and changed runs, by outcome",
            self.deadline_polls.clone(),
        );
        registry.register("lookups", "Lookups of a run in the store, by result", self.lookups.clone());
        registry.register(
            "invalid_objects",
            "Objects that this version cannot parse, by kind",
            self.invalid_objects.clone(),
        );
        registry.register("damage", "Reads of the store that found damage, by place", self.damage.clone());
        registry.register(
            "status_conflicts",
            "Status writes that the API server rejected, because the cache was behind",
            self.status_conflicts.clone(),
        );
        registry.register(
            "waiting_runs",
            "Runs that wait for their reconcile, because all slots are in use",
            self.waiting_runs.clone(),
        );
        registry.register(
            "policies_in_place",
            "Whether the admission policies are in place that prove who decided: 1, or 0",
            self.policies_in_place.clone(),
        );
        registry.register(
            "certificate_expiry_timestamp_seconds",
            "Unix time at which the gateway's certificate expires",
            self.certificate_expiry.clone(),
        );
        registry.register(
            "ca_expiry_timestamp_seconds",
            "Unix time at which the operator's newest CA expires",
            self.ca_expiry.clone(),
        );
        registry.register(
            "ca_waiting_pods",
            "Pods that keep the gateway's certificate from being replaced, because they lack the new CA",
            self.ca_waiting_pods.clone(),
        );
        registry.register(
            "plain_workers",
            "Workers that were started before the gateway had TLS and use plain HTTP",
            self.plain_workers.clone(),
        );
        registry.register("active_runs", "Runs with an attached worker", self.active_runs.clone());
        registry.register(
            "watch_age_seconds",
            "Time since each watch of the API server was last heard, by kind",
            self.watch_age.clone(),
        );
        registry.register(
            "anchored_until_timestamp_seconds",
            "Every change of a run before this Unix time is anchored, and the sink has the anchor",
            self.anchored_until.clone(),
        );
        registry.register(
            "expired_runs",
            "Runs past their retention whose payloads were dropped",
            self.expired_runs.clone(),
        );
        registry.register("expired_rows", "Rows dropped of such runs", self.expired_rows.clone());
        registry.register(
            "retention_round_timestamp_seconds",
            "Unix time at which a round of retention ended that looked at all runs",
            self.retention_round.clone(),
        );
        registry.register(
            "old_rows",
            "Rows dropped before the last boundaries that a run keeps",
            self.old_rows.clone(),
        );
        registry.register("purged_runs", "Runs that were deleted from the store", self.purged_runs.clone());
        registry.register("purged_rows", "Rows deleted with such runs", self.purged_rows.clone());
        registry.register(
            "notifications",
            "Tries of notifications, by kind and outcome",
            self.notifications.clone(),
        );
        registry.register(
            "notifications_waiting",
            "Notifications in the store's outbox",
            self.notifications_waiting.clone(),
        );
        registry.register(
            "notifications_oldest_seconds",
            "Age of the oldest notification in the store's outbox",
            self.notifications_oldest.clone(),
        );
        registry.register(
            "stored_bytes",
            "Bytes of states and events in boundaries (without snapshots, calls, records), by namespace: those with the \
             most bytes, and all others together",
            self.stored_bytes.clone(),
        );
    }

    /// Sets the time until which every change of a run is anchored. `sink`: name of the sink that has the anchor.
    pub fn set_anchored_until(&self, sink: &'static str, time: Timestamp) {
        self.anchored_until.get_or_create(&SinkLabel { sink }).set(time.as_second());
    }

    /// Counts an effect that was performed.
    pub fn count_effect(&self, effect: &'static str) {
        self.effects.get_or_create(&EffectLabel { effect }).inc();
    }

    /// Counts an attempt that was ended.
    pub fn count_attempt_ended(&self, cause: &str) {
        self.attempts_ended.get_or_create(&CauseLabel { cause: cause.to_owned() }).inc();
    }

    /// Records the outcome and the duration of a reconcile.
    pub fn observe_reconcile(&self, duration: Duration, ok: bool) {
        self.reconciles.get_or_create(&outcome(ok)).inc();
        self.reconcile_seconds.0.observe(duration.as_secs_f64());
    }

    /// Counts a reconcile that panicked.
    pub fn count_panic(&self) {
        self.reconcile_panics.inc();
    }

    /// Sets how long the run that waits longest for a reconcile has waited.
    pub fn set_queue_oldest(&self, age: Duration) {
        self.queue_oldest.set(age.as_secs_f64());
    }

    /// Creates the series of deadline polls at 0. Called by the leader only: a standby does not poll, and must not be
    /// alerted on.
    pub fn start_deadline_polls(&self) {
        drop(self.deadline_polls.get_or_create(&outcome(true)));
    }

    /// Counts a deadline poll.
    pub fn count_deadline_poll(&self, ok: bool) {
        self.deadline_polls.get_or_create(&outcome(ok)).inc();
    }

    /// Counts a lookup of a run in the store: `found`, `not-found` or `unknown`.
    pub fn count_lookup(&self, result: &'static str) {
        self.lookups.get_or_create(&ResultLabel { result }).inc();
    }

    /// Sets whether the chart's admission policies are in place.
    pub fn set_policies_in_place(&self, in_place: bool) {
        self.policies_in_place.set(in_place.into());
    }

    /// Sets when the gateway's certificate and the newest CA expire, how many pods lack that CA, and how many workers have no
    /// TLS.
    pub fn set_certificates(
        &self,
        certificate: Option<Timestamp>,
        authority: Option<Timestamp>,
        [waiting, plain]: [usize; 2],
    ) {
        for (gauge, at) in [(&self.certificate_expiry, certificate), (&self.ca_expiry, authority)] {
            if let Some(at) = at {
                gauge.get_or_create(&[]).set(at.as_second());
            }
        }
        self.ca_waiting_pods.set(i64::try_from(waiting).unwrap_or(i64::MAX));
        self.plain_workers.set(i64::try_from(plain).unwrap_or(i64::MAX));
    }

    /// Sets the number of runs that wait for their reconcile.
    pub fn set_waiting_runs(&self, runs: usize) {
        self.waiting_runs.set(i64::try_from(runs).unwrap_or(i64::MAX));
    }

    /// Counts a status write that the API server rejected, because the cache was behind.
    pub fn count_status_conflict(&self) {
        self.status_conflicts.inc();
    }

    /// Sets the number of invalid objects of each kind.
    pub fn set_invalid_objects(&self, count: impl Fn(&str) -> usize) {
        for kind in KINDS {
            let objects = i64::try_from(count(kind)).unwrap_or(i64::MAX);
            self.invalid_objects.get_or_create(&KindLabel { kind }).set(objects);
        }
    }

    /// Counts damage in the store: a read found something else than was written.
    pub fn count_damage(&self, place: &'static str) {
        self.damage.get_or_create(&PlaceLabel { place }).inc();
    }

    /// Counts an error of the store, if it is damage.
    pub fn count_store_error(&self, place: &'static str, error: &dalsegno_model::Error) {
        if matches!(error, dalsegno_model::Error::Corrupt { .. }) {
            self.count_damage(place);
        }
    }

    /// Counts rows dropped of a run past its retention; `done`: they were the last ones.
    pub fn count_expired_rows(&self, rows: u64, done: bool) {
        self.expired_rows.inc_by(rows);
        self.expired_runs.inc_by(done.into());
    }

    /// A round of retention looked at all runs, and ended now.
    pub fn retention_round_ended(&self, now: Timestamp) {
        self.retention_round.get_or_create(&[]).set(now.as_second());
    }

    /// Counts rows dropped before the last boundaries that a run keeps.
    pub fn count_old_rows(&self, rows: u64) {
        self.old_rows.inc_by(rows);
    }

    /// Counts a try of a notification.
    pub fn count_notification(&self, kind: NotificationKind, outcome: NotificationOutcome) {
        self.notifications.get_or_create(&notification_label(kind, outcome)).inc();
    }

    /// Sets how many notifications wait, and the age of the oldest in seconds.
    pub fn set_notifications_waiting(&self, waiting: i64, oldest: f64) {
        self.notifications_waiting.set(waiting);
        self.notifications_oldest.set(oldest);
    }

    /// Counts runs that were deleted from the store, and their rows.
    pub fn count_purged(&self, runs: u64, rows: u64) {
        self.purged_runs.inc_by(runs);
        self.purged_rows.inc_by(rows);
    }

    /// Sets the stored bytes of namespaces, and removes the series of namespaces that are not listed any more.
    pub fn set_stored_bytes(&self, usage: Vec<NamespaceUsage>) {
        let mut namespaces = lock(&self.namespaces);
        let before = std::mem::take(&mut *namespaces);
        for NamespaceUsage { namespace, bytes } in usage {
            let label =
                NamespaceLabel { namespace: namespace.unwrap_or_else(|| OTHER_NAMESPACES.to_owned()) };
            self.stored_bytes.get_or_create(&label).set(bytes);
            namespaces.push(label);
        }
        for gone in before.iter().filter(|label| !namespaces.contains(label)) {
            self.stored_bytes.remove(gone);
        }
    }

    /// Sets how long ago the watch of a kind was heard.
    pub fn set_watch_age(&self, kind: &str, age: Duration) {
        self.watch_age.get_or_create(&WatchLabel { kind: kind.to_owned() }).set(age.as_secs_f64());
    }

    /// Sets the number of runs with an attached worker.
    pub fn set_active_runs(&self, runs: i64) {
        self.active_runs.set(runs);
    }
}

#[cfg(test)]
pub mod tests;
