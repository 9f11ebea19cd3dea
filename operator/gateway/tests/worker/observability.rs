//! Metrics and logs: no run in a label, no secret in a line.

use std::io::Write;
use std::str::FromStr as _;
use std::sync::{Mutex, Once};

use dalsegno_model::Read as _;
use dalsegno_store::{migrate, open_beside};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Executor as _};
use tempfile::TempDir;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use uuid::Uuid;

use crate::context::*;
use crate::faulty_store::Fault;
use crate::forged;

const METRICS: &str = include_str!("../../../../docs/reference/metrics.md");
const SOURCE: &str = include_str!("../../src/metrics.rs");

/// The log of all gateways in this process.
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

/// Captures the log of this process at all levels. Call it before the first gateway is created.
pub fn capture_log() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let all = Targets::new().with_default(LevelFilter::DEBUG).with_target("dalsegno", LevelFilter::TRACE);
        let layer = tracing_subscriber::fmt::layer().json().with_writer(|| Log).with_filter(all);
        tracing_subscriber::registry().with(layer).init();
    });
}

fn logged() -> String {
    String::from_utf8(LOG.lock().unwrap().clone()).unwrap()
}

/// The text of `/metrics`.
fn metrics(ctx: &TestContext) -> String {
    let mut registry = Registry::with_prefix("dalsegno");
    ctx.gateway.register(&mut registry);
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    text
}

/// Name, type and labels of every metric in the exported text.
fn registered(text: &str) -> Vec<(String, String, Vec<String>)> {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let mut found: Vec<_> = types
        .map(|(name, kind)| {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            let labels = line.split_once('{').map_or("", |(_, labels)| labels);
            let labels = labels.split(',').filter_map(|it| it.split_once("=\"").map(|(label, _)| label));
            let labels = labels.filter(|label| *label != "le").map(str::to_owned).collect();
            let total = if kind == "counter" { "_total" } else { "" };
            (format!("{name}{total}"), kind.to_owned(), labels)
        })
        .collect();
    found.sort();
    found
}

/// The same, from a section of docs/reference/metrics.md.
fn documented(title: &str) -> Vec<(String, String, Vec<String>)> {
    let (_, section) = METRICS.split_once(&format!("\n## {title}\n")).unwrap();
    let rows = section.split("\n## ").next().unwrap().lines().filter(|line| line.starts_with("| `"));
    let mut found: Vec<_> = rows
        .map(|row| {
            let cells: Vec<_> = row.trim_matches('|').split('|').map(|it| it.replace('`', "")).collect();
            let labels = cells[2].split(',').map(str::trim).filter(|it| !it.is_empty()).map(str::to_owned);
            (cells[0].trim().to_owned(), cells[1].trim().to_owned(), labels.collect())
        })
        .collect();
    found.sort();
    found
}

#[tokio::test]
async fn the_documented_metrics_match_the_registered_ones() {
    let ctx = TestContext::attached().await;
    ctx.post("turns/1", commit(1, "1")).await.ok();
    ctx.store.set(Fault::Fails);
    ctx.post("turns/2", commit(2, "1")).await;
    let registered = registered(&metrics(&ctx));
    // A labelled metric that has not counted yet is not exported, so the calls above must touch every metric.
    assert_eq!(registered.len(), SOURCE.matches("registry.register").count(), "{registered:#?}");
    assert_eq!(documented("Gateway"), registered);
}

#[tokio::test]
async fn every_kind_of_store_failure_is_exported_from_0() {
    let text = metrics(&TestContext::new().await);
    for failure in ["unavailable", "timeout", "corrupt", "rejected", "unusable"] {
        let line = format!("dalsegno_gateway_store_failures_total{{failure=\"{failure}\"}} 0\n");
        assert!(text.contains(&line), "{line}\n{text}");
    }
}

