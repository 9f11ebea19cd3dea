//! One connection to a gateway, and the addresses it may lead to.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{Connector as _, NextTimeout};
use ureq::{Agent, Error};

use crate::race::RaceConnector;
use crate::tls::TlsConnector;

/// One connection. Calls share it until [`Connection::renew`].
pub(crate) struct Connection {
    agent: Mutex<Agent>,
    addresses: Addresses,
    ca_file: Option<PathBuf>,
}

impl Connection {
    /// `ca_file`: the CAs of the gateway, for an https URL.
    pub(crate) fn new(config: Config, addresses: Addresses, ca_file: Option<PathBuf>) -> Self {
        let connector = RaceConnector.chain(TlsConnector { ca_file: ca_file.clone() });
        let agent = Agent::with_parts(config, connector, addresses.clone());
        Self { agent: Mutex::new(agent), addresses, ca_file }
    }

    pub(crate) fn agent(&self) -> Agent {
        lock(&self.agent).clone()
    }

    /// Drops the connection. The next call opens another one, perhaps to another gateway.
    pub(crate) fn renew(&self) {
        lock(&self.addresses.0.cache).failed_calls += 1;
        let fresh = Self::new(self.agent().config().clone(), self.addresses.clone(), self.ca_file.clone());
        *lock(&self.agent) = fresh.agent();
    }
}

/// The gateways' addresses. They are looked up once, and again after a call that failed.
///
/// While no name server answers, the last known addresses are used. ureq resolves before each call, even if it has an
/// open connection, and an outage of the name server must not end the heartbeats.
#[derive(Clone, Debug)]
pub(crate) struct Addresses(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    resolver: Box<dyn Resolver>,
    cache: Mutex<Cache>,
}

#[derive(Debug, Default)]
struct Cache {
    addresses: Option<ResolvedSocketAddrs>,
    /// How many calls have failed so far.
    failed_calls: u64,
    /// The value of `failed_calls` when the latest lookup began.
    failed_calls_at_lookup: u64,
}

impl Addresses {
    pub(crate) fn new(resolver: impl Resolver) -> Self {
        Self(Arc::new(Shared { resolver: Box::new(resolver), cache: Mutex::default() }))
    }
}

impl Resolver for Addresses {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, Error> {
        let failed_calls = match &*lock(&self.0.cache) {
            Cache { addresses: Some(addresses), failed_calls, failed_calls_at_lookup }
                if failed_calls == failed_calls_at_lookup =>
            {
                return Ok(addresses.clone());
            }
            Cache { failed_calls, .. } => *failed_calls,
        };
        // The lock is not held during the lookup.
        let resolved = self.0.resolver.resolve(uri, config, timeout);
        let mut cache = lock(&self.0.cache);
        let addresses = match resolved {
            Ok(found) => cache.addresses.insert(found).clone(),
            Err(error) => cache.addresses.clone().ok_or(error)?,
        };
        // Set after a failed lookup too: calls on a working connection must not wait for a name server again.
        cache.failed_calls_at_lookup = cache.failed_calls_at_lookup.max(failed_calls);
        Ok(addresses)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    use ureq::unversioned::resolver::DefaultResolver;

    use super::*;
    use crate::http::{Client, Files};

    /// A name server that can stop answering.
    #[derive(Clone, Debug, Default)]
    struct NameServer {
        lookups: Arc<AtomicUsize>,
        silent: Arc<AtomicBool>,
    }

    impl Resolver for NameServer {
        fn resolve(
            &self,
            uri: &Uri,
            config: &Config,
            timeout: NextTimeout,
        ) -> Result<ResolvedSocketAddrs, Error> {
            self.lookups.fetch_add(1, Ordering::SeqCst);
            if self.silent.load(Ordering::SeqCst) {
                thread::sleep(*timeout.after);
                return Err(Error::Timeout(timeout.reason));
            }
            DefaultResolver::default().resolve(uri, config, timeout)
        }
    }

    /// A gateway that accepts every heartbeat but the third one, whose connection it closes. Returns its URL and the
    /// number of heartbeats it has received.
    fn gateway() -> (String, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1/runs/r1", listener.local_addr().unwrap());
        let received = Arc::new(AtomicUsize::new(0));
        let count = received.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut reader, count) = (BufReader::new(stream.unwrap()), count.clone());
                thread::spawn(move || {
                    loop {
                        let mut lines = reader.by_ref().lines().map_while(Result::ok);
                        if !lines.by_ref().any(|line| line.is_empty())
                            || count.fetch_add(1, Ordering::SeqCst) == 2
                        {
                            return;
                        }
                        reader
                            .get_mut()
                            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                            .unwrap();
                    }
                });
            }
        });
        (url, received)
    }

    fn wait_until(mut is_true: impl FnMut() -> bool) {
        let start = Instant::now();
        while !is_true() {
            assert!(start.elapsed() < Duration::from_secs(60), "not true within 60 s");
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn heartbeats_survive_a_name_server_outage_and_wait_for_it_only_after_a_failure() {
        let (url, received) = gateway();
        let names = NameServer::default();
        let client =
            Client::new(&url, Files { token: "no token".into(), ca: None }, Box::new(|_| ()), names.clone());
        client.instance.set("instance".to_owned()).unwrap();
        // A silent name server takes half of the time of a try.
        let heartbeat = move || client.send("heartbeat", Some(b""), Duration::from_secs(10)).map(drop);
        heartbeat().unwrap();
        names.silent.store(true, Ordering::SeqCst);
        let heartbeats = thread::spawn(move || [heartbeat(), heartbeat(), heartbeat()]);
        wait_until(|| heartbeats.is_finished());
        assert!(heartbeats.join().unwrap().iter().all(Result::is_ok));
        assert_eq!((received.load(Ordering::SeqCst), names.lookups.load(Ordering::SeqCst)), (5, 2));
    }

    #[test]
    fn a_call_that_fails_during_a_lookup_causes_another_lookup() {
        let names = NameServer::default();
        let addresses = Addresses::new(names.clone());
        let connection = Connection::new(Config::default(), addresses.clone(), None);
        let resolve = move || {
            let (uri, after) = (Uri::from_static("http://127.0.0.1:1"), Duration::from_millis(500).into());
            let timeout = NextTimeout { after, ..NextTimeout::default() };
            addresses.resolve(&uri, &Config::default(), timeout).unwrap()
        };
        let lookups = || names.lookups.load(Ordering::SeqCst);
        resolve();
        names.silent.store(true, Ordering::SeqCst);
        connection.renew();
        let waiting = thread::spawn(resolve.clone());
        wait_until(|| lookups() == 2);
        connection.renew();
        waiting.join().unwrap();
        names.silent.store(false, Ordering::SeqCst);
        for _ in 0..2 {
            resolve();
            assert_eq!(lookups(), 3);
        }
    }
}
