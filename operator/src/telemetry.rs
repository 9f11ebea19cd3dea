//! What the program says of itself: metrics, health.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::routing::get;
use dalsegno_store::Held;
use prometheus_client::encoding::{EncodeLabelSet, text::encode};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;

use crate::sync::lock;

/// An error with its sources, in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    text
}

/// The operator's metrics. No label ever names a run; one names the few namespaces that hold most.
#[derive(Clone, Default)]
pub struct Metrics {
    effects: Family<EffectLabel, Counter>,
    ended: Family<CauseLabel, Counter>,
    reconciles: Family<OutcomeLabel, Counter>,
    pulses: Family<OutcomeLabel, Counter>,
    lookups: Family<ResultLabel, Counter>,
    unreadable: Family<KindLabel, Gauge>,
    damage: Family<PlaceLabel, Counter>,
    active: Gauge,
    expired_runs: Counter,
    expired_rows: Counter,
    held: Family<NamespaceLabel, Gauge>,
    /// Which namespaces `held` names.
    holders: Arc<Mutex<Vec<NamespaceLabel>>>,
    old_rows: Counter,
    seconds: Seconds,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NamespaceLabel {
    namespace: String,
}

/// What stands for all namespaces that are not named. None can be called so.
const OTHERS: &str = "(others)";

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EffectLabel {
    effect: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CauseLabel {
    cause: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PlaceLabel {
    place: &'static str,
}

/// Where damage is met.
const PLACES: [&str; 3] = ["head", "run", "retention"];

/// What may not be what this version reads.
const KINDS: [&str; 2] = ["AgentRun", "AgentDefinition"];

#[derive(Clone)]
struct Seconds(Histogram);

impl Default for Seconds {
    fn default() -> Self {
        // 1 ms to 33 s.
        Self(Histogram::new(exponential_buckets(0.001, 2.0, 16)))
    }
}

fn outcome(ok: bool) -> OutcomeLabel {
    OutcomeLabel { outcome: if ok { "ok" } else { "error" } }
}

impl Metrics {
    /// Puts them into a registry, as `operator_…` under the registry's own prefix.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("operator");
        registry.register("effects", "Changes made, by effect", self.effects.clone());
        registry.register("attempts_ended", "Attempts ended, by cause", self.ended.clone());
        registry.register("reconciles", "Reconciles, by outcome", self.reconciles.clone());
        registry.register("pulses", "Queries for deadlines and changes, by outcome", self.pulses.clone());
        registry.register("lookups", "Looks into the store, by what came back", self.lookups.clone());
        for kind in KINDS {
            drop(self.unreadable.get_or_create(&KindLabel { kind }));
        }
        registry.register(
            "unreadable_objects",
            "Objects that are not what this version reads, by kind",
            self.unreadable.clone(),
        );
        // There from the start, so that a rate can be taken of the first one too.
        for place in PLACES {
            drop(self.damage.get_or_create(&PlaceLabel { place }));
        }
        registry.register(
            "damage",
            "Looks into the store that met damage, by what was looked at",
            self.damage.clone(),
        );
        registry.register(
            "expired_runs",
            "Runs whose payloads are past their retention, and dropped",
            self.expired_runs.clone(),
        );
        registry.register("expired_rows", "Rows dropped of such runs", self.expired_rows.clone());
        registry.register(
            "stored_bytes",
            "Bytes of states and events that boundaries brought (not snapshots, calls, records), by namespace: of those \
             that hold most, and of all others",
            self.held.clone(),
        );
        registry.register(
            "old_rows",
            "Rows dropped before the last boundaries that runs keep",
            self.old_rows.clone(),
        );
        registry.register("active_runs", "Runs with an attached worker", self.active.clone());
        registry.register("reconcile_seconds", "Time a reconcile took", self.seconds.0.clone());
    }

    /// An effect was performed.
    pub fn effect(&self, effect: &'static str) {
        self.effects.get_or_create(&EffectLabel { effect }).inc();
    }

    /// An attempt was ended for this cause.
    pub fn ended(&self, cause: &str) {
        self.ended.get_or_create(&CauseLabel { cause: cause.to_owned() }).inc();
    }

    /// A reconcile came to an end.
    pub fn reconciled(&self, took: Duration, ok: bool) {
        self.reconciles.get_or_create(&outcome(ok)).inc();
        self.seconds.0.observe(took.as_secs_f64());
    }

    /// The store will be asked for its pulse from now on. Only now: a standby asks for none, and is not to be alerted of.
    pub fn pulse_begins(&self) {
        drop(self.pulses.get_or_create(&outcome(true)));
    }

    /// The store was asked for its pulse.
    pub fn pulse(&self, ok: bool) {
        self.pulses.get_or_create(&outcome(ok)).inc();
    }

    /// The store was asked for a run, and this came back.
    pub fn looked_up(&self, result: &'static str) {
        self.lookups.get_or_create(&ResultLabel { result }).inc();
    }

    /// So many objects of each kind are not what this version reads.
    pub fn unreadable(&self, objects: impl Fn(&str) -> usize) {
        for kind in KINDS {
            let objects = i64::try_from(objects(kind)).unwrap_or(i64::MAX);
            self.unreadable.get_or_create(&KindLabel { kind }).set(objects);
        }
    }

    /// What stands in the store at this place is not what was written.
    pub fn damage(&self, place: &'static str) {
        self.damage.get_or_create(&PlaceLabel { place }).inc();
    }

    /// The store failed at this place: with damage or without, which is not counted here.
    pub fn failed(&self, place: &'static str, error: &dalsegno_store::Error) {
        if matches!(error, dalsegno_store::Error::Corrupt { .. }) {
            self.damage(place);
        }
    }

    /// So many rows of a run that is past its retention were dropped; the last ones, if it is done.
    pub fn dropped(&self, rows: u64, done: bool) {
        self.expired_rows.inc_by(rows);
        self.expired_runs.inc_by(done.into());
    }

    /// What the namespaces hold now; one that is not among them any more is not told of.
    pub fn holds(&self, now: Vec<Held>) {
        let mut holders = lock(&self.holders);
        let before = std::mem::take(&mut *holders);
        for Held { namespace, bytes } in now {
            let label = NamespaceLabel { namespace: namespace.unwrap_or_else(|| OTHERS.to_owned()) };
            self.held.get_or_create(&label).set(bytes);
            holders.push(label);
        }
        for gone in before.iter().filter(|label| !holders.contains(label)) {
            self.held.remove(gone);
        }
    }

    /// So many rows before the last boundaries that a run keeps were dropped.
    pub fn dropped_old(&self, rows: u64) {
        self.old_rows.inc_by(rows);
    }

    /// So many runs have an attached worker.
    pub fn active(&self, runs: i64) {
        self.active.set(runs);
    }
}

/// Answers whether one part of the program is ready.
pub type Ready = Arc<dyn Fn() -> bool + Send + Sync>;

/// Serves `/healthz`, `/readyz` and `/metrics` until `stop` is ready.
///
/// # Errors
///
/// The address cannot be listened on.
pub async fn serve_health(
    listen: SocketAddr,
    ready: Vec<Ready>,
    registry: Registry,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let registry = Arc::new(Mutex::new(registry));
    let metrics = move || async move {
        let mut text = String::new();
        let encoded = encode(&mut text, &lock(&registry));
        let status = if encoded.is_ok() { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
        (status, [(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text)
    };
    let readiness = move || async move {
        if ready.iter().all(|part| part()) {
            (StatusCode::OK, "ready")
        } else {
            (StatusCode::SERVICE_UNAVAILABLE, "not ready")
        }
    };
    let app = Router::new()
        .route("/healthz", get(|| async { "alive" }))
        .route("/readyz", get(readiness))
        .route("/metrics", get(metrics));
    axum::serve(TcpListener::bind(listen).await?, app).with_graceful_shutdown(stop).await
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../docs/reference/metrics.md");
    const SOURCE: &str = include_str!("telemetry.rs");

    /// Name and type of every metric in a section of the page.
    fn documented(title: &str) -> Vec<(String, String)> {
        let section = PAGE.split("\n## ").find(|section| section.starts_with(title)).unwrap_or_default();
        let rows = section.lines().filter(|line| line.starts_with("| `"));
        let mut found: Vec<_> = rows
            .map(|row| {
                let mut cells = row.trim_matches('|').split('|').map(|it| it.trim().replace('`', ""));
                (cells.next().unwrap_or_default(), cells.next().unwrap_or_default())
            })
            .collect();
        found.sort();
        found
    }

    /// What `/metrics` says.
    fn told(metrics: &Metrics) -> String {
        let (mut registry, mut text) = (Registry::with_prefix("dalsegno"), String::new());
        metrics.register(&mut registry);
        encode(&mut text, &registry).expect("metrics are text");
        text
    }

    #[test]
    fn what_is_alerted_of_the_first_time_is_counted_from_0_on() {
        let text = told(&Metrics::default());
        for series in [
            r#"unreadable_objects{kind="AgentRun"}"#,
            r#"unreadable_objects{kind="AgentDefinition"}"#,
            r#"damage_total{place="head"}"#,
            r#"damage_total{place="run"}"#,
            r#"damage_total{place="retention"}"#,
        ] {
            assert!(text.contains(&format!("\ndalsegno_operator_{series} 0\n")), "{series}\n{text}");
        }
    }

    #[test]
    fn the_time_of_a_reconcile_that_is_alerted_of_is_within_the_buckets() {
        let alert = PAGE.split("| time that a reconcile took | p99 over ").nth(1).unwrap_or_default();
        let seconds = alert.split(' ').next().and_then(|it| it.parse().ok()).unwrap_or(f64::INFINITY);
        let text = told(&Metrics::default());
        let bounds = text.lines().filter_map(|line| {
            line.strip_prefix("dalsegno_operator_reconcile_seconds_bucket{le=\"")?.split('"').next()
        });
        let largest =
            bounds.filter_map(|it| it.parse().ok()).filter(|it: &f64| it.is_finite()).fold(0.0, f64::max);
        assert!(seconds < largest, "{seconds} {largest}");
    }

    #[test]
    fn a_namespace_is_told_of_while_it_is_among_those_that_hold_most() {
        let metrics = Metrics::default();
        let held = |namespace: Option<&str>, bytes| Held { namespace: namespace.map(str::to_owned), bytes };
        metrics.holds(vec![held(None, 3), held(Some("bank"), 10), held(Some("shop"), 20)]);
        metrics.holds(vec![held(None, 13), held(Some("shop"), 25)]);
        let text = told(&metrics);
        let mut held: Vec<_> =
            text.lines().filter(|line| line.starts_with("dalsegno_operator_stored_bytes{")).collect();
        held.sort();
        let expected = [
            r#"dalsegno_operator_stored_bytes{namespace="(others)"} 13"#,
            r#"dalsegno_operator_stored_bytes{namespace="shop"} 25"#,
        ];
        assert_eq!(held, expected);
    }

    #[test]
    fn the_page_of_metrics_names_each_of_them_and_no_other() {
        let metrics = Metrics::default();
        metrics.effect("status");
        metrics.ended("OOMKilled");
        metrics.reconciled(Duration::from_millis(5), true);
        metrics.pulse(true);
        metrics.looked_up("found");
        metrics.holds(vec![Held { namespace: Some("shop".into()), bytes: 1 }]);
        metrics.active(1);
        let text = told(&metrics);
        let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
        let mut registered: Vec<_> = types
            .map(|(name, kind)| {
                let total = if kind == "counter" { "_total" } else { "" };
                (format!("{name}{total}"), kind.to_owned())
            })
            .collect();
        registered.sort();
        // One that has never counted is not in the text.
        let sources = SOURCE.split("#[cfg(test)]").next().unwrap_or_default();
        assert_eq!(registered.len(), sources.matches("registry.register(").count(), "{registered:#?}");
        assert_eq!(documented("Operator"), registered);
    }
}
