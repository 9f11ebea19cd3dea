//! The line to a gateway: one connection, and where it leads.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};
use ureq::{Agent, Error};

/// One connection, kept from call to call until [`Line::renew`].
pub(crate) struct Line {
    agent: Mutex<Agent>,
    addresses: Addresses,
}

impl Line {
    pub(crate) fn new(config: Config, addresses: Addresses) -> Self {
        let agent = Agent::with_parts(config, DefaultConnector::default(), addresses.clone());
        Self { agent: Mutex::new(agent), addresses }
    }

    pub(crate) fn agent(&self) -> Agent {
        lock(&self.agent).clone()
    }

    /// The next call makes a connection, which may lead to another gateway.
    pub(crate) fn renew(&self) {
        lock(&self.addresses.0.known).failed += 1;
        let fresh = Self::new(self.agent().config().clone(), self.addresses.clone());
        *lock(&self.agent) = fresh.agent();
    }
}

/// Where the gateways are: looked up once, and again after a call that failed. While no name server tells, what the last one
/// told holds: ureq asks before each call, also where it has a connection, and heartbeats must not end with the name server.
#[derive(Clone, Debug)]
pub(crate) struct Addresses(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    lookup: Box<dyn Resolver>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    last: Option<ResolvedSocketAddrs>,
    /// Calls that have failed.
    failed: u64,
    /// After how many of them a name server was asked last.
    asked_after: u64,
}

impl Addresses {
    pub(crate) fn new(lookup: impl Resolver) -> Self {
        Self(Arc::new(Shared { lookup: Box::new(lookup), known: Mutex::default() }))
    }
}

impl Resolver for Addresses {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, Error> {
        let failed = match &*lock(&self.0.known) {
            Known { last: Some(last), failed, asked_after } if failed == asked_after => {
                return Ok(last.clone());
            }
            Known { failed, .. } => *failed,
        };
        // Nobody waits for the lock meanwhile.
        let told = self.0.lookup.resolve(uri, config, timeout);
        let mut known = lock(&self.0.known);
        let addresses = match told {
            Ok(found) => known.last.insert(found).clone(),
            Err(error) => known.last.clone().ok_or(error)?,
        };
        // Also where nobody answered: calls on a connection that holds must not wait for a name server, too.
        known.asked_after = known.asked_after.max(failed);
        Ok(addresses)
    }
}

fn lock<T>(held: &Mutex<T>) -> MutexGuard<'_, T> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}
