//! The gateway's own beat: by it the operator knows that a worker's silence is the worker's.

use tokio::time::{MissedTickBehavior, interval};

use crate::gateway::Gateway;

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
