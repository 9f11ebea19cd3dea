//! Anchors the runs that have moved, once per tick. An anchor is stored, and its line is given to a sink outside of the
//! store: a copy that nobody with access to the database can change.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use dalsegno_model::{HeadsToAnchor, RunId, Store};
use dalsegno_proof::{Anchor, AnchorLine, Signer};
use jiff::Timestamp;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use super::anchor_sink::AnchorSink;
use crate::metrics::Metrics;

/// Longest time of a tick.
const TICK_TIMEOUT: Duration = Duration::from_secs(60);

/// Anchors the runs that have moved.
pub struct Anchoring {
    store: Arc<dyn Store>,
    /// File of the signing key; unset: the store's own.
    key: Option<PathBuf>,
    signer: Option<Signer>,
    sink: AnchorSink,
    metrics: Metrics,
    /// Where the list of moved runs continues: after this run.
    after: RunId,
    /// When the list was begun. What moved before is anchored once the list has come to its end.
    begun: Timestamp,
    /// Number of the last anchor that the sink has got from this process.
    delivered: Option<i64>,
}

impl Anchoring {
    /// Anchors nothing yet. `key`: file of the signing key; unset: the store's own.
    pub fn new(store: Arc<dyn Store>, key: Option<PathBuf>, sink: AnchorSink, metrics: Metrics) -> Self {
        let (after, begun) = (RunId::nil(), Timestamp::now());
        Self { store, key, signer: None, sink, metrics, after, begun, delivered: None }
    }

    /// Creates at most one anchor per period `every`, until `stop`. If the store or the sink is unavailable, the next tick
    /// tries again.
    pub async fn run(mut self, every: Duration, stop: CancellationToken) {
        // What moved before this process began is not known. The time of its start is reported until the first tick ends.
        self.metrics.set_anchored_until(self.sink.name(), self.begun);
        let mut ticks = interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            let ended = timeout(TICK_TIMEOUT, self.tick()).await.context("no answer in time");
            if let Err(error) = ended.flatten() {
                tracing::warn!(error = format!("{error:#}"), "the runs that moved could not be anchored");
            }
        }
    }

    /// One pass: reads what has moved, anchors it, and gives the line to the sink.
    async fn tick(&mut self) -> anyhow::Result<()> {
        if self.after.is_nil() {
            self.begun = Timestamp::now();
        }
        let moved = self.store.heads_to_anchor(self.after).await?;
        let mut last = match &moved.last {
            Some(row) => Some(
                AnchorLine::parse(&row.line).context("a line is no anchor")?.map_err(anyhow::Error::msg)?,
            ),
            None => None,
        };
        if Anchor::is_due(&moved)? {
            let Some(line) = self.anchor(&moved).await? else {
                // Another operator has stored an anchor with this number: it gives the line to the sink.
                return Ok(());
            };
            last = Some(line);
        }
        self.after = moved.next_after();
        // The last line alone vouches for all before it, so that a line which the sink did not get is no loss.
        if let Some(last) = last.filter(|last| self.delivered != Some(last.seq())) {
            self.check_sink().await?;
            self.sink.add(&last.text()?).await?;
            self.delivered = Some(last.seq());
        }
        if self.after.is_nil() {
            self.metrics.set_anchored_until(self.sink.name(), self.begun);
        }
        Ok(())
    }

    /// Stores the next anchor. `None`: another operator has stored one with its number.
    async fn anchor(&mut self, moved: &HeadsToAnchor) -> anyhow::Result<Option<AnchorLine>> {
        let signer = match &mut self.signer {
            Some(signer) => signer,
            None => {
                let loaded = Signer::load(self.store.as_ref(), self.key.as_deref()).await?;
                self.signer.insert(loaded)
            }
        };
        let anchor = Anchor::next(moved, self.store.id().await?, Timestamp::now(), signer)?;
        let is_stored = self.store.put_anchor(anchor.stored()).await?;
        Ok(is_stored.then(|| anchor.line().clone()))
    }

    /// Checks that the store still has the last anchor of the sink: else somebody has changed the store, and the sink's
    /// lines prove it. They must not be replaced by new ones.
    async fn check_sink(&self) -> anyhow::Result<()> {
        let Some(text) = self.sink.last_line().await? else { return Ok(()) };
        let known = match AnchorLine::parse(&text) {
            Some(Ok(line)) if self.delivered == Some(line.seq()) => return Ok(()),
            Some(Ok(line)) => {
                let mut reading = self.store.begin_read().await?;
                let rows = reading.anchors(line.seq().saturating_sub(1)).await?;
                rows.first().is_some_and(|row| row.line == text)
            }
            _ => false,
        };
        if !known {
            bail!(
                "the store does not have the last anchor of the sink: the store was changed or restored; run `dalsegno audit \
                 verify --anchors` with the lines of the sink, keep them, and then delete them from the sink"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
