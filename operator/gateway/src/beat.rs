//! The gateway's own beat: by it the operator knows that a worker's silence is the worker's.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use dalsegno_store::BEAT_GAP_MS;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::gateway::Gateway;

/// When the store last answered a beat.
#[derive(Default)]
pub(crate) struct LastBeat(Mutex<Option<Instant>>);

impl LastBeat {
    fn set(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Whether that was less than a gap ago.
    pub(crate) fn is_fresh(&self) -> bool {
        self.is_within(Duration::from_millis(BEAT_GAP_MS.unsigned_abs()))
    }

    /// Whether that was less than so long ago.
    pub(crate) fn is_within(&self, limit: Duration) -> bool {
        let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.is_some_and(|last| last.elapsed() < limit)
    }
}

/// Beats until it is dropped.
pub(crate) async fn beat(gateway: Gateway) {
    let mut ticks = interval(gateway.config.beat_period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if gateway.tell_beat().await {
            gateway.last_beat.set();
        }
    }
}
