//! What an administrator sees: counts without names, logs without secrets.

use std::io::Write;
use std::sync::{Mutex, Once};

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use uuid::Uuid;

use crate::faults::Fault;
use crate::world::*;

/// What the gateways of all these tests have logged.
static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOG.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Keeps the log of this process, all levels of it; called before the first gateway is made.
pub fn keep_log() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let gateway = Targets::new().with_target("dalsegno_gateway", LevelFilter::TRACE);
        let layer = tracing_subscriber::fmt::layer().json().with_writer(|| Log).with_filter(gateway);
        tracing_subscriber::registry().with(layer).init();
    });
}

#[tokio::test]
async fn calls_are_counted_by_kind_and_code_and_never_by_run() {
    let world = World::attached().await;
    world.post("turns/1", commit(1, "1")).await.ok();
    world.post("turns/1", commit(1, "1")).await.ok();
    world.post("turns/9", commit(2, "1")).await;
    world.post("nothing", "").await;
    let mut registry = Registry::with_prefix("dalsegno");
    world.gateway.register(&mut registry);
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    for line in [
        r#"dalsegno_gateway_requests_total{call="attach",code="OK"} 1"#,
        r#"dalsegno_gateway_requests_total{call="turn",code="OK"} 2"#,
        r#"dalsegno_gateway_requests_total{call="turn",code="CONFLICT"} 1"#,
        r#"dalsegno_gateway_requests_total{call="unknown",code="NOT_FOUND"} 1"#,
        "dalsegno_gateway_commit_seconds_count 1",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    assert!(!text.contains(&world.run.to_string()) && !text.contains("nightly"));
}

#[tokio::test]
async fn the_log_names_the_run_and_holds_no_token_no_instance_no_key_and_no_payload() {
    let world = World::new().await;
    world.attach("pod-1", INSTANCE).await.ok();
    world.attach("pod-1", SECOND).await;
    world.post("turns/1", commit(1, r#"{"word":"secret-payload"}"#)).await.ok();
    world.post("turns/1", commit(1, r#"{"word":"secret-payload",}"#)).await;
    world.post("turns/1", r#"{"commitId":"secret-payload"}"#).await;
    let claim = json!({ "claimId": Uuid::nil(), "policy": "ask", "key": "secret-key" }).to_string();
    world.post("calls/pay/claim", claim.clone()).await.ok();
    world.store.set(Fault::Fails);
    world.post("calls/pay/claim", claim).await;
    world.post("turns/2", commit(2, r#""secret-payload""#)).await;

    let text = String::from_utf8(LOG.lock().unwrap().clone()).unwrap();
    for secret in [INSTANCE, SECOND, "token-of", "secret"] {
        assert!(!text.contains(secret), "{secret}\n{text}");
    }
    let run = world.run.to_string();
    let of_this_run: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|line: &Value| line["span"]["run"] == run.as_str())
        .collect();
    let count = |message| of_this_run.iter().filter(|line| line["fields"]["message"] == message).count();
    assert_eq!(
        (count("answered"), count("refused"), count("the store failed")),
        (3, 5, 2),
        "{of_this_run:#?}"
    );
}
