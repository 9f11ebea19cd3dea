//! The gateway's own heartbeat to the store. While it arrives, the operator knows that a worker's silence is the
//! worker's own; after a gap in it, deadlines start anew.

use std::sync::atomic::Ordering;

use tokio::time::{MissedTickBehavior, interval};

use crate::gateway::Gateway;

/// Sends the heartbeat until the task is dropped.
pub(crate) async fn run(gateway: Gateway) {
    let mut ticks = interval(gateway.config.gateway_heartbeat_interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Some(contract) = gateway.send_heartbeat().await {
            gateway.contract.store(contract, Ordering::Relaxed);
            gateway.last_heartbeat.record();
        }
    }
}
