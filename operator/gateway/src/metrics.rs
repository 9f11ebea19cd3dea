//! What is counted. Labels are few and fixed: a call, a code, an outcome, never a run. `docs/reference/metrics.md` lists them; a
//! test compares the two.

use std::time::Duration;

use dalsegno_protocol::{Code, Problem};
use dalsegno_store::{Committed, Error};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::refusal::Refusal;

/// The gateway's metrics. All clones count together.
#[derive(Clone)]
pub(crate) struct Metrics {
    requests: Family<Answered, Counter>,
    commit_seconds: Family<Outcome, Histogram>,
    commit_bytes: Family<Outcome, Histogram>,
    store_failures: Family<Failure, Counter>,
    store_retries: Counter,
    snapshots: Family<Made, Counter>,
    snapshot_lag: Histogram,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Made {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    call: &'static str,
    code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Failure {
    failure: &'static str,
}

/// How the store may fail.
const FAILURES: [&str; 5] = ["unavailable", "timeout", "corrupt", "crowded", "unfit"];

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
            // As of the boundary at which one is due, and of that above which it is overdue.
            snapshot_lag: Histogram::new([1.0, 5.0, 10.0, 20.0, 50.0, 100.0, 1_000.0]),
        }
    }
}

impl Metrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "gateway_requests",
            "Calls of workers and people, by call and by the code of the answer (OK, or the problem's)",
            self.requests.clone(),
        );
        registry.register_with_unit(
            "gateway_commit",
            "From a boundary's body being there to the store's answer, by outcome",
            Unit::Seconds,
            self.commit_seconds.clone(),
        );
        registry.register_with_unit(
            "gateway_commit",
            "Size of a boundary's body, by outcome",
            Unit::Bytes,
            self.commit_bytes.clone(),
        );
        // Failures and snapshots are there from the start, so that a rate can be taken of the first one too.
        for failure in FAILURES {
            drop(self.store_failures.get_or_create(&Failure { failure }));
        }
        registry.register(
            "gateway_store_failures",
            "Calls that the store did not do, by what failed",
            self.store_failures.clone(),
        );
        registry.register(
            "gateway_store_retries",
            "Calls that were made to the store again, since it could not be reached",
            self.store_retries.clone(),
        );
        drop(self.snapshots.get_or_create(&Made { outcome: "made" }));
        registry.register(
            "gateway_snapshots",
            "Snapshots asked for, by what became of it (made, not-due, failed)",
            self.snapshots.clone(),
        );
        registry.register(
            "gateway_snapshot_lag_boundaries",
            "At each commit, boundaries past what a lookup can begin with, as far as this gateway knows",
            self.snapshot_lag.clone(),
        );
    }

    /// One call was answered; without a code it was a success.
    pub(crate) fn answered(&self, call: &'static str, code: Option<Code>) {
        let code = code.map_or_else(|| "OK".to_owned(), |code| code.to_string());
        self.requests.get_or_create(&Answered { call, code }).inc();
    }

    /// A boundary came to this end.
    pub(crate) fn committed(&self, committed: &Result<Committed, Refusal>, bytes: usize, took: Duration) {
        let outcome = Outcome {
            outcome: match committed {
                Ok(answer) => outcome(answer),
                Err(Refusal(Problem { code: Code::CheckpointCorrupt, .. })) => "corrupt",
                Err(_) => "unavailable",
            },
        };
        self.commit_seconds.get_or_create(&outcome).observe(took.as_secs_f64());
        self.commit_bytes.get_or_create(&outcome).observe(bytes as f64);
    }

    /// The store did not do a call.
    pub(crate) fn store_failed(&self, error: &Error) {
        self.failed(match error {
            Error::Unavailable { .. } => "unavailable",
            Error::Corrupt { .. } => "corrupt",
            Error::Unfit(_) => "unfit",
            // An answer like another.
            Error::Gone { .. } => return,
        });
    }

    /// The store did not answer within its deadline.
    pub(crate) fn store_silent(&self) {
        self.failed("timeout");
    }

    /// So many calls wait for the store that one more was refused.
    pub(crate) fn store_crowded(&self) {
        self.failed("crowded");
    }

    /// A call is made to the store again.
    pub(crate) fn store_asked_again(&self) {
        self.store_retries.inc();
    }

    fn failed(&self, failure: &'static str) {
        self.store_failures.get_or_create(&Failure { failure }).inc();
    }

    /// A boundary was committed this far past what a lookup can begin with.
    pub(crate) fn lagging(&self, boundaries: i32) {
        self.snapshot_lag.observe(boundaries.into());
    }

    /// A snapshot was asked for: whether one was made; `None` if that failed.
    pub(crate) fn snapshotted(&self, made: Option<bool>) {
        let outcome = match made {
            Some(true) => "made",
            Some(false) => "not-due",
            None => "failed",
        };
        self.snapshots.get_or_create(&Made { outcome }).inc();
    }
}

fn outcome(answer: &Committed) -> &'static str {
    match answer {
        Committed::Ok(_) => "ok",
        Committed::Duplicate(_) => "duplicate",
        Committed::Conflict { .. } => "conflict",
        Committed::Fenced { .. } => "fenced",
        Committed::Finished => "finished",
        Committed::UnsettledCalls => "unsettled-calls",
        Committed::TooLarge | Committed::CallsTooLarge => "too-large",
        Committed::NotFound => "not-found",
    }
}
