//! Namespaces whose quota has no room for a pod. One run per namespace tries; the others wait for it.
//!
//! # Guarantees
//!
//! - While a quota is exceeded, one pod is tried per pause, and the pauses grow to 15 minutes. A run that waits costs
//!   nothing.
//! - When a pod is created, or the quota changes, runs that wait are woken, the longest waiting first. A run that nobody
//!   wakes is still looked at every ten minutes.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;

use dalsegno_core::{NamespaceQuota, PodCreateError};
use jiff::{SignedDuration, Timestamp};

use super::pods::RunKey;
use crate::mutex::lock;

/// Time for the one try to end. After it another run may try.
const TRY_TIME: SignedDuration = SignedDuration::from_secs(30);
/// Shortest time between two changes of a quota that wake runs.
const WAKE_INTERVAL: SignedDuration = SignedDuration::from_secs(2);
/// Number of runs that one created pod wakes. Each of them that gets its pod wakes as many.
const WOKEN_BY_ONE: usize = 4;

/// The quotas that refused a pod, by namespace.
#[derive(Default)]
pub struct QuotaCache(Mutex<HashMap<String, Exceeded>>);

struct Exceeded {
    /// Message of the API server.
    message: String,
    /// Consecutive refused tries. 0: a pod was created since.
    times: u32,
    /// When the next try is due.
    retry_at: Timestamp,
    /// The run that was refused last. It tries next.
    next: RunKey,
    /// A try is under way.
    trying: bool,
    woken_at: Timestamp,
    waiting: VecDeque<RunKey>,
}

impl QuotaCache {
    /// What the run waits for, if the quota of its namespace is exceeded and this is not the time to try. The run is woken
    /// when that changes.
    pub fn wait(&self, run: &RunKey, now: Timestamp) -> Option<NamespaceQuota> {
        let mut all = lock(&self.0);
        let exceeded = all.get_mut(&run.namespace).filter(|it| it.retry_at > now)?;
        let is_next = exceeded.next == *run;
        if !is_next && !exceeded.waiting.contains(run) {
            exceeded.waiting.push_back(run.clone());
        }
        Some(NamespaceQuota { message: exceeded.message.clone(), retry_at: exceeded.retry_at, is_next })
    }

    /// Whether a run of the namespace may try now. If the quota is exceeded, the others wait for this try.
    pub fn may_try(&self, namespace: &str, now: Timestamp) -> bool {
        let mut all = lock(&self.0);
        let Some(exceeded) = all.get_mut(namespace) else { return true };
        if exceeded.retry_at > now {
            return false;
        }
        if exceeded.times > 0 {
            (exceeded.trying, exceeded.retry_at) = (true, now + TRY_TIME);
        }
        true
    }

    /// The quota refused the pod of this run. Tries that overlap count once.
    pub fn refused(&self, run: &RunKey, error: &PodCreateError) {
        let mut all = lock(&self.0);
        let exceeded = all.entry(run.namespace.clone()).or_insert_with(|| Exceeded {
            message: String::new(),
            times: 0,
            retry_at: error.at,
            next: run.clone(),
            trying: false,
            woken_at: Timestamp::MIN,
            waiting: VecDeque::new(),
        });
        if exceeded.times > 0 && !exceeded.trying {
            return;
        }
        exceeded.times = exceeded.times.saturating_add(1);
        exceeded.retry_at = PodCreateError { times: exceeded.times, ..error.clone() }.retry_at();
        (exceeded.trying, exceeded.next) = (false, run.clone());
        exceeded.message.clone_from(&error.message);
    }

    /// A pod was created, so the quota may have room for more. Returns the runs to wake.
    pub fn has_room(&self, namespace: &str) -> Vec<RunKey> {
        let mut all = lock(&self.0);
        let Some(exceeded) = all.get_mut(namespace) else { return Vec::new() };
        (exceeded.times, exceeded.trying, exceeded.retry_at) = (0, false, Timestamp::MIN);
        let count = WOKEN_BY_ONE.min(exceeded.waiting.len());
        let woken = exceeded.waiting.drain(..count).collect();
        if exceeded.waiting.is_empty() {
            all.remove(namespace);
        }
        woken
    }

