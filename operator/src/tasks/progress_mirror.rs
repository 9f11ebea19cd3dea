//! Limits how often progress is mirrored into statuses: a busy run commits many turns a second, and each status write costs
//! the API server.

use std::collections::HashSet;
use std::time::Duration;

use dalsegno_model::ObjectKey;
use tokio::time::Instant;

/// Shortest interval between two mirrors.
const MIN_INTERVAL: Duration = Duration::from_secs(10);
/// Most runs that are mirrored per second, on average. With more active runs the interval grows.
const RUNS_PER_SECOND: i64 = 20;

/// Runs whose head moved and whose status does not show it yet.
#[derive(Default)]
pub struct ProgressMirror {
    moved: HashSet<ObjectKey>,
    last: Option<Instant>,
}

impl ProgressMirror {
    /// Records that the head of a run moved.
    pub fn insert(&mut self, run: ObjectKey) {
        self.moved.insert(run);
    }

    /// Takes all recorded runs if the interval is over; otherwise none. `active`: number of active runs.
    pub fn take_due(&mut self, active: i64) -> HashSet<ObjectKey> {
        let scaled = Duration::from_secs(u64::try_from(active / RUNS_PER_SECOND).unwrap_or_default());
        let interval = MIN_INTERVAL.max(scaled);
        if self.last.is_some_and(|last| last.elapsed() < interval) {
            return HashSet::new();
        }
        self.last = Some(Instant::now());
        std::mem::take(&mut self.moved)
    }
}
