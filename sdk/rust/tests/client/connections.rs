//! Which connection, and so which gateway, a call goes to.

use std::collections::HashSet;
use std::time::Duration;

use dalsegno_sdk::Commit;
use serde_json::json;

use crate::gateway::{Gateway, committed, problem, wait_until};

#[test]
fn a_call_that_fails_is_retried_on_a_new_connection() {
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
    assert_eq!((ports[0], ports[4]), (ports[1], ports[5]), "the connection is kept while it works");
    assert_eq!(ports.iter().collect::<HashSet<_>>().len(), 4);
}

#[test]
fn turns_stay_on_one_connection_and_heartbeats_on_another() {
    let gateway = Gateway::new();
    let gateway = (1..=4)
        .fold(gateway, |gateway, turn| gateway.on(&format!("turns/{turn}"), [committed(turn, "result")]));
    let mut run = gateway.builder().heartbeat(true).attach().unwrap();
    for (heartbeats, turns) in [(1, 1..=2), (2, 3..=4)] {
        wait_until(Duration::from_secs(10), || gateway.bodies("heartbeat").len() >= heartbeats);
        for turn in turns {
            run.commit(Commit::new(turn)).unwrap();
        }
    }
    let script = gateway.script.lock().unwrap();
    let ports = |of_heartbeats| -> HashSet<u16> {
        let seen = script.requests.iter().zip(&script.ports);
        seen.filter(|((path, ..), _)| (path == "heartbeat") == of_heartbeats).map(|(_, port)| *port).collect()
    };
    assert_eq!((ports(true).len(), ports(false).len()), (1, 1));
    assert!(ports(true).is_disjoint(&ports(false)));
}
