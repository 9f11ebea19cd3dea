//! One operator at a time, by a Lease. It saves work; that two at once do no harm is the store's doing.

use std::time::Duration;

use kube::Client;
use kube_lease_manager::{LeaseCreateMode, LeaseManager, LeaseManagerBuilder};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::client::bounded;

/// Name of the Lease.
pub const LEASE: &str = "dalsegno-operator";
/// How long it is held for after each renewal, in seconds.
const DURATION: u64 = 15;
/// How long before its end it is renewed, in seconds: two tries that get no answer leave room for a third.
const GRACE: u64 = 8;
/// How long an answer about it may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two tries. Always the same: a pause that grew with each failure would one day outlast the Lease.
const PAUSE: Duration = Duration::from_secs(1);

/// Held while this process leads.
pub struct Lead {
    over: CancellationToken,
    holding: JoinHandle<()>,
}

/// Waits until this process leads, however often the API server fails meanwhile. When it no longer does, `lost` is cancelled
/// and the process is to end.
pub async fn lead(client: Client, namespace: &str, identity: &str, lost: CancellationToken) -> Lead {
    let client = bounded(client, PATIENCE);
    let manager = loop {
        let builder = LeaseManagerBuilder::new(client.clone(), LEASE)
            .with_namespace(namespace)
            .with_identity(identity)
            .with_duration(DURATION)
            .with_grace(GRACE)
            .with_create_mode(LeaseCreateMode::AutoCreate);
        match builder.build().await {
            Ok(manager) => break manager,
            Err(error) => tracing::error!(%error, "the Lease could not be prepared"),
        }
        tokio::time::sleep(PAUSE).await;
    };
    while !changed(&manager).await {}
    tracing::info!(identity, "leading");
    let over = CancellationToken::new();
    let holding = tokio::spawn(hold(manager, over.clone(), lost));
    Lead { over, holding }
}

impl Lead {
    /// Lets another process lead: one that begins at once, one that waits when it looks again. Nothing of what is done by the
    /// one that leads may be under way any more.
    pub async fn release(self) {
        self.over.cancel();
        let _ = self.holding.await;
    }
}

async fn hold(manager: LeaseManager, over: CancellationToken, lost: CancellationToken) {
    // Whatever ends this: nobody would renew the Lease any more.
    let _lost = lost.drop_guard();
    let leading = async { while changed(&manager).await {} };
    if over.run_until_cancelled(leading).await.is_some() {
        tracing::error!("no longer leading; ending");
    } else if let Err(error) = manager.release().await {
        tracing::warn!(%error, "the Lease could not be released, and runs out");
    }
}

/// Whether we lead, once that has changed. The crate's own loop would do, were its pauses after failures not to grow for as
/// long as we lead.
async fn changed(manager: &LeaseManager) -> bool {
    loop {
        match manager.changed().await {
            Ok(leads) => return leads,
            Err(error) => tracing::warn!(%error, "the Lease could not be read or renewed"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a case that cannot go on has failed")]

    use std::convert::Infallible;
    use std::future::pending;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};

    use axum::http::{Request, Response};
    use kube::client::Body;
    use serde_json::Value;

    use super::*;
    use crate::world;

    #[tokio::test]
    async fn a_lease_that_the_api_server_does_not_tell_of_at_first_is_held_in_the_end_and_then_released() {
        let lease = Arc::new(Mutex::new(Value::Null));
        let (times, there) = (Arc::new(AtomicUsize::new(0)), lease.clone());
        let server = tower::service_fn(move |request: Request<Body>| {
            let (time, there) = (times.fetch_add(1, Ordering::Relaxed), there.clone());
            async move {
                match time {
                    0 => pending().await,
                    1 => Ok::<_, Infallible>(Response::builder().status(403).body(Body::empty()).unwrap()),
                    _ => Ok(world::lease(&there, request).await),
                }
            }
        });
        let lost = CancellationToken::new();
        let leading = lead(Client::new(server, "default"), "default", "dalsegno", lost.clone());
        let lead = tokio::time::timeout(Duration::from_secs(20), leading).await.expect("it leads");
        assert_eq!(lease.lock().unwrap()["spec"]["holderIdentity"], "dalsegno");
        assert!(!lost.is_cancelled());
        lead.release().await;
        assert_eq!(lease.lock().unwrap()["spec"]["holderIdentity"], Value::Null);
    }

    #[test]
    fn two_tries_that_get_no_answer_leave_the_lease_time_for_a_third() {
        assert!((PATIENCE + PAUSE) * 2 + PATIENCE <= Duration::from_secs(GRACE));
        const { assert!(GRACE < DURATION) };
    }
}
