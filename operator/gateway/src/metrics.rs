//! The gateway's metrics. Labels have few and fixed values: a call, a code, an outcome, never a run. `docs/reference/metrics.md`
//! lists them, and a test compares the two.

use std::time::Duration;

use dalsegno_model::{Committed, Error};
use dalsegno_protocol::{Code, Problem};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::response::ApiProblem;

/// All clones count together.
#[derive(Clone)]
pub(crate) struct Metrics {
    requests: Family<RequestLabels, Counter>,
    commit_seconds: Family<OutcomeLabel, Histogram>,
    commit_bytes: Family<OutcomeLabel, Histogram>,
    store_failures: Family<FailureLabel, Counter>,
    store_retries: Counter,
    snapshots: Family<OutcomeLabel, Counter>,
    snapshot_lag: Histogram,
    open_connections: Gauge,
    refused_connections: Family<ReasonLabel, Counter>,
    token_reviews: Family<OutcomeLabel, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    call: &'static str,
    code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FailureLabel {
    failure: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// Why a connection is refused, or closed before it has sent a whole request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefusedConnection {
    /// Its address has as many connections as one may have.
    PeerLimit,
    /// The gateway has as many connections as it may have.
    TotalLimit,
    /// It was idle, and a new connection took its place.
    Displaced,
    /// It sent no request in time, or did not complete its TLS handshake in time.
    Timeout,
    /// It spoke plain HTTP to the port of TLS.
    NotTls,
    /// Its TLS handshake failed, for example because its client does not trust the certificate.
    Handshake,
}

impl RefusedConnection {
    const ALL: [Self; 6] =
        [Self::PeerLimit, Self::TotalLimit, Self::Displaced, Self::Timeout, Self::NotTls, Self::Handshake];

    fn label(self) -> ReasonLabel {
        let reason = match self {
            Self::PeerLimit => "peer-limit",
            Self::TotalLimit => "total-limit",
            Self::Displaced => "displaced",
            Self::Timeout => "timeout",
            Self::NotTls => "not-tls",
            Self::Handshake => "handshake",
        };
        ReasonLabel { reason }
    }
}

/// What became of a bearer token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenReviewOutcome {
    /// A review has accepted it.
    Accepted,
    /// A review has refused it.
    Refused,
    /// A review has accepted it, and its holder lacks the right.
    Denied,
    /// The review failed or took too long.
    Unavailable,
    /// An earlier review of the same token has decided.
    Cached,
    /// There was no place for a review in time.
    Rejected,
}

impl TokenReviewOutcome {
    const ALL: [Self; 6] =
        [Self::Accepted, Self::Refused, Self::Denied, Self::Unavailable, Self::Cached, Self::Rejected];

    fn label(self) -> OutcomeLabel {
        let outcome = match self {
            Self::Accepted => "accepted",
            Self::Refused => "refused",
            Self::Denied => "denied",
            Self::Unavailable => "unavailable",
            Self::Cached => "cached",
            Self::Rejected => "rejected",
        };
        OutcomeLabel { outcome }
    }
}

/// How a store call can fail.
const FAILURES: [&str; 6] = ["unavailable", "timeout", "corrupt", "rejected", "unusable", "storage-full"];

impl Default for Metrics {
    fn default() -> Self {
        Self {
            requests: Family::default(),
            // 0.5 ms to 8 s.
            commit_seconds: Family::new_with_constructor(|| {
                Histogram::new(exponential_buckets(0.000_5, 2.0, 15))
            }),
            // 256 bytes to 16 MiB, the largest body.
            commit_bytes: Family::new_with_constructor(|| Histogram::new(exponential_buckets(256.0, 4.0, 9))),
            store_failures: Family::default(),
            store_retries: Counter::default(),
            snapshots: Family::default(),
            // Among them the lag at which a snapshot is due, and the lag above which it is overdue.
            snapshot_lag: Histogram::new([1.0, 5.0, 10.0, 20.0, 50.0, 100.0, 1_000.0]),
            open_connections: Gauge::default(),
            refused_connections: Family::default(),
            token_reviews: Family::default(),
        }
    }
}

