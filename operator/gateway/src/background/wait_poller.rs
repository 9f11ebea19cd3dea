//! Looks for the answers of all waits that workers poll, with one query a second.
//!
//! # Guarantees
//!
//! - However many workers poll, the store gets at most one query in each interval, and none while nobody polls.
//! - A poller that has gone is not asked for again.
//! - A wait that cannot be read delays its own poller only.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_model::{Digest, RunId, Store, WaitPolled};
use dalsegno_protocol::{Limits, WaitState};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::config::Config;
use crate::error_chain::error_chain;
use crate::metrics::Metrics;
use crate::response::ApiProblem;

/// Time between two queries.
const INTERVAL: Duration = Duration::from_secs(1);

/// Sends pollers to the task that looks for their answers.
pub(crate) struct WaitPoller {
    queue: mpsc::Sender<Poller>,
    places: Semaphore,
}

/// A worker that waits for the answer of a wait.
struct Poller {
    wait: (RunId, Digest, String),
    /// After this time it gets the wait as it is.
    until: Instant,
    answer: oneshot::Sender<WaitPolled>,
}

impl WaitPoller {
    /// Starts the task. It ends once the poller is dropped.
    pub(crate) fn start(store: Arc<dyn Store>, config: &Config, metrics: Metrics) -> Self {
        let (queue, arriving) = mpsc::channel(Limits::WAIT_POLLERS);
        let task = PollTask { store, metrics, arriving, timeout: config.store_timeout };
        tokio::spawn(task.run());
        Self { queue, places: Semaphore::new(Limits::WAIT_POLLERS) }
    }

    /// Waits until the wait is answered, at most so long, and returns it.
    pub(crate) async fn poll(
        &self,
        wait: (RunId, Digest, String),
        longest: Duration,
    ) -> Result<WaitPolled, ApiProblem> {
        let _place = self.places.try_acquire().map_err(|_| ApiProblem::at_capacity())?;
        let (answer, answered) = oneshot::channel();
        let poller = Poller { wait, until: Instant::now() + longest, answer };
        self.queue.send(poller).await.map_err(|_| ApiProblem::stopping())?;
        answered.await.map_err(|_| ApiProblem::store_unavailable())
    }
}

struct PollTask {
    store: Arc<dyn Store>,
    metrics: Metrics,
    arriving: mpsc::Receiver<Poller>,
    timeout: Duration,
}

impl PollTask {
    /// Runs until no sender is left.
    async fn run(mut self) {
        let mut pollers: Vec<Poller> = Vec::new();
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if pollers.is_empty() && self.arriving.recv_many(&mut pollers, Limits::WAIT_POLLERS).await == 0 {
                return;
            }
            ticks.tick().await;
            while let Ok(next) = self.arriving.try_recv() {
                pollers.push(next);
            }
            pollers.retain(|poller| !poller.answer.is_closed());
            if !pollers.is_empty() {
                pollers = self.look(pollers).await;
            }
        }
    }

    /// Answers those pollers whose wait is no longer open, or whose time is over, and returns the others. If the store
    /// does not answer, those whose time is over see that their sender is gone.
    async fn look(&self, pollers: Vec<Poller>) -> Vec<Poller> {
        let waits: Vec<_> = pollers.iter().map(|poller| poller.wait.clone()).collect();
        let now = Instant::now();
        let states = match tokio::time::timeout(self.timeout, self.store.wait_states(&waits)).await {
            Ok(Ok(states)) => states.into_iter().map(|state| self.readable(state)).collect(),
            Ok(Err(error)) => {
                self.metrics.store_call_failed(&error);
                tracing::warn!(error = error_chain(&error), "waits could not be polled");
                vec![None; waits.len()]
            }
            Err(_) => {
                self.metrics.store_call_timed_out();
                tracing::warn!("polling waits timed out");
                vec![None; waits.len()]
            }
        };
        let mut left = Vec::new();
        for (poller, state) in pollers.into_iter().zip(states) {
            let is_over = now >= poller.until;
            match state {
                Some(state) if is_over || !is_open(&state) => {
                    // The receiver is gone if the client has closed its connection.
                    let _ = poller.answer.send(state);
                }
                Some(_) | None if !is_over => left.push(poller),
                Some(_) | None => {}
            }
        }
        left
    }
}

impl PollTask {
    /// The state, unless it cannot be read. That may end, as when this process gets a key that it lacks.
    fn readable(&self, state: WaitPolled) -> Option<WaitPolled> {
        let WaitPolled::Unreadable(error) = &state else { return Some(state) };
        self.metrics.store_call_failed(error);
        tracing::warn!(error = error_chain(&**error), "a wait cannot be read");
        None
    }
}

fn is_open(state: &WaitPolled) -> bool {
    matches!(state, WaitPolled::Wait(wait) if wait.state == WaitState::Open)
}
