use std::io::Write;
use std::sync::Mutex;

use axum::http::{Request, Response};
use dalsegno_model::{Deadlines, NewRun, OnPrior, Operator as _};
use dalsegno_proof::{Anchors, check_store_and_anchors};
use dalsegno_store::sqlite::Sqlite;
use kube::client::Body;
use kube::{Api, Client};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use uuid::Uuid;

use super::*;
use crate::mutex::lock;

/// A stream that can be read, and that can be broken.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<(Vec<u8>, bool)>>);

impl Log {
    fn text(&self) -> String {
        String::from_utf8(lock(&self.0).0.clone()).expect("text")
    }

    fn set_broken(&self, broken: bool) {
        lock(&self.0).1 = broken;
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut log = lock(&self.0);
        if log.1 {
            return Err(std::io::ErrorKind::BrokenPipe.into());
        }
        log.0.extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

async fn create_runs(store: &Sqlite, runs: usize) {
    for _ in 0..runs {
        let id = Uuid::now_v7();
        let run = NewRun {
            id,
            tenant: "tenant".into(),
            namespace: "shop".into(),
            name: id.to_string(),
            object_uid: id.to_string(),
            reset_generation: 0,
            rewind_generation: 0,
            is_fork: false,
            is_external: false,
            deadlines: Deadlines { heartbeat_ms: 1, start_ms: 1, progress_ms: 1, suspend_ms: 1 },
            on_prior: OnPrior::Hold,
        };
        store.create_run(&run).await.expect("a run");
    }
}

async fn store() -> Arc<Sqlite> {
    Arc::new(Sqlite::memory().await.expect("a store"))
}

fn anchoring(store: &Arc<Sqlite>, sink: AnchorSink) -> Anchoring {
    Anchoring::new(store.clone(), None, sink, Metrics::default())
}

fn to_log(store: &Arc<Sqlite>) -> (Anchoring, Log) {
    let log = Log::default();
    (anchoring(store, AnchorSink::Stream(Box::new(log.clone()))), log)
}

/// The number of runs that a copy with these lines proves, and of problems.
async fn verified(store: &Sqlite, lines: &str) -> (u64, u64) {
    let mut copy = Anchors::default();
    for line in lines.lines() {
        assert_eq!(copy.take("a line", line), None);
    }
    let mut reading = dalsegno_model::Read::begin_read(store).await.expect("a reading");
    let checked = check_store_and_anchors(&mut *reading, &copy, &mut |_| ()).await.expect("it is checked");
    (checked.0.proven, checked.0.problems)
}

#[tokio::test]
async fn a_store_without_changes_is_not_anchored() {
    let store = store().await;
    let (mut anchoring, log) = to_log(&store);
    anchoring.tick().await.expect("it succeeds");
    assert!(anchoring.signer.is_none() && log.text().is_empty(), "nothing was signed");
}

#[tokio::test]
async fn a_tick_writes_one_short_line_whatever_the_number_of_runs() {
    let store = store().await;
    let (mut anchoring, log) = to_log(&store);
    for (runs, ticks) in [(1_000, 1), (0, 1), (1, 2)] {
        create_runs(&store, runs).await;
        anchoring.tick().await.expect("it succeeds");
        let text = log.text();
        let longest = text.lines().map(str::len).max().unwrap_or_default();
        assert!(text.lines().count() == ticks && longest <= AnchorLine::MAX_BYTES, "{runs} runs: {text}");
    }
    let last = log.text().lines().last().expect("a line").to_owned();
    assert_eq!(verified(&store, &last).await, (1_001, 0), "the last line alone proves all runs");
}

#[tokio::test]
async fn a_line_that_the_sink_did_not_get_is_given_to_it_at_the_next_tick() {
    let store = store().await;
    let (mut anchoring, log) = to_log(&store);
    create_runs(&store, 1).await;
    log.set_broken(true);
    anchoring.tick().await.expect_err("the sink is broken");
    log.set_broken(false);
    anchoring.tick().await.expect("it succeeds");
    anchoring.tick().await.expect("it succeeds");
    assert_eq!(log.text().lines().count(), 1, "{}", log.text());
    assert_eq!(verified(&store, &log.text()).await, (1, 0));

    let (mut next_process, log) = to_log(&store);
    next_process.tick().await.expect("it succeeds");
    assert_eq!(verified(&store, &log.text()).await, (1, 0), "a process that begins repeats the last line");
}

#[tokio::test]
async fn the_metric_moves_only_if_the_sink_has_the_anchor() {
    let store = store().await;
    let (mut anchoring, log) = to_log(&store);
    let metrics = anchoring.metrics.clone();
    let until = || {
        let (mut registry, mut text) = (Registry::with_prefix("dalsegno"), String::new());
        metrics.register(&mut registry);
        encode(&mut text, &registry).expect("metrics are text");
        let series = r#"dalsegno_operator_anchored_until_timestamp_seconds{sink="stdout"} "#;
        text.lines().find_map(|line| line.strip_prefix(series)?.parse::<i64>().ok())
    };
    assert_eq!(until(), None, "an operator that does not lead has no series");
    metrics.set_anchored_until("stdout", Timestamp::UNIX_EPOCH);
    create_runs(&store, 1).await;
    log.set_broken(true);
    anchoring.tick().await.expect_err("the sink is broken");
    assert_eq!(until(), Some(0));
    log.set_broken(false);
    anchoring.tick().await.expect("it succeeds");
    assert!(until() > Some(Timestamp::now().as_second() - 60));
}

#[tokio::test]
async fn a_file_gets_each_line_behind_one_that_was_written_in_part() {
    let (store, dir) = (store().await, tempfile::tempdir().expect("a folder"));
    let path = dir.path().join("anchors.jsonl");
    std::fs::write(&path, "{\"anch").expect("it is written");
    let mut anchoring = anchoring(&store, AnchorSink::File(path.clone()));
    for _ in 0..2 {
        create_runs(&store, 1).await;
        anchoring.tick().await.expect("it succeeds");
    }
    let text = std::fs::read_to_string(&path).expect("it is read");
    assert_eq!((text.lines().count(), text.ends_with('\n')), (3, true), "{text}");
    assert_eq!(verified(&store, &text).await, (2, 0));
}

/// An API server with one ConfigMap. It refuses a replacement of another version.
async fn config_map_server(config_map: Arc<Mutex<Value>>, request: Request<Body>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let body: Value =
        serde_json::from_slice(&body.collect_bytes().await.expect("a body")).unwrap_or_default();
    let mut stored = lock(&config_map);
    let status =
        |code, reason| json!({ "kind": "Status", "status": "Failure", "reason": reason, "code": code });
    let (code, response) = match head.method.as_str() {
        "GET" if stored.is_null() => (404, status(404, "NotFound")),
        "PUT" if body["metadata"]["resourceVersion"] != stored["metadata"]["resourceVersion"] => {
            (409, status(409, "Conflict"))
        }
        "GET" => (200, stored.clone()),
        "POST" | "PUT" => {
            let version = stored["metadata"]["resourceVersion"].as_str().map_or(0, str::len);
            *stored = body;
            stored["metadata"]["resourceVersion"] = "v".repeat(version + 1).into();
            (200, stored.clone())
        }
        method => panic!("{method}"),
    };
    Response::builder().status(code).body(Body::from(response.to_string().into_bytes())).expect("a response")
}

fn config_map_sink(config_map: &Arc<Mutex<Value>>) -> AnchorSink {
    let config_map = config_map.clone();
    let service = tower::service_fn(move |request| {
        let response = config_map_server(config_map.clone(), request);
        async { Ok::<_, std::convert::Infallible>(response.await) }
    });
    let client = Client::new(service, "dalsegno-system");
    AnchorSink::ConfigMap(Box::new(Api::namespaced(client, "dalsegno-system")))
}

#[tokio::test]
async fn a_config_map_keeps_the_last_lines_and_is_not_overwritten_if_the_store_was_changed() {
    let (first, config_map) = (store().await, Arc::new(Mutex::new(Value::Null)));
    let mut anchoring_first = anchoring(&first, config_map_sink(&config_map));
    let lines = || lock(&config_map)["data"]["anchors.jsonl"].as_str().unwrap_or_default().to_owned();
    for number in 1..=62 {
        create_runs(&first, 1).await;
        anchoring_first.tick().await.expect("it succeeds");
        assert_eq!(lines().lines().count(), number.min(60));
    }
    assert_eq!(verified(&first, &lines()).await, (62, 0));
    let mut next_process = anchoring(&first, config_map_sink(&config_map));
    next_process.tick().await.expect("it succeeds");
    assert_eq!(lines().lines().count(), 60, "the last line is not repeated");

    // Another store takes the place of the first one.
    let (second, before) = (store().await, lines());
    create_runs(&second, 1).await;
    let mut anchoring_second = anchoring(&second, config_map_sink(&config_map));
    let error = anchoring_second.tick().await.expect_err("the ConfigMap has lines of another store");
    assert!(error.to_string().contains("the store was changed or restored"), "{error:#}");
    assert_eq!(lines(), before);
    assert!(verified(&second, "").await == (1, 0), "the store is anchored all the same");
    *lock(&config_map) = Value::Null;
    anchoring_second.tick().await.expect("it succeeds");
    assert_eq!(verified(&second, &lines()).await, (1, 0));
}