impl Metrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "gateway_requests",
            "Calls of workers and users, by call and by the code of the answer (OK, or the problem's)",
            self.requests.clone(),
        );
        registry.register_with_unit(
            "gateway_commit",
            "From a boundary's complete body to the store's answer, by outcome",
            Unit::Seconds,
            self.commit_seconds.clone(),
        );
        registry.register_with_unit(
            "gateway_commit",
            "Size of a boundary's body, by outcome",
            Unit::Bytes,
            self.commit_bytes.clone(),
        );
        // Failures and snapshots start at 0, so that a rate includes the first one.
        for failure in FAILURES {
            drop(self.store_failures.get_or_create(&FailureLabel { failure }));
        }
        registry.register(
            "gateway_store_failures",
            "Store calls that failed, by the kind of failure",
            self.store_failures.clone(),
        );
        registry.register(
            "gateway_store_retries",
            "Store calls repeated because the store could not be reached",
            self.store_retries.clone(),
        );
        drop(self.snapshots.get_or_create(&OutcomeLabel { outcome: "made" }));
        registry.register(
            "gateway_snapshots",
            "Snapshots requested, by outcome (made, not-due, failed)",
            self.snapshots.clone(),
        );
        registry.register(
            "gateway_snapshot_lag_boundaries",
            "At each commit, boundaries since the last one that a lookup can begin with, as far as this gateway knows",
            self.snapshot_lag.clone(),
        );
        registry.register(
            "gateway_open_connections",
            "Connections that are open",
            self.open_connections.clone(),
        );
        for reason in RefusedConnection::ALL {
            drop(self.refused_connections.get_or_create(&reason.label()));
        }
        registry.register(
            "gateway_refused_connections",
            "Connections that were refused, or closed without a whole request, by reason",
            self.refused_connections.clone(),
        );
        for outcome in TokenReviewOutcome::ALL {
            drop(self.token_reviews.get_or_create(&outcome.label()));
        }
        registry.register(
            "gateway_token_reviews",
            "Bearer tokens, by what was found (cached: without a review; rejected: too many waited)",
            self.token_reviews.clone(),
        );
    }

    /// A call was answered; `code`: of the problem, `None` for a success.
    pub(crate) fn answered(&self, call: &'static str, code: Option<Code>) {
        let code = code.map_or_else(|| "OK".to_owned(), |code| code.to_string());
        self.requests.get_or_create(&RequestLabels { call, code }).inc();
    }

    /// A commit with a body of this size was answered after this time.
    pub(crate) fn committed(
        &self,
        committed: &Result<Committed, ApiProblem>,
        bytes: usize,
        elapsed: Duration,
    ) {
        let outcome = match committed {
            Ok(committed) => commit_outcome(committed),
            Err(ApiProblem(Problem { code: Code::CheckpointCorrupt, .. })) => "corrupt",
            Err(ApiProblem(Problem { code: Code::StorageFull, .. })) => "storage-full",
            Err(_) => "unavailable",
        };
        let outcome = OutcomeLabel { outcome };
        self.commit_seconds.get_or_create(&outcome).observe(elapsed.as_secs_f64());
        self.commit_bytes.get_or_create(&outcome).observe(bytes as f64);
    }

    /// The store has answered a call with this error.
    pub(crate) fn store_call_failed(&self, error: &Error) {
        self.store_failure(match error {
            Error::Unavailable { .. } => "unavailable",
            Error::StorageFull { .. } => "storage-full",
            Error::Corrupt { .. } => "corrupt",
            Error::Unusable(_) => "unusable",
            // An ordinary answer: the data was deleted on purpose.
            Error::Gone { .. } => return,
        });
    }

    /// The store has not answered a call in time.
    pub(crate) fn store_call_timed_out(&self) {
        self.store_failure("timeout");
    }

    /// A call was refused because too many calls wait for the store.
    pub(crate) fn store_call_rejected(&self) {
        self.store_failure("rejected");
    }

    /// A call to the store is repeated.
    pub(crate) fn store_call_retried(&self) {
        self.store_retries.inc();
    }

    /// A connection was opened.
    pub(crate) fn connection_opened(&self) {
        self.open_connections.inc();
    }

    /// An open connection has ended.
    pub(crate) fn connection_closed(&self) {
        self.open_connections.dec();
    }

    /// A connection was refused or closed.
    pub(crate) fn connection_refused(&self, reason: RefusedConnection) {
        self.refused_connections.get_or_create(&reason.label()).inc();
    }

    /// A bearer token was reviewed, or its review was not needed or not possible.
    pub(crate) fn token_reviewed(&self, outcome: TokenReviewOutcome) {
        self.token_reviews.get_or_create(&outcome.label()).inc();
    }

    fn store_failure(&self, failure: &'static str) {
        self.store_failures.get_or_create(&FailureLabel { failure }).inc();
    }

    /// A boundary was committed, this many boundaries after the last one that a lookup can begin with.
    pub(crate) fn snapshot_lag(&self, boundaries: i32) {
        self.snapshot_lag.observe(boundaries.into());
    }

    /// A snapshot was requested; `made`: whether it was due and was made, `None` if that failed.
    pub(crate) fn snapshot_requested(&self, made: Option<bool>) {
        let outcome = match made {
            Some(true) => "made",
            Some(false) => "not-due",
            None => "failed",
        };
        self.snapshots.get_or_create(&OutcomeLabel { outcome }).inc();
    }
}

fn commit_outcome(committed: &Committed) -> &'static str {
    match committed {
        Committed::Ok(_) => "ok",
        Committed::Parked(_) => "parked",
        Committed::Duplicate(_) => "duplicate",
        Committed::Conflict { .. } => "conflict",
        Committed::Fenced { .. } => "fenced",
        Committed::Finished => "finished",
        Committed::UnsettledCalls | Committed::OpenCalls => "unsettled-calls",
        Committed::NoSuchWait(_) => "no-such-wait",
        Committed::TooLarge | Committed::CallsTooLarge | Committed::TooManyKeys => "too-large",
        Committed::NoSuchMessage { .. } => "invalid",
        Committed::NotFound => "not-found",
    }
}
