//! The pauses of objects whose reconcile panicked.
//!
//! # Guarantees
//!
//! - An object is reconciled again after a pause that doubles with each panic. Whatever wakes it meanwhile does not shorten
//!   the pause, except for a new generation: somebody has changed or deleted the object.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use kube::Resource;

use crate::mutex::lock;

/// First and longest pause.
const PAUSES: (Duration, Duration) = (Duration::from_mins(1), Duration::from_mins(30));

/// The last panic of each object, by UID, until a reconcile ends without one.
#[derive(Default)]
pub struct Panics(Mutex<HashMap<String, Panicked>>);

struct Panicked {
    generation: Option<i64>,
    /// Consecutive panics.
    times: u32,
    retry_at: Instant,
}

impl Panics {
    /// Records a panic. Returns the pause.
    pub fn record(&self, object: &impl Resource, now: Instant) -> Duration {
        let meta = object.meta();
        let mut all = lock(&self.0);
        let times = all.get(meta.uid.as_deref().unwrap_or_default()).map_or(0, |it| it.times);
        let (first, longest) = PAUSES;
        let pause = first.saturating_mul(1 << times.min(16)).min(longest);
        let panicked = Panicked { generation: meta.generation, times: times + 1, retry_at: now + pause };
        all.insert(meta.uid.clone().unwrap_or_default(), panicked);
        pause
    }

    /// The rest of the object's pause. `None`: it may be reconciled.
    pub fn pause(&self, object: &impl Resource, now: Instant) -> Option<Duration> {
        let meta = object.meta();
        let all = lock(&self.0);
        let panicked = all.get(meta.uid.as_deref()?).filter(|it| it.generation == meta.generation)?;
        Some(panicked.retry_at.saturating_duration_since(now)).filter(|left| !left.is_zero())
    }

    /// Forgets the panics of this object.
    pub fn remove(&self, uid: &str) {
        lock(&self.0).remove(uid);
    }

    /// Forgets the panics of all other objects than these.
    pub fn retain(&self, existing: &HashSet<&str>) {
        lock(&self.0).retain(|uid, _| existing.contains(uid.as_str()));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic fails the test")]

    use serde_json::json;

    use super::*;
    use crate::cache::raw_object::RawRun;

    #[test]
    fn the_pause_doubles_with_each_panic_and_ends_early_only_with_a_new_generation() {
        let run = |generation: i64| -> RawRun {
            let metadata = json!({ "name": "nightly", "uid": "uid-1", "generation": generation });
            serde_json::from_value(json!({ "metadata": metadata, "spec": {} })).unwrap()
        };
        let (panics, start) = (Panics::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(panics.pause(&run(1), start), None);
        let pauses: Vec<u64> = (0..7).map(|_| panics.record(&run(1), start).as_secs()).collect();
        assert_eq!(pauses, [60, 120, 240, 480, 960, 1_800, 1_800]);
        assert_eq!(panics.pause(&run(1), at(1_000)), Some(Duration::from_secs(800)));
        assert_eq!(panics.pause(&run(2), at(1_000)), None, "somebody changed it");
        assert_eq!(panics.pause(&run(1), at(1_800)), None);
        panics.remove("uid-1");
        assert_eq!(panics.record(&run(1), start).as_secs(), 60);
        panics.retain(&HashSet::new());
        assert_eq!(panics.pause(&run(1), start), None);
    }
}
