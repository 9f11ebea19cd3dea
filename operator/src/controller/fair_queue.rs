//! The order in which waiting runs are reconciled. Pure: it knows no clock and no task.
//!
//! # Guarantees
//!
//! - The run that has waited longest is next. A run that has had a worker goes before one that has not, unless that one
//!   has waited [`HEAD_START`] longer. The same holds for a run that is woken from a wait.
//! - No namespace has more than half of the slots. The runs whose pod the API server refuses have a quarter of them
//!   together, and so have the runs that are woken. So a slow webhook delays the runs that it concerns, and no others;
//!   and a thousand waits for the same time delay no recovery.
//! - A run waits once and is worked on once at a time. If something wakes it meanwhile, it waits again afterwards.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use crate::cache::pods::RunKey;

/// How much longer a first start or a run that is woken waits than a recovery.
pub const HEAD_START: Duration = Duration::from_secs(30);

/// Why a run waits, which decides how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Priority {
    /// It has had a worker, or is being deleted.
    Recovery,
    /// It has not had a worker yet.
    FirstStart,
    /// It is woken from a wait or a suspend.
    WakeUp,
    /// The API server refused its pod.
    Refused,
}

/// The waiting runs, and the slots of those that are worked on.
pub struct FairQueue {
    slots: usize,
    /// Runs that wait, the longest waiting first, with the time at which each began to wait.
    waiting: HashMap<(String, Priority), VecDeque<(Duration, RunKey)>>,
    is_waiting: HashSet<RunKey>,
    working: HashMap<RunKey, Work>,
}

/// A run that is worked on.
struct Work {
    priority: Priority,
    /// Something woke the run meanwhile.
    woken: bool,
}

impl FairQueue {
    /// With so many slots, at least one.
    pub fn new(slots: u16) -> Self {
        Self {
            slots: usize::from(slots.max(1)),
            waiting: HashMap::new(),
            is_waiting: HashSet::new(),
            working: HashMap::new(),
        }
    }

    /// Has a run wait from `now` on, a time since the start of the queue. A run that waits already keeps its place.
    pub fn push(&mut self, run: RunKey, priority: Priority, now: Duration) {
        if let Some(work) = self.working.get_mut(&run) {
            work.woken = true;
        } else if self.is_waiting.insert(run.clone()) {
            self.waiting.entry((run.namespace.clone(), priority)).or_default().push_back((now, run));
        }
    }

    /// Takes the next run, if there is a slot for it.
    pub fn pop(&mut self) -> Option<RunKey> {
        if self.working.len() >= self.slots {
            return None;
        }
        let key = self
            .waiting
            .iter()
            .filter(|((namespace, priority), _)| self.has_slot(namespace, *priority))
            .filter_map(|(key, runs)| Some((runs.front()?.0 + handicap(key.1), key)))
            .min_by_key(|(at, _)| *at)
            .map(|(_, key)| key.clone())?;
        let Entry::Occupied(mut runs) = self.waiting.entry(key) else { return None };
        let (_, run) = runs.get_mut().pop_front()?;
        let priority = runs.key().1;
        if runs.get().is_empty() {
            runs.remove();
        }
        self.is_waiting.remove(&run);
        self.working.insert(run.clone(), Work { priority, woken: false });
        Some(run)
    }

    /// The run is not worked on any more. Returns whether something woke it meanwhile.
    pub fn done(&mut self, run: &RunKey) -> bool {
        self.working.remove(run).is_some_and(|it| it.woken)
    }

    /// Since when the run waits that has waited longest, if a run waits.
    pub fn oldest(&self) -> Option<Duration> {
        self.waiting.values().filter_map(|runs| Some(runs.front()?.0)).min()
    }

    /// Number of runs that wait.
    pub fn len(&self) -> usize {
        self.is_waiting.len()
    }

    fn has_slot(&self, namespace: &str, priority: Priority) -> bool {
        let of_namespace = self.working.keys().filter(|it| it.namespace == namespace).count();
        let same = self.working.values().filter(|it| it.priority == priority).count();
        let is_limited = matches!(priority, Priority::Refused | Priority::WakeUp);
        of_namespace < self.slots.div_ceil(2) && (!is_limited || same < self.slots.div_ceil(4))
    }
}