    /// The quota of the namespace changed. Returns the runs to wake: the next one, and another one in case it is gone.
    pub fn changed(&self, namespace: &str, now: Timestamp) -> Vec<RunKey> {
        let mut all = lock(&self.0);
        let Some(exceeded) = all.get_mut(namespace) else { return Vec::new() };
        let is_closed = exceeded.retry_at > now && !exceeded.trying;
        if !is_closed || now.duration_since(exceeded.woken_at) < WAKE_INTERVAL {
            return Vec::new();
        }
        (exceeded.woken_at, exceeded.retry_at) = (now, now);
        std::iter::once(exceeded.next.clone()).chain(exceeded.waiting.pop_front()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_secs(second)
    }

    fn run(name: &str) -> RunKey {
        RunKey { namespace: "shop".into(), name: name.into() }
    }

    fn refuse(quotas: &QuotaCache, name: &str, second: i64) {
        let error = PodCreateError::first(403, "exceeded quota", String::new(), at(second));
        quotas.refused(&run(name), &error);
    }

    fn names(runs: Vec<RunKey>) -> Vec<String> {
        runs.into_iter().map(|it| it.name).collect()
    }

    #[test]
    fn one_run_of_a_namespace_tries_after_growing_pauses_and_the_others_only_wait() {
        let quotas = QuotaCache::default();
        assert!(quotas.may_try("shop", at(0)));
        refuse(&quotas, "a", 0);
        refuse(&quotas, "b", 0);
        let mut tries = Vec::new();
        for second in 1..7_200 {
            for name in ["a", "b", "c"] {
                if quotas.wait(&run(name), at(second)).is_none() && quotas.may_try("shop", at(second)) {
                    tries.push(second);
                    refuse(&quotas, name, second);
                }
            }
        }
        assert_eq!(tries, [2, 6, 14, 30, 62, 126, 254, 510, 1_022, 1_922, 2_822, 3_722, 4_622, 5_522, 6_422]);
        assert!(quotas.wait(&run("a"), at(7_200)).is_some_and(|it| it.is_next));
        assert!(quotas.wait(&run("b"), at(7_200)).is_some_and(|it| !it.is_next));
        assert!(quotas.may_try("other", at(7_200)), "another namespace has its own quota");
    }

    #[test]
    fn a_created_pod_wakes_those_that_wait_longest_and_each_pod_of_theirs_wakes_more() {
        let quotas = QuotaCache::default();
        refuse(&quotas, "a", 0);
        for name in ["b", "c", "d", "e", "f", "g"] {
            assert!(quotas.wait(&run(name), at(1)).is_some());
        }
        assert!(quotas.may_try("shop", at(2)));
        assert_eq!(names(quotas.has_room("shop")), ["b", "c", "d", "e"]);
        assert!(quotas.may_try("shop", at(2)) && quotas.may_try("shop", at(2)), "all of them may try");
        assert_eq!(names(quotas.has_room("shop")), ["f", "g"]);
        assert!(quotas.has_room("shop").is_empty());
    }

    #[test]
    fn a_changed_quota_is_tried_soon_but_not_for_each_of_many_changes() {
        let quotas = QuotaCache::default();
        refuse(&quotas, "a", 0);
        assert!(quotas.wait(&run("b"), at(1)).is_some());
        assert_eq!(names(quotas.changed("shop", at(1))), ["a", "b"]);
        assert!(quotas.may_try("shop", at(1)), "the first one tries");
        assert!(!quotas.may_try("shop", at(1)), "the other one waits again");
        refuse(&quotas, "a", 1);
        assert!(quotas.changed("shop", at(2)).is_empty());
        assert!(quotas.changed("other", at(9)).is_empty());
    }

    #[test]
    fn a_try_that_never_ended_does_not_block_the_namespace() {
        let quotas = QuotaCache::default();
        refuse(&quotas, "a", 0);
        assert!(quotas.may_try("shop", at(2)));
        assert!(!quotas.may_try("shop", at(31)));
        assert!(quotas.may_try("shop", at(32)));
    }
}
