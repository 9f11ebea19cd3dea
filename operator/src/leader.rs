//! One operator at a time, by a Lease. It saves work; that two at once do no harm is the store's doing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kube::Client;
use kube_lease_manager::{LeaseCreateMode, LeaseManager, LeaseManagerBuilder, LeaseManagerError};
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

/// Waits until this process leads, however often the API server fails meanwhile; `None`: it was told to stop before.
/// `is_ready` once it can wait for it, which needs the right to. When it no longer leads, `stop` is cancelled and the process
/// is to end.
pub async fn lead(
    client: Client,
    namespace: &str,
    identity: &str,
    is_ready: &AtomicBool,
    stop: CancellationToken,
) -> Option<Lead> {
    let mut lease = None;
    let leading = async {
        let lease = lease.insert(Lease::of(bounded(client, PATIENCE), namespace, identity).await);
        is_ready.store(true, Ordering::Relaxed);
        while !lease.changed(false).await {}
    };
    if stop.run_until_cancelled(leading).await.is_none() {
        // We may have taken it, and not be told yet.
        if let Some(lease) = lease {
            lease.release().await;
        }
        return None;
    }
    tracing::info!(identity, "leading");
    let over = CancellationToken::new();
    let holding = tokio::spawn(hold(lease?, over.clone(), stop));
    Some(Lead { over, holding })
}

impl Lead {
    /// Lets another process lead: one that begins at once, one that waits when it looks again. Nothing of what is done by the
    /// one that leads may be under way any more.
    pub async fn release(self) {
        self.over.cancel();
        let _ = self.holding.await;
    }
}

async fn hold(lease: Lease, over: CancellationToken, lost: CancellationToken) {
    // Whatever ends this: nobody would renew the Lease any more.
    let _lost = lost.drop_guard();
    let leading = async { while lease.changed(true).await {} };
    if over.run_until_cancelled(leading).await.is_some() {
        tracing::error!("no longer leading; ending");
    } else {
        lease.release().await;
    }
}

/// The Lease, for one who would hold it.
struct Lease {
    client: Client,
    namespace: String,
    identity: String,
    manager: LeaseManager,
}

impl Lease {
    /// Once it is there.
    async fn of(client: Client, namespace: &str, identity: &str) -> Self {
        let manager = loop {
            match prepared(client.clone(), namespace, identity).await {
                Ok(manager) => break manager,
                Err(error) => tracing::error!(%error, "the Lease could not be prepared"),
            }
            tokio::time::sleep(PAUSE).await;
        };
        Self { client, namespace: namespace.to_owned(), identity: identity.to_owned(), manager }
    }