fn handicap(priority: Priority) -> Duration {
    match priority {
        Priority::Recovery | Priority::Refused => Duration::ZERO,
        Priority::FirstStart | Priority::WakeUp => HEAD_START,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(namespace: &str, name: &str) -> RunKey {
        RunKey { namespace: namespace.into(), name: name.into() }
    }

    /// A queue with 8 slots and these waiting runs: namespace, name, priority, and the second since when it waits.
    fn queue(runs: &[(&str, &str, Priority, u64)]) -> FairQueue {
        let mut queue = FairQueue::new(8);
        for (namespace, name, priority, second) in runs {
            queue.push(run(namespace, name), *priority, Duration::from_secs(*second));
        }
        queue
    }

    fn names(queue: &mut FairQueue) -> Vec<String> {
        std::iter::from_fn(|| queue.pop()).map(|it| it.name).collect()
    }

    #[test]
    fn the_oldest_is_next_and_a_recovery_goes_before_a_first_start_that_waits_at_most_30_s_longer() {
        let mut queue = queue(&[
            ("a", "first", Priority::FirstStart, 0),
            ("b", "second", Priority::FirstStart, 1),
            ("c", "early", Priority::Recovery, 10),
            ("d", "late", Priority::Recovery, 32),
        ]);
        assert_eq!(names(&mut queue), ["early", "first", "second", "late"]);
    }

    #[test]
    fn a_namespace_has_at_most_half_of_the_slots_and_the_refused_runs_a_quarter() {
        let mut many: Vec<_> = (0..9).map(|second| ("a", "crowd", Priority::Recovery, second)).collect();
        let crowd: Vec<String> = (0..9).map(|it| format!("crowd-{it}")).collect();
        many.iter_mut().zip(&crowd).for_each(|(it, name)| it.1 = name);
        many.extend([
            ("b", "refused-1", Priority::Refused, 20),
            ("c", "refused-2", Priority::Refused, 21),
            ("d", "refused-3", Priority::Refused, 22),
            ("e", "other", Priority::FirstStart, 90),
        ]);
        let mut queue = queue(&many);
        let expected = ["crowd-0", "crowd-1", "crowd-2", "crowd-3", "refused-1", "refused-2", "other"];
        assert_eq!(names(&mut queue), expected);
        queue.done(&run("a", "crowd-0"));
        queue.done(&run("b", "refused-1"));
        assert_eq!(names(&mut queue), ["crowd-4", "refused-3"]);
    }

    #[test]
    fn a_thousand_runs_that_are_woken_at_once_delay_no_recovery() {
        let mut queue = FairQueue::new(8);
        for number in 0..1_000 {
            let woken = run(&format!("namespace-{}", number % 10), &format!("woken-{number}"));
            queue.push(woken, Priority::WakeUp, Duration::ZERO);
        }
        assert_eq!(names(&mut queue).len(), 2, "a quarter of the slots");
        for second in 1..=6 {
            let recovery = run(&format!("other-{second}"), &format!("recovery-{second}"));
            queue.push(recovery, Priority::Recovery, Duration::from_secs(second));
        }
        let recoveries: Vec<_> = (1..=6).map(|second| format!("recovery-{second}")).collect();
        assert_eq!(names(&mut queue), recoveries, "the other slots are for them");
    }

    #[test]
    fn a_run_waits_once_keeps_its_place_and_is_worked_on_once_at_a_time() {
        let mut queue = queue(&[("a", "one", Priority::Recovery, 0), ("a", "two", Priority::Recovery, 1)]);
        queue.push(run("a", "one"), Priority::Refused, Duration::from_secs(2));
        assert_eq!(queue.oldest(), Some(Duration::ZERO));
        assert_eq!((queue.len(), names(&mut queue)), (2, vec!["one".to_owned(), "two".to_owned()]));
        queue.push(run("a", "one"), Priority::Recovery, Duration::from_secs(3));
        assert_eq!(queue.oldest(), None);
        assert_eq!(queue.pop(), None, "it is worked on");
        assert!(queue.done(&run("a", "one")), "something woke it meanwhile");
        assert!(!queue.done(&run("a", "two")));
    }

    #[test]
    fn one_slot_is_enough_for_every_priority() {
        let mut queue = FairQueue::new(0);
        queue.push(run("a", "refused"), Priority::Refused, Duration::ZERO);
        assert_eq!(queue.pop(), Some(run("a", "refused")));
    }
}