#[tokio::test]
async fn calls_are_counted_by_kind_and_code_and_never_by_run() {
    let ctx = TestContext::attached().await;
    ctx.post("turns/1", commit(1, "1")).await.ok();
    ctx.post("turns/1", commit(1, "1")).await.ok();
    ctx.post("turns/9", commit(2, "1")).await;
    ctx.post("nothing", "").await;
    let text = metrics(&ctx);
    for line in [
        r#"dalsegno_gateway_requests_total{call="attach",code="OK"} 1"#,
        r#"dalsegno_gateway_requests_total{call="turn",code="OK"} 2"#,
        r#"dalsegno_gateway_requests_total{call="turn",code="CONFLICT"} 1"#,
        r#"dalsegno_gateway_requests_total{call="unknown",code="NOT_FOUND"} 1"#,
        r#"dalsegno_gateway_commit_seconds_count{outcome="ok"} 1"#,
        r#"dalsegno_gateway_commit_seconds_count{outcome="duplicate"} 1"#,
        r#"dalsegno_gateway_commit_bytes_sum{outcome="conflict"} 61.0"#,
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    assert!(!text.contains(&ctx.run.to_string()) && !text.contains("nightly"));
}

#[tokio::test]
async fn the_log_contains_the_run_and_no_token_instance_key_or_payload() {
    let ctx = TestContext::new().await;
    ctx.attach("pod-1", INSTANCE).await.ok();
    ctx.attach("pod-1", SECOND).await;
    ctx.post("turns/1", commit(1, r#"{"word":"secret-payload"}"#)).await.ok();
    ctx.post("turns/1", commit(1, r#"{"word":"secret-payload",}"#)).await;
    ctx.post("turns/1", r#"{"commitId":"secret-payload"}"#).await;
    let claim = json!({ "claimId": Uuid::nil(), "policy": "ask", "key": "secret-key" }).to_string();
    ctx.post("calls/pay/claim", claim.clone()).await.ok();
    ctx.store.set(Fault::Fails);
    ctx.post("calls/pay/claim", claim).await;
    ctx.post("turns/2", commit(2, r#""secret-payload""#)).await;

    let text = logged();
    for secret in [INSTANCE, SECOND, "token-of", "secret"] {
        assert!(!text.contains(secret), "{secret}\n{text}");
    }
    let run = ctx.run.to_string();
    let of_this_run: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|line: &Value| line["span"]["run"] == run.as_str())
        .collect();
    let count = |message| of_this_run.iter().filter(|line| line["fields"]["message"] == message).count();
    assert_eq!(
        (count("answered"), count("refused"), count("the store call failed")),
        (3, 5, 2),
        "{of_this_run:#?}"
    );
}

/// A word in every field whose content a worker can choose.
const CANARY: &str = "canary-7c1e";

/// Makes calls of all kinds, with the canary in every field.
async fn send_canaries(ctx: &TestContext) -> Vec<Answer> {
    let id = |n: u128| Uuid::from_u128(n);
    let all = |n: u128| {
        json!({ "commitId": id(n), "state": { CANARY: CANARY }, "events": [{ "text": CANARY }],
                "trigger": CANARY })
    };
    let record = json!({ "put": { "space": CANARY, "key": CANARY, "value": { "json": CANARY } } });
    let calls: [(&str, Value); 20] = [
        ("records", json!({ "batchId": id(8), "operations": [record] })),
        ("records", json!({ "batchId": CANARY, "operations": [{ CANARY: CANARY }] })),
        ("turns/1", all(1)),
        ("turns/1", all(1)),
        ("turns/1", all(2)),
        ("turns/9", all(3)),
        (
            "turns/2/plan",
            json!({ "commitId": id(4), "channels": { "set": { CANARY: { "json": CANARY } } },
            "calls": [{ "id": CANARY, "policy": "ask", "key": CANARY, "arguments": CANARY }] }),
        ),
        ("turns/2/plan", json!({ "commitId": id(4), CANARY: CANARY })),
        ("turns/2/plan", json!({ "commitId": CANARY })),
        ("turns/2/plan", json!({ "commitId": id(4), "trigger": format!("{CANARY}\0") })),
        (
            "turns/2/plan",
            json!({ "commitId": id(4), "channels": { "set": { format!("{CANARY} ") : { "json": 1 } } } }),
        ),
        ("turns/canary-7c1e", all(5)),
        ("calls/canary-7c1e/claim", json!({ "claimId": id(6), "policy": "ask" })),
        (
            "calls/canary-7c1e/claim",
            json!({ "claimId": id(6), "policy": "probe", "key": "other", "arguments": CANARY }),
        ),
        ("calls/canary-7c1e/complete", json!({ "claimId": id(6), "outcome": "completed", "result": CANARY })),
        (
            "calls/canary-7c1e/complete",
            json!({ "claimId": id(6), "outcome": "completed", "result": [CANARY] }),
        ),
        ("calls/canary-7c1e/settle", json!({ "outcome": "failed", "reason": CANARY, "result": CANARY })),
        ("park", json!({ "parkId": CANARY })),
        ("park", json!({ "parkId": id(9), CANARY: CANARY })),
        (
            "finish",
            json!({ "commitId": id(1), "finish": { "outcome": "failed", "reason": "No", "message": CANARY,
            "output": CANARY } }),
        ),
    ];
    let mut answers = Vec::new();
    for (path, body) in &calls {
        answers.push(ctx.post(path, body.to_string()).await);
    }
    answers.push(ctx.post("turns/2", format!(r#"{{"state":"{CANARY}""#)).await);
    answers.push(ctx.post_as(CANARY, "turns/2", all(7).to_string()).await);
    let instance = json!({ "instance": CANARY }).to_string();
    answers.push(ctx.post_as(&format!("token-of-{CANARY}"), "attach", instance).await);
    for path in [
        &format!("state?turn={CANARY}"),
        "records?space=canary-7c1e",
        "events?from=canary-7c1e",
        "memory-delta?canary-7c1e",
        "export",
        &format!("{CANARY}/{CANARY}"),
    ] {
        answers.push(ctx.get(path).await);
    }
    answers
}

/// Asserts that neither log nor metrics contain the canary, as text or as the hex that a database prints.
fn assert_no_canary(ctx: &TestContext) {
    let log = logged();
    assert!(log.contains(&ctx.run.to_string()), "the log is captured");
    for (what, text) in [("log", &log), ("metrics", &metrics(ctx))] {
        let hits: Vec<_> = text.lines().filter(|line| contains_canary(line)).collect();
        assert!(hits.is_empty(), "{what}: {hits:#?}");
    }
}

fn contains_canary(text: &str) -> bool {
    let bytes: String = CANARY.bytes().map(|byte| format!("{byte:02x}")).collect();
    text.contains(CANARY) || text.contains(&bytes)
}

#[tokio::test]
async fn no_log_or_metric_contains_what_a_worker_sends() {
    let ctx = TestContext::attached().await;
    let with_short_timeouts = ctx.second_gateway(short_timeouts());
    for (at, fault) in [(&ctx, Fault::None), (&ctx, Fault::Fails), (&with_short_timeouts, Fault::Hangs)] {
        ctx.store.set(fault);
        send_canaries(at).await;
    }
    ctx.store.set(Fault::None);
    let state = ctx.store.state(ctx.run, None).await.unwrap();
    assert!(format!("{state:?}").contains(CANARY), "the canary was stored");
    assert_no_canary(&ctx);
    assert_no_canary(&with_short_timeouts);
}

/// A run in a database that the test can edit; its worker has attached.
struct EditableRun {
    ctx: TestContext,
    url: String,
    _folder: TempDir,
}

impl EditableRun {
    async fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}", folder.path().join("runs.db").display());
        migrate(&url).await.unwrap();
        Self::at(url, folder).await
    }

    async fn postgres() -> Self {
        Self::at(crate::pg::database().await, tempfile::tempdir().unwrap()).await
    }

    async fn at(url: String, folder: TempDir) -> Self {
        let store = open_beside(&url, None).await.unwrap();
        let ctx = TestContext::with_store(store, test_config()).await;
        ctx.record_pod(1, "pod-1", Some(accepted())).await;
        ctx.attach("pod-1", INSTANCE).await.ok();
        Self { ctx, url, _folder: folder }
    }

    fn is_postgres(&self) -> bool {
        self.url.starts_with("postgres")
    }

    /// Runs a statement without logging it, because it contains the canary.
    async fn execute(&self, sql: &str) {
        let sql = AssertSqlSafe(sql.to_owned());
        if self.is_postgres() {
            let options = PgConnectOptions::from_str(&self.url).unwrap().disable_statement_logging();
            options.connect().await.unwrap().execute(sql).await.unwrap();
        } else {
            let options = SqliteConnectOptions::from_str(&self.url).unwrap().disable_statement_logging();
            options.connect().await.unwrap().execute(sql).await.unwrap();
        }
    }
}

/// Tables with a column that holds a worker's text.
const WRITTEN: [(&str, &str); 3] = [("boundaries", "trigger_word"), ("calls", "key"), ("records", "key")];

/// Makes the database refuse a worker's rows with an error that quotes the row.
async fn assert_refusals_are_not_quoted(editable: &EditableRun, how: &str) {
    let ctx = &editable.ctx;
    for (table, column) in WRITTEN {
        editable.execute(&how.replace("{table}", table).replace("{column}", column)).await;
    }
    let refused: Vec<_> =
        send_canaries(ctx).await.into_iter().filter(|answer| answer.status >= 500).collect();
    assert!(refused.len() >= 3, "{how}: {refused:#?}");
    assert!(!refused.iter().any(|answer| contains_canary(&answer.text)), "{how}: {refused:#?}");
    assert_no_canary(ctx);
}

#[tokio::test]
async fn error_details_of_sqlite_are_in_no_log_metric_or_answer() {
    let trigger = "CREATE TRIGGER refuse_{table} BEFORE INSERT ON {table} \
         BEGIN SELECT RAISE(ABORT, 'refused: ' || NEW.{column}); END";
    assert_refusals_are_not_quoted(&EditableRun::sqlite().await, trigger).await;
}

#[tokio::test]
async fn error_details_of_postgresql_are_in_no_log_metric_or_answer() {
    let check = "ALTER TABLE {table} ADD CONSTRAINT refuse CHECK ({column} <> {column}) NOT VALID";
    assert_refusals_are_not_quoted(&EditableRun::postgres().await, check).await;
    let editable = EditableRun::postgres().await;
    let function = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN RAISE EXCEPTION 'refused: %', NEW; END $$";
    editable.execute(function).await;
    let trigger = "CREATE TRIGGER refuse BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION refuse()";
    assert_refusals_are_not_quoted(&editable, trigger).await;
}

/// Replaces a worker's data by data that decodes but has the wrong form, and reads it.
async fn assert_damage_is_not_quoted(editable: &EditableRun) {
    let ctx = &editable.ctx;
    let channels = json!({ "set": { "a": { "json": 1 } } });
    let first = json!({ "commitId": Uuid::from_u128(1), "channels": channels });
    ctx.post("turns/1", first.to_string()).await.ok();
    let call = json!({ "id": "pay", "policy": "ask", "key": "k", "arguments": 1 });
    let put = json!({ "put": { "space": "s", "key": "k", "value": { "json": 1 } } });
    let plan = json!({ "commitId": Uuid::from_u128(2), "events": [1], "records": [put],
                       "calls": [call] });
    ctx.post("turns/2/plan", plan.to_string()).await.ok();

    let boundary = ctx.store.boundaries(ctx.run, 1, 1).await.unwrap().remove(0);
    let text = json!({ "a": { CANARY: 1 } }).to_string();
    for sql in forged::snapshot(ctx.run, &boundary, &text, editable.is_postgres()) {
        editable.execute(&sql).await;
    }
    ctx.get("state").await.ok();
    let message = "a snapshot was not used";
    let of_this_run =
        |line: &Value| line["fields"]["message"] == message && line["span"]["run"] == ctx.run.to_string();
    assert!(logged().lines().any(|line| of_this_run(&serde_json::from_str(line).unwrap())));

    let bytes = |text: &str| {
        let hex: String = format!("\0{text}").bytes().map(|byte| format!("{byte:02x}")).collect();
        if editable.is_postgres() { format!("'\\x{hex}'") } else { format!("x'{hex}'") }
    };
    let no_payload = json!({ CANARY: 1 }).to_string();
    editable.execute(&format!("UPDATE records SET value = {}", bytes(&no_payload))).await;
    editable.execute(&format!("UPDATE boundaries SET events = {}", bytes(CANARY))).await;
    editable.execute(&format!("UPDATE calls SET arguments = {}", bytes(CANARY))).await;
    let claim = json!({ "claimId": Uuid::from_u128(3), "policy": "ask" }).to_string();
    for answer in
        [ctx.get("records?space=s").await, ctx.get("events").await, ctx.post("calls/pay/claim", claim).await]
    {
        assert_eq!(answer.code(), "CHECKPOINT_CORRUPT", "{answer:?}");
        assert!(!contains_canary(&answer.text), "{answer:?}");
    }
    assert_no_canary(ctx);
}

#[tokio::test]
async fn content_of_damaged_sqlite_rows_is_in_no_log_metric_or_answer() {
    assert_damage_is_not_quoted(&EditableRun::sqlite().await).await;
}

#[tokio::test]
async fn content_of_damaged_postgresql_rows_is_in_no_log_metric_or_answer() {
    assert_damage_is_not_quoted(&EditableRun::postgres().await).await;
}
