//! Leader election by a Lease: one operator works at a time. This saves work; two operators at once do no harm, since the
//! store fences every write.

mod own_clock;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease as LeaseObject;
use kube::{Api, Client};
use kube_lease_manager::{LeaseCreateMode, LeaseManager, LeaseManagerBuilder, LeaseManagerError};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use own_clock::by_own_clock;

use crate::kube_client::with_timeout;

/// Name of the Lease.
pub const LEASE: &str = "dalsegno-operator";
/// Validity of the Lease after each renewal, in seconds.
const LEASE_SECONDS: u64 = 15;
/// The Lease is renewed this long before it expires, in seconds. Two tries without an answer leave time for a third.
const RENEW_SECONDS_BEFORE_EXPIRY: u64 = 8;
/// Timeout of a request for the Lease.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// A standby reads the Lease this often, so that it sees a renewal soon after it was made. A leader that has died is followed
/// after the validity of its Lease and at most this time.
const OBSERVE_INTERVAL: Duration = Duration::from_secs(2);
/// Delay between two tries. Constant: a delay that grew with each failure would one day exceed the validity of the Lease.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Held while this process is the leader.
pub struct LeaderGuard {
    release: CancellationToken,
    renewing: JoinHandle<()>,
}

/// A process that wants to lead.
pub struct Candidate<'a> {
    /// Client of the API server.
    pub client: Client,
    /// Namespace of the Lease.
    pub namespace: &'a str,
    /// Name of this process in the Lease.
    pub identity: &'a str,
}

impl Candidate<'_> {
    /// Waits until this process is the leader, and retries for as long as the API server fails. Returns `None` if `stop` came
    /// first. Sets `is_ready` once the Lease can be read: a standby is ready.
    ///
    /// If the leadership is lost later, cancels `stop`: the process must end.
    pub async fn lead(self, is_ready: &AtomicBool, stop: CancellationToken) -> Option<LeaderGuard> {
        let Self { client, namespace, identity } = self;
        let mut lease = None;
        let leading = async {
            let client = by_own_clock(with_timeout(client, REQUEST_TIMEOUT), identity);
            let lease = &*lease.insert(Lease::prepare(client, namespace, identity).await);
            is_ready.store(true, Ordering::Relaxed);
            tokio::select! {
                () = async { while !lease.changed(false).await {} } => {}
                () = lease.observe() => {}
            }
        };
        if stop.run_until_cancelled(leading).await.is_none() {
            // The Lease may be ours already, without an answer that says so.
            if let Some(lease) = lease {
                lease.release().await;
            }
            return None;
        }
        tracing::info!(identity, "this process is the leader");
        let release = CancellationToken::new();
        let renewing = tokio::spawn(renew(lease?, release.clone(), stop.drop_guard()));
        Some(LeaderGuard { release, renewing })
    }
}

impl LeaderGuard {
    /// Releases the Lease, so that another process can lead: a new one at once, a waiting one at its next try. The leader's
    /// work must have ended before.
    pub async fn release(self) {
        self.release.cancel();
        let _ = self.renewing.await;
    }
}

/// Renews the Lease until `release`. `_lost` is cancelled at the end, also after a panic: nobody would renew the Lease then.
async fn renew(lease: Lease, release: CancellationToken, _lost: DropGuard) {
    let leading = async { while lease.changed(true).await {} };
    if release.run_until_cancelled(leading).await.is_some() {
        tracing::error!("this process is not the leader any more, and ends");
    } else {
        lease.release().await;
    }
}

/// The Lease, and the process that wants to hold it.
struct Lease {
    client: Client,
    namespace: String,
    identity: String,
    manager: LeaseManager,
}

impl Lease {
    /// Creates the Lease if it does not exist. Retries until that succeeds.
    async fn prepare(client: Client, namespace: &str, identity: &str) -> Self {
        let manager = loop {
            match lease_manager(client.clone(), namespace, identity).await {
                Ok(manager) => break manager,
                Err(error) => tracing::error!(%error, "the Lease could not be prepared"),
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        };
        Self { client, namespace: namespace.to_owned(), identity: identity.to_owned(), manager }
    }

    /// Waits until the leadership changes or is renewed. Returns whether this process leads. `leads`: it did before.
    ///
    /// A leader that cannot renew the Lease leads until it expires and no longer: another process may hold it then, and
    /// this one may have missed a change of limits or retention.
    ///
    /// Not the crate's own loop: its pauses grow with each failure for as long as the process leads, it does not end a
    /// request without an answer, and it does not create a Lease that was deleted. (A leader whose Lease is deleted ends.)
    async fn changed(&self, leads: bool) -> bool {
        let mut failing_since: Option<Instant> = None;
        loop {
            let began = Instant::now();
            let error = match self.manager.changed().await {
                Ok(leads) => return leads,
                Err(error) => error,
            };
            tracing::warn!(%error, "the Lease could not be read or renewed");
            // Such a long wait means that a renewal succeeded in between.
            if began.elapsed() > REQUEST_TIMEOUT * 2 + RETRY_INTERVAL {
                failing_since = None;
            }
            // The renewal that failed was due at most REQUEST_TIMEOUT before this error.
            let since = *failing_since.get_or_insert_with(Instant::now);
            let limit = Duration::from_secs(RENEW_SECONDS_BEFORE_EXPIRY);
            if leads && since.elapsed() + REQUEST_TIMEOUT >= limit {
                return false;
            }
            if let LeaseManagerError::NonexistentLease(_) = error
                && let Err(error) = lease_manager(self.client.clone(), &self.namespace, &self.identity).await
            {
                tracing::warn!(%error, "the Lease was deleted, and could not be created again");
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    /// Reads the Lease again and again, so that the client knows when each renewal was first seen.
    async fn observe(&self) {
        let api: Api<LeaseObject> = Api::namespaced(self.client.clone(), &self.namespace);
        loop {
            tokio::time::sleep(OBSERVE_INTERVAL).await;
            if let Err(error) = api.get_opt(LEASE).await {
                tracing::debug!(%error, "the Lease could not be observed");
            }
        }
    }

    async fn release(&self) {
        if let Err(error) = self.manager.release().await {
            tracing::warn!(%error, "the Lease could not be released; it will expire");
        }
    }
}

/// A manager of the Lease. Creates the Lease if it does not exist.
async fn lease_manager(
    client: Client,
    namespace: &str,
    identity: &str,
) -> Result<LeaseManager, LeaseManagerError> {
    LeaseManagerBuilder::new(client, LEASE)
        .with_namespace(namespace)
        .with_identity(identity)
        .with_duration(LEASE_SECONDS)
        .with_grace(RENEW_SECONDS_BEFORE_EXPIRY)
        .with_create_mode(LeaseCreateMode::AutoCreate)
        .build()
        .await
}

#[cfg(test)]
mod tests;
