//! Connections: with whom an agent speaks, and for how long.

use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

use super::*;
use crate::http::Client;
use crate::line::{Addresses, Line};

/// A name server that may fall silent.
#[derive(Clone, Debug, Default)]
struct Names {
    asked: Arc<AtomicUsize>,
    silent: Arc<AtomicBool>,
}

impl Resolver for Names {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        if self.silent.load(Ordering::SeqCst) {
            thread::sleep(*timeout.after);
            return Err(ureq::Error::Timeout(timeout.reason));
        }
        DefaultResolver::default().resolve(uri, config, timeout)
    }
}

#[test]
fn heartbeats_outlive_the_name_server_and_wait_for_it_after_a_failure_alone() {
    let gateway =
        Gateway::new().on("heartbeat", [flags(json!({})), flags(json!({})), None, flags(json!({}))]);
    let names = Names::default();
    let client = Client::new(&gateway.url, "no token".into(), Box::new(|_| ()), names.clone());
    client.instance.set("instance".to_owned()).unwrap();
    let beat = move || client.send("heartbeat", Some(b""), Duration::from_secs(2)).map(drop);
    beat().unwrap();
    names.silent.store(true, Ordering::SeqCst);
    let beats = thread::spawn(move || [beat(), beat(), beat()]);
    within(Duration::from_secs(10), || beats.is_finished());
    assert!(beats.join().unwrap().iter().all(Result::is_ok));
    assert_eq!((gateway.bodies("heartbeat").len(), names.asked.load(Ordering::SeqCst)), (5, 2));
}

#[test]
fn a_call_that_fails_while_a_name_server_is_asked_has_it_asked_again() {
    let names = Names::default();
    let addresses = Addresses::new(names.clone());
    let line = Line::new(Config::default(), addresses.clone());
    let ask = move || {
        let (uri, after) = (Uri::from_static("http://127.0.0.1:1"), Duration::from_millis(500).into());
        addresses.resolve(&uri, &Config::default(), NextTimeout { after, ..NextTimeout::default() }).unwrap()
    };
    let asked = || names.asked.load(Ordering::SeqCst);
    ask();
    names.silent.store(true, Ordering::SeqCst);
    line.renew();
    let waiting = thread::spawn(ask.clone());
    within(Duration::from_secs(10), || asked() == 2);
    line.renew();
    waiting.join().unwrap();
    names.silent.store(false, Ordering::SeqCst);
    for _ in 0..2 {
        ask();
        assert_eq!(asked(), 3);
    }
}

#[test]
fn a_gateway_that_cannot_serve_is_left_for_a_new_connection() {
    let answers = [
        problem(503, "UNAVAILABLE"),
        problem(429, "TOO_MANY_REQUESTS"),
        Some((200, json!("<html>"))),
        committed(1, "result"),
    ];
    let gateway = Gateway::new().on("turns/1", answers).on("turns/2", [committed(2, "result")]);
    let mut run = gateway.attach();
    run.commit(Commit::new(1)).unwrap();
    run.commit(Commit::new(2)).unwrap();
    let ports = &gateway.script.lock().unwrap().ports;
    assert_eq!((ports[0], ports[4]), (ports[1], ports[5]), "it is kept while it serves");
    assert_eq!(ports.iter().collect::<HashSet<_>>().len(), 4);
}

#[test]
fn turns_stay_on_one_connection_and_so_with_one_gateway() {
    let gateway = Gateway::new();
    let gateway = (1..=4)
        .fold(gateway, |gateway, turn| gateway.on(&format!("turns/{turn}"), [committed(turn, "result")]));
    let mut run = gateway.builder().heartbeat(true).attach().unwrap();
    for (beats, turns) in [(1, 1..=2), (2, 3..=4)] {
        within(Duration::from_secs(10), || gateway.bodies("heartbeat").len() >= beats);
        for turn in turns {
            run.commit(Commit::new(turn)).unwrap();
        }
    }
    let script = gateway.script.lock().unwrap();
    let ports = |beats| -> HashSet<u16> {
        let seen = script.seen.iter().zip(&script.ports);
        seen.filter(|((path, ..), _)| (path == "heartbeat") == beats).map(|(_, port)| *port).collect()
    };
    assert_eq!((ports(true).len(), ports(false).len()), (1, 1));
    assert!(ports(true).is_disjoint(&ports(false)));
}
