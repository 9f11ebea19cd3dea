//! Batches the heartbeats of many workers into few statements.
//!
//! A single heartbeat goes to the store at once. Heartbeats that arrive within a window after a batch, or while a batch
//! is under way, wait for the next batch. At most one batch is under way.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_model::{Digest, HeartbeatAnswer, RunId, Store};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::config::Config;
use crate::error_chain::error_chain;
use crate::metrics::Metrics;

/// Heartbeats in one statement, and as many that wait for the next one.
const MAX_BATCH: usize = 4_096;

/// Sends heartbeats to the task that batches them.
pub(crate) struct HeartbeatBatcher {
    queue: mpsc::Sender<Heartbeat>,
}

struct Heartbeat {
    worker: (RunId, Digest),
    answer: oneshot::Sender<HeartbeatAnswer>,
}

impl HeartbeatBatcher {
    /// Starts the task. It ends once the batcher is dropped.
    pub(crate) fn start(store: Arc<dyn Store>, config: &Config, metrics: Metrics) -> Self {
        let (queue, arriving) = mpsc::channel(MAX_BATCH);
        let window = config.heartbeat_batch_window;
        let task = BatchTask { store, metrics, arriving, window, timeout: config.store_timeout };
        tokio::spawn(task.run());
        Self { queue }
    }

    /// Sends one heartbeat and waits for the store's answer; `None`: the store has not answered.
    pub(crate) async fn send(&self, run: RunId, capability: Digest) -> Option<HeartbeatAnswer> {
        let (answer, answered) = oneshot::channel();
        self.queue.send(Heartbeat { worker: (run, capability), answer }).await.ok()?;
        answered.await.ok()
    }

    /// Waits until the task has stopped, which only a defect can cause.
    pub(crate) async fn stopped(&self) {
        self.queue.closed().await;
    }
}

struct BatchTask {
    store: Arc<dyn Store>,
    metrics: Metrics,
    arriving: mpsc::Receiver<Heartbeat>,
    /// Minimal time between the starts of two batches.
    window: Duration,
    /// How long the store may take for one batch.
    timeout: Duration,
}

impl BatchTask {
    /// Runs until no sender is left.
    async fn run(mut self) {
        let mut batch = Vec::new();
        let mut not_before = Instant::now();
        while self.arriving.recv_many(&mut batch, MAX_BATCH).await > 0 {
            tokio::time::sleep_until(not_before).await;
            while batch.len() < MAX_BATCH
                && let Ok(next) = self.arriving.try_recv()
            {
                batch.push(next);
            }
            not_before = Instant::now() + self.window;
            self.flush(std::mem::take(&mut batch)).await;
        }
    }

    /// Without an answer of the store the batch is dropped, and each waiting call sees that its sender is gone.
    async fn flush(&self, batch: Vec<Heartbeat>) {
        let workers: Vec<_> = batch.iter().map(|heartbeat| heartbeat.worker).collect();
        match tokio::time::timeout(self.timeout, self.store.heartbeats(&workers)).await {
            Ok(Ok(answers)) => {
                for (heartbeat, answer) in batch.into_iter().zip(answers) {
                    // The receiver is gone if the client has closed its connection.
                    let _ = heartbeat.answer.send(answer);
                }
            }
            Ok(Err(error)) => {
                self.metrics.store_call_failed(&error);
                tracing::warn!(error = error_chain(&error), "heartbeats could not be stored");
            }
            Err(_) => {
                self.metrics.store_call_timed_out();
                tracing::warn!("storing heartbeats timed out");
            }
        }
    }
}
