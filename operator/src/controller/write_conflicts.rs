//! Status writes that the API server rejected, because the cache showed an old version of the AgentRun.
//!
//! # Invariant
//!
//! A version that was rejected is not written again before its pause is over. The pause doubles with each rejection, and
//! ends early when the cache shows another version. All other effects of a reconcile are performed meanwhile.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use kube::Resource;

use crate::mutex::lock;

/// First and longest pause.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// The last rejected write of each AgentRun, by UID, until a reconcile succeeds.
#[derive(Default)]
pub struct WriteConflicts(Mutex<HashMap<String, Rejected>>);

struct Rejected {
    resource_version: Option<String>,
    /// Consecutive rejections, of any version.
    times: u32,
    retry_at: Instant,
}

impl WriteConflicts {
    /// Records that this version was rejected, unless its pause is not over. Returns the rest of the pause.
    pub fn record(&self, run: &impl Resource) -> Duration {
        let now = Instant::now();
        let meta = run.meta();
        let mut all = lock(&self.0);
        let entry = all.entry(meta.uid.clone().unwrap_or_default()).or_insert_with(|| Rejected {
            resource_version: None,
            times: 0,
            retry_at: now,
        });
        if entry.resource_version != meta.resource_version || entry.retry_at <= now {
            let (first, longest) = PAUSES;
            let pause = first.saturating_mul(1 << entry.times.min(16)).min(longest);
            *entry = Rejected {
                resource_version: meta.resource_version.clone(),
                times: entry.times.saturating_add(1),
                retry_at: now + pause,
            };
        }
        entry.retry_at.saturating_duration_since(now)
    }

    /// Whether this version was rejected and its pause is not over.
    pub fn must_wait(&self, run: &impl Resource) -> bool {
        let meta = run.meta();
        let all = lock(&self.0);
        let rejected = meta.uid.as_deref().and_then(|uid| all.get(uid));
        rejected
            .is_some_and(|it| it.resource_version == meta.resource_version && it.retry_at > Instant::now())
    }

    /// Forgets the rejections of this AgentRun.
    pub fn remove(&self, uid: &str) {
        lock(&self.0).remove(uid);
    }

    /// Forgets the rejections of all other AgentRuns than these.
    pub fn retain(&self, existing: &HashSet<&str>) {
        lock(&self.0).retain(|uid, _| existing.contains(uid.as_str()));
    }
}
