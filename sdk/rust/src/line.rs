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
        lock(&self.addresses.0.known).stale = true;
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
    stale: bool,
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
        let last = match &*lock(&self.0.known) {
            Known { last: Some(last), stale: false } => return Ok(last.clone()),
            Known { last, .. } => last.clone(),
        };
        // Nobody waits for the lock meanwhile.
        match self.0.lookup.resolve(uri, config, timeout) {
            Ok(found) => {
                *lock(&self.0.known) = Known { last: Some(found.clone()), stale: false };
                Ok(found)
            }
            Err(error) => {
                let last = last.ok_or(error)?;
                // Calls on a connection that holds must not wait for it, too. The next one that fails has it asked again.
                lock(&self.0.known).stale = false;
                Ok(last)
            }
        }
    }
}

fn lock<T>(held: &Mutex<T>) -> MutexGuard<'_, T> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}
