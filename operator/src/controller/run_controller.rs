//! The controller of AgentRuns: has the runs that something woke reconciled, in a fair order.
//!
//! Not kube's controller: that one takes the waiting objects in the order of a hash set, so a few slow ones can keep any
//! other waiting for ever (docs/adr/0023-a-fair-queue-of-reconciles.md).

use std::collections::{BTreeSet, HashMap, HashSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use dalsegno_crds::Summary;
use futures::{Stream, StreamExt, future, stream};
use kube::Resource;
use kube::runtime::reflector::{ObjectRef, Store as Cache};
use kube::runtime::watcher;
use serde::Deserialize;
use tokio::task::{Id, JoinSet};
use tokio::time::{Instant, sleep_until};

use super::agent_runs::{MAX_BACKOFF, reconcile_run};
use super::context::Context;
use super::fair_queue::{FairQueue, Priority};
use crate::cache::pods::RunKey;
use crate::cache::raw_object::RawRun;
use crate::mutex::lock;

/// The controller and its inputs.
pub struct RunController<R, Q> {
    /// Changes of AgentRuns. Polling them fills the cache.
    pub runs: R,
    /// Runs that something else wants reconciled.
    pub queue: Q,
    /// All AgentRuns, as the changes leave them.
    pub cache: Cache<RawRun>,
    /// Number of runs that are reconciled at the same time.
    pub concurrency: u16,
}

impl<R, Q> RunController<R, Q>
where
    R: Stream<Item = watcher::Result<RawRun>> + Send + 'static,
    Q: Stream<Item = ObjectRef<RawRun>> + Send + 'static,
{
    /// Reconciles AgentRuns until `stop` is ready, and then until the reconciles under way have ended. Reconciles nothing
    /// before the cache is filled.
    pub async fn run(self, ctx: Arc<Context>, stop: impl Future<Output = ()> + Send + 'static) {
        let Self { runs, queue, cache, concurrency } = self;
        let changed =
            runs.filter_map(|it| future::ready(it.ok().map(|run| key_of(&ObjectRef::from_obj(&run)))));
        let mut woken = pin!(stream::select(changed, queue.map(|it| key_of(&it))));
        let mut stop = pin!(stop);
        let waiting = cache.clone();
        let mut filled = pin!(waiting.wait_until_ready());
        let mut early = HashSet::new();
        loop {
            tokio::select! {
                () = &mut stop => return,
                filled = &mut filled => match filled {
                    Ok(()) => break,
                    // Nothing fills it any more: the watch has ended, and so will the operator.
                    Err(_) => return,
                },
                Some(run) = woken.next() => {
                    early.insert(run);
                }
            }
        }
        let mut work = Dispatcher::new(ctx, cache, concurrency);
        early.into_iter().for_each(|run| work.wake(run));
        loop {
            work.start_waiting();
            let timer = work.next_timer();
            tokio::select! {
                () = &mut stop => break,
                Some(run) = woken.next() => work.wake(run),
                Some(ended) = work.tasks.join_next_with_id() => work.ended(ended),
                () = sleep_until(timer.unwrap_or_else(Instant::now)), if timer.is_some() => work.wake_due(),
            }
        }
        while work.tasks.join_next().await.is_some() {}
    }
}

/// Starts reconciles in the order of the [`FairQueue`], and wakes runs at the times that they asked for.
struct Dispatcher {
    ctx: Arc<Context>,
    cache: Cache<RawRun>,
    queue: FairQueue,
    started: Instant,
    /// When runs are reconciled again, if nothing wakes them before: by time, and by run.
    timers: BTreeSet<(Instant, String, String)>,
    timer_of: HashMap<RunKey, Instant>,
    /// The reconciles under way. Each returns when to reconcile the run again.
    tasks: JoinSet<Duration>,
    run_of: HashMap<Id, RunKey>,
}

impl Dispatcher {
    fn new(ctx: Arc<Context>, cache: Cache<RawRun>, slots: u16) -> Self {
        Self {
            ctx,
            cache,
            queue: FairQueue::new(slots),
            started: Instant::now(),
            timers: BTreeSet::new(),
            timer_of: HashMap::new(),
            tasks: JoinSet::new(),
            run_of: HashMap::new(),
        }
    }

    fn wake(&mut self, run: RunKey) {
        // A run that is not in the cache is gone.
        let Some(object) = self.cache.get(&reference(&run)) else { return };
        let now = Instant::now();
        if let Some(pause) = self.ctx.panics.pause(object.as_ref(), now.into_std()) {
            self.set_timer(&run, Some(now + pause));
            return;
        }
        let priority = self.priority_of(&object);
        self.queue.push(run, priority, self.started.elapsed());
        self.show_waiting();
    }

    /// Starts as many reconciles as there are slots. Each gets the run as the cache has it now.
    fn start_waiting(&mut self) {
        while let Some(run) = self.queue.pop() {
            self.set_timer(&run, None);
            let Some(object) = self.cache.get(&reference(&run)) else {
                self.queue.done(&run);
                continue;
            };
            self.ctx.queue_health.began(run.clone(), Instant::now().into_std());
            let task = self.tasks.spawn(reconcile_run(object, self.ctx.clone()));
            self.run_of.insert(task.id(), run);
        }
        self.show_waiting();
    }

    /// Shows how many runs wait, and for how long.
    fn show_waiting(&self) {
        self.ctx.metrics.set_waiting_runs(self.queue.len());
        let oldest = self.queue.oldest().map(|since| (self.started + since).into_std());
        self.ctx.queue_health.set_waiting_since(oldest);
    }

    fn ended(&mut self, ended: Result<(Id, Duration), tokio::task::JoinError>) {
        let (id, delay) = ended.unwrap_or_else(|error| {
            // Only the report of a panic can panic here.
            tracing::error!(%error, "a reconcile ended by a panic and will be retried");
            (error.id(), MAX_BACKOFF)
        });
        let Some(run) = self.run_of.remove(&id) else { return };
        self.ctx.queue_health.ended(&run, Instant::now().into_std());
        if self.queue.done(&run) {
            self.wake(run);
        } else {
            self.set_timer(&run, Some(Instant::now() + delay));
        }
    }

    fn next_timer(&self) -> Option<Instant> {
        self.timers.first().map(|(at, ..)| *at)
    }

    fn wake_due(&mut self) {
        let now = Instant::now();
        while self.next_timer().is_some_and(|at| at <= now) {
            let Some((_, namespace, name)) = self.timers.pop_first() else { return };
            let run = RunKey { namespace, name };
            self.timer_of.remove(&run);
            self.wake(run);
        }
    }

    fn set_timer(&mut self, run: &RunKey, at: Option<Instant>) {
        let entry = |at: Instant| (at, run.namespace.clone(), run.name.clone());
        if let Some(before) = self.timer_of.remove(run) {
            self.timers.remove(&entry(before));
        }
        if let Some(at) = at {
            self.timers.insert(entry(at));
            self.timer_of.insert(run.clone(), at);
        }
    }

    fn priority_of(&self, run: &RawRun) -> Priority {
        let meta = run.meta();
        if meta.deletion_timestamp.is_some() {
            return Priority::Recovery;
        }
        if meta.uid.as_ref().is_some_and(|uid| lock(&self.ctx.refusals).contains_key(uid)) {
            return Priority::Refused;
        }
        priority_by_status(run)
    }
}

/// A run that is woken from a wait or a suspend is not in a hurry: a thousand of them may be woken at once.
fn priority_by_status(run: &RawRun) -> Priority {
    let status = run.part::<WithStatus>().and_then(|it| it.status).unwrap_or_default();
    match status {
        RunStatus { summary: Some(Summary::Waiting | Summary::Suspended), .. } => Priority::WakeUp,
        RunStatus { start_time: Some(_), .. } => Priority::Recovery,
        RunStatus { start_time: None, .. } => Priority::FirstStart,
    }
}

/// The part of a run that says whether it has had a worker, and whether it waits.
#[derive(Deserialize)]
struct WithStatus {
    status: Option<RunStatus>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RunStatus {
    start_time: Option<String>,
    summary: Option<Summary>,
}

fn key_of(reference: &ObjectRef<RawRun>) -> RunKey {
    RunKey { namespace: reference.namespace.clone().unwrap_or_default(), name: reference.name.clone() }
}

fn reference(run: &RunKey) -> ObjectRef<RawRun> {
    ObjectRef::new(&run.name).within(&run.namespace)
}

#[cfg(test)]
mod tests;
