//! Commands that only read, on a streaming standby of PostgreSQL.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use crate::pg::Server;
use crate::test_context::{RUN, TestContext, create_run};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_that_only_read_work_on_a_standby() {
    let primary = Server::start(&[]);
    let url = primary.database().await;
    let writer = TestContext::at(url.clone());
    create_run(&*writer.migrated_store().await, true).await;
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let standby = primary.standby_at(port);
    let database = url.split_once('?').unwrap().0.rsplit_once('/').unwrap().1;
    let reader = TestContext::at(standby.url(database));

    let bundle = reader.path("bundle.jsonl");
    // The store has no key to sign with yet, and a standby cannot make one.
    let (success, text) = reader.run(&["export", RUN, "--output", &bundle], true);
    assert!(!success && text.contains("standby"), "{text}");
    let (success, text) = writer.run(&["export", RUN, "--output", &writer.path("first.jsonl")], true);
    assert!(success, "{text}");

    for (command, expected) in [
        (&["show", RUN, "--calls", "--turn", "1"][..], "turn 1"),
        (&["verify", RUN], "0 problems"),
        (&["audit", "verify"], "0 problems"),
        (&["export", RUN, "--output", &bundle], "signed by"),
        (&["verify", &bundle], "0 problems"),
    ] {
        let started = Instant::now();
        // What was written last arrives a moment later.
        let (success, text) = loop {
            let (success, text) = reader.run(command, true);
            if success || started.elapsed() > Duration::from_secs(20) {
                break (success, text);
            }
        };
        assert!(success && text.contains(expected), "{command:?}: {text}");
    }
    let (success, text) = reader.run(&["keys", "rewrap"], true);
    assert!(!success && text.contains("standby"), "{text}");
}