    /// Whether we lead, once that has changed; `leads`: we do. Who cannot renew the Lease leads until it has run out, and no
    /// longer: another may hold it by now, and what we know of limits and retention is old.
    ///
    /// The crate's own loop would do, were its pauses after failures not to grow for as long as we lead, did it end one that
    /// gets no answer, and did it make a Lease that somebody has deleted. (One who leads as that happens ends.)
    async fn changed(&self, leads: bool) -> bool {
        let mut failing: Option<Instant> = None;
        loop {
            let began = Instant::now();
            let error = match self.manager.changed().await {
                Ok(leads) => return leads,
                Err(error) => error,
            };
            tracing::warn!(%error, "the Lease could not be read or renewed");
            // Only after a renewal it is waited so long, for the next one.
            if began.elapsed() > PATIENCE * 2 + PAUSE {
                failing = None;
            }
            // It was told of this failure PATIENCE after the Lease was to be renewed, if not sooner.
            let since = *failing.get_or_insert_with(Instant::now);
            if leads && since.elapsed() + PATIENCE >= Duration::from_secs(GRACE) {
                return false;
            }
            if let LeaseManagerError::NonexistentLease(_) = error
                && let Err(error) = prepared(self.client.clone(), &self.namespace, &self.identity).await
            {
                tracing::warn!(%error, "the Lease is deleted, and could not be made again");
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn release(&self) {
        if let Err(error) = self.manager.release().await {
            tracing::warn!(%error, "the Lease could not be released, and runs out");
        }
    }
}

/// Who would hold the Lease, which is made where there is none.
async fn prepared(
    client: Client,
    namespace: &str,
    identity: &str,
) -> Result<LeaseManager, LeaseManagerError> {
    LeaseManagerBuilder::new(client, LEASE)
        .with_namespace(namespace)
        .with_identity(identity)
        .with_duration(DURATION)
        .with_grace(GRACE)
        .with_create_mode(LeaseCreateMode::AutoCreate)
        .build()
        .await
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a case that cannot go on has failed")]

    use std::convert::Infallible;
    use std::future::pending;
    use std::sync::atomic::AtomicUsize;
    use std::sync::{Arc, Mutex};

    use axum::http::{Method, Request, Response};
    use kube::client::Body;
    use serde_json::Value;

    use super::*;
    use crate::world;

    /// Waits to lead, before an API server that answers so.
    async fn led<F>(
        answer: impl Fn(usize, Request<Body>) -> F + Send + Sync + 'static,
        stop: &CancellationToken,
    ) -> Option<Lead>
    where
        F: Future<Output = Response<Body>> + Send + 'static,
    {
        let (times, answer) = (AtomicUsize::new(0), Arc::new(answer));
        let server = tower::service_fn(move |request: Request<Body>| {
            let answer = answer(times.fetch_add(1, Ordering::Relaxed), request);
            async { Ok::<_, Infallible>(answer.await) }
        });
        let is_ready = AtomicBool::new(false);
        let leading = lead(Client::new(server, "default"), "default", "dalsegno", &is_ready, stop.clone());
        let lead = tokio::time::timeout(Duration::from_secs(20), leading).await.expect("it leads or stops");
        assert!(is_ready.into_inner());
        lead
    }

    #[tokio::test]
    async fn a_lease_that_the_api_server_does_not_tell_of_at_first_is_held_in_the_end_and_then_released() {
        let lease = Arc::new(Mutex::new(Value::Null));
        let (there, stop) = (lease.clone(), CancellationToken::new());
        let answer = move |time, request| {
            let there = there.clone();
            async move {
                match time {
                    0 => pending().await,
                    1 => Response::builder().status(403).body(Body::empty()).unwrap(),
                    _ => world::lease(&there, request).await,
                }
            }
        };
        let lead = led(answer, &stop).await.unwrap();
        assert_eq!(lease.lock().unwrap()["spec"]["holderIdentity"], "dalsegno");
        assert!(!stop.is_cancelled());
        lead.release().await;
        assert_eq!(lease.lock().unwrap()["spec"]["holderIdentity"], Value::Null);
    }

    #[tokio::test]
    async fn a_lease_that_somebody_deletes_is_made_again() {
        let lease = Arc::new(Mutex::new(Value::Null));
        let (there, made) = (lease.clone(), AtomicUsize::new(0));
        let answer = move |_, request: Request<Body>| {
            let is_first = request.method() == Method::POST && made.fetch_add(1, Ordering::Relaxed) == 0;
            let there = there.clone();
            async move {
                let answer = world::lease(&there, request).await;
                if is_first {
                    *there.lock().unwrap() = Value::Null;
                }
                answer
            }
        };
        let lead = led(answer, &CancellationToken::new()).await.unwrap();
        assert_eq!(lease.lock().unwrap()["spec"]["holderIdentity"], "dalsegno");
        lead.release().await;
    }

    #[tokio::test]
    async fn one_who_is_told_to_stop_while_it_takes_the_lease_keeps_none() {
        let lease = Arc::new(Mutex::new(Value::Null));
        let (there, stop) = (lease.clone(), CancellationToken::new());
        let stops = stop.clone();
        let answer = move |_, request: Request<Body>| {
            let (there, stops) = (there.clone(), stops.clone());
            async move {
                let taken = request.method() == Method::PATCH && !stops.is_cancelled();
                let answer = world::lease(&there, request).await;
                if taken {
                    assert_eq!(there.lock().unwrap()["spec"]["holderIdentity"], "dalsegno");
                    stops.cancel();
                    pending::<()>().await;
                }
                answer
            }
        };
        assert!(led(answer, &stop).await.is_none());
        assert_eq!(lease.lock().unwrap()["spec"]["holderIdentity"], Value::Null);
    }

    /// Whether it is told that it no longer leads, before its Lease and a renewal more would be over twice.
    async fn is_told(stop: &CancellationToken) -> bool {
        tokio::time::timeout(Duration::from_secs(2 * (DURATION + GRACE)), stop.cancelled()).await.is_ok()
    }

    #[tokio::test]
    async fn one_who_gets_no_answer_leads_no_longer_than_its_lease() {
        let lease = Arc::new(Mutex::new(Value::Null));
        let (silent, stop) = (Arc::new(AtomicBool::new(false)), CancellationToken::new());
        let (there, is_silent) = (lease.clone(), silent.clone());
        let answer = move |_, request| {
            let (there, is_silent) = (there.clone(), is_silent.load(Ordering::Relaxed));
            async move { if is_silent { pending().await } else { world::lease(&there, request).await } }
        };
        let _lead = led(answer, &stop).await.unwrap();
        silent.store(true, Ordering::Relaxed);
        assert!(is_told(&stop).await);
    }

    #[tokio::test]
    async fn one_whose_lease_another_holds_leads_no_longer() {
        let lease = Arc::new(Mutex::new(Value::Null));
        let (there, stop) = (lease.clone(), CancellationToken::new());
        let answer = move |_, request: Request<Body>| {
            let there = there.clone();
            async move {
                // Its own renewal comes too late.
                if request.method() == Method::PATCH
                    && there.lock().unwrap()["spec"]["holderIdentity"] == "another"
                {
                    return Response::builder().status(409).body(Body::empty()).unwrap();
                }
                world::lease(&there, request).await
            }
        };
        let _lead = led(answer, &stop).await.unwrap();
        assert!(!stop.is_cancelled());
        lease.lock().unwrap()["spec"]["holderIdentity"] = "another".into();
        assert!(is_told(&stop).await);
    }

    #[test]
    fn two_tries_that_get_no_answer_leave_the_lease_time_for_a_third() {
        assert!((PATIENCE + PAUSE) * 2 + PATIENCE <= Duration::from_secs(GRACE));
        const { assert!(GRACE < DURATION) };
    }
}
