//! `POST heartbeat`: many workers' heartbeats become few statements.
//!
//! A heartbeat that comes alone goes to the store at once. Those that come within a window after a batch, or while
//! one is under way, wait for the next; there is never more than one batch under way.

use std::sync::Arc;
use std::time::Duration;

use dalsegno_store::{Beat, Digest, RunId, Store};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::config::Config;
use crate::error_chain::chain;
use crate::metrics::Metrics;

/// Heartbeats in one statement, and waiting for the next.
const BATCH: usize = 4_096;

/// Gathers heartbeats.
pub(crate) struct Heartbeats {
    waiting: mpsc::Sender<Waiting>,
}

struct Waiting {
    worker: (RunId, Digest),
    answer: oneshot::Sender<Beat>,
}

impl Heartbeats {
    pub(crate) fn start(store: Arc<dyn Store>, config: &Config, metrics: Metrics) -> Self {
        let (waiting, arriving) = mpsc::channel(BATCH);
        tokio::spawn(gather(store, metrics, arriving, config.heartbeat_window, config.store_deadline));
        Self { waiting }
    }

    /// The store's answer; `None` if it gave none.
    pub(crate) async fn send(&self, run: RunId, capability: Digest) -> Option<Beat> {
        let (answer, answered) = oneshot::channel();
        self.waiting.send(Waiting { worker: (run, capability), answer }).await.ok()?;
        answered.await.ok()
    }

    /// When they are gathered no more, as after a defect.
    pub(crate) async fn ended(&self) {
        self.waiting.closed().await;
    }
}

/// Ends when nobody can send any more.
async fn gather(
    store: Arc<dyn Store>,
    metrics: Metrics,
    mut arriving: mpsc::Receiver<Waiting>,
    window: Duration,
    deadline: Duration,
) {
    let mut batch = Vec::new();
    let mut not_before = Instant::now();
    while arriving.recv_many(&mut batch, BATCH).await > 0 {
        tokio::time::sleep_until(not_before).await;
        while batch.len() < BATCH
            && let Ok(next) = arriving.try_recv()
        {
            batch.push(next);
        }
        not_before = Instant::now() + window;
        flush(&*store, &metrics, std::mem::take(&mut batch), deadline).await;
    }
}

/// Without an answer of the store the senders are dropped, and each waiting call sees that.
async fn flush(store: &dyn Store, metrics: &Metrics, batch: Vec<Waiting>, deadline: Duration) {
    let workers: Vec<_> = batch.iter().map(|waiting| waiting.worker).collect();
    match tokio::time::timeout(deadline, store.heartbeats(&workers)).await {
        Ok(Ok(beats)) => {
            for (waiting, beat) in batch.into_iter().zip(beats) {
                // A worker that has hung up needs no answer.
                let _ = waiting.answer.send(beat);
            }
        }
        Ok(Err(error)) => {
            metrics.store_failed(&error);
            tracing::warn!(error = chain(&error), "heartbeats could not be stored");
        }
        Err(_) => {
            metrics.store_silent();
            tracing::warn!("the store did not answer heartbeats in time");
        }
    }
}
