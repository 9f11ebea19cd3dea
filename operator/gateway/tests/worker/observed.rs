//! What an administrator sees: counts without names, logs without secrets.

use std::io::Write;
use std::str::FromStr as _;
use std::sync::{Mutex, Once};

use dalsegno_store::{Read as _, migrate, open_beside};
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

use crate::faults::Fault;
use crate::forged;
use crate::world::*;

const METRICS: &str = include_str!("../../../../docs/reference/metrics.md");
const SOURCE: &str = include_str!("../../src/metrics.rs");

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
        let all = Targets::new().with_default(LevelFilter::DEBUG).with_target("dalsegno", LevelFilter::TRACE);
        let layer = tracing_subscriber::fmt::layer().json().with_writer(|| Log).with_filter(all);
        tracing_subscriber::registry().with(layer).init();
    });
}

fn logged() -> String {
    String::from_utf8(LOG.lock().unwrap().clone()).unwrap()
}

/// What `/metrics` would say.
fn metrics(world: &World) -> String {
    let mut registry = Registry::with_prefix("dalsegno");
    world.gateway.register(&mut registry);
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    text
}

/// Name, type and labels of every metric, as the text for Prometheus has them.
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

/// The same, from a section of the page.
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
async fn the_page_of_metrics_names_each_of_them_and_no_other() {
    let world = World::attached().await;
    world.post("turns/1", commit(1, "1")).await.ok();
    world.store.set(Fault::Fails);
    world.post("turns/2", commit(2, "1")).await;
    let registered = registered(&metrics(&world));
    // One that has never counted is not in the text.
    assert_eq!(registered.len(), SOURCE.matches("registry.register").count(), "{registered:#?}");
    assert_eq!(documented("Gateway"), registered);
}

#[tokio::test]
async fn every_failure_of_the_store_is_counted_from_0_on() {
    let text = metrics(&World::new().await);
    for failure in ["unavailable", "timeout", "corrupt", "crowded", "unfit"] {
        let line = format!("dalsegno_gateway_store_failures_total{{failure=\"{failure}\"}} 0\n");
        assert!(text.contains(&line), "{line}\n{text}");
    }
}

#[tokio::test]
async fn calls_are_counted_by_kind_and_code_and_never_by_run() {
    let world = World::attached().await;
    world.post("turns/1", commit(1, "1")).await.ok();
    world.post("turns/1", commit(1, "1")).await.ok();
    world.post("turns/9", commit(2, "1")).await;
    world.post("nothing", "").await;
    let text = metrics(&world);
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

    let text = logged();
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

/// In whatever a worker can choose.
const CANARY: &str = "canary-7c1e";

/// Makes calls of all kinds, each full of the canary.
async fn sing(world: &World) -> Vec<Answer> {
    let id = |n: u128| Uuid::from_u128(n);
    let all = |n: u128| {
        json!({ "commitId": id(n), "state": { CANARY: CANARY }, "events": [{ "said": CANARY }],
                "trigger": CANARY })
    };
    let record = json!({ "put": { "space": CANARY, "key": CANARY, "value": { "json": CANARY } } });
    let calls: [(&str, Value); 18] = [
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
        (
            "finish",
            json!({ "commitId": id(1), "finish": { "outcome": "failed", "reason": "No", "message": CANARY,
            "output": CANARY } }),
        ),
    ];
    let mut answers = Vec::new();
    for (path, body) in &calls {
        answers.push(world.post(path, body.to_string()).await);
    }
    answers.push(world.post("turns/2", format!(r#"{{"state":"{CANARY}""#)).await);
    answers.push(world.post_as(CANARY, "turns/2", all(7).to_string()).await);
    let instance = json!({ "instance": CANARY }).to_string();
    answers.push(world.post_as(&format!("token-of-{CANARY}"), "attach", instance).await);
    for path in [
        &format!("state?turn={CANARY}"),
        "records?space=canary-7c1e",
        "events?from=canary-7c1e",
        "memory-delta?canary-7c1e",
        "export",
        &format!("{CANARY}/{CANARY}"),
    ] {
        answers.push(world.get(path).await);
    }
    answers
}

/// Neither the log nor the metrics have the canary; nor its bytes, as a database shows them.
fn unheard(world: &World) {
    let log = logged();
    assert!(log.contains(&world.run.to_string()), "the log is read");
    for (what, text) in [("log", &log), ("metrics", &metrics(world))] {
        let hits: Vec<_> = text.lines().filter(|line| sings(line)).collect();
        assert!(hits.is_empty(), "{what}: {hits:#?}");
    }
}

fn sings(text: &str) -> bool {
    let bytes: String = CANARY.bytes().map(|byte| format!("{byte:02x}")).collect();
    text.contains(CANARY) || text.contains(&bytes)
}

#[tokio::test]
async fn nothing_that_a_worker_sends_is_in_a_log_or_a_metric_whatever_becomes_of_the_call() {
    let world = World::attached().await;
    let gives_up = world.beside_it(hasty());
    for (at, fault) in [(&world, Fault::None), (&world, Fault::Fails), (&gives_up, Fault::Hangs)] {
        world.store.set(fault);
        sing(at).await;
    }
    world.store.set(Fault::None);
    let state = world.store.state(world.run, None).await.unwrap();
    assert!(format!("{state:?}").contains(CANARY), "the test would miss what was never taken");
    unheard(&world);
    unheard(&gives_up);
}

/// A worker that has attached before a database that others can reach.
struct Reached {
    world: World,
    url: String,
    _folder: TempDir,
}

impl Reached {
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
        let world = World::before(store, quick()).await;
        world.record_pod(1, "pod-1", Some(accepted())).await;
        world.attach("pod-1", INSTANCE).await.ok();
        Self { world, url, _folder: folder }
    }

    fn is_postgres(&self) -> bool {
        self.url.starts_with("postgres")
    }

    /// Runs a statement that is not logged: it has the canary itself.
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

/// Tables that a worker writes to, each with a column of what it says.
const WRITTEN: [(&str, &str); 3] = [("boundaries", "trigger_word"), ("calls", "key"), ("records", "key")];

/// Has the database refuse what a worker writes, by a rule that tells the row.
async fn refuse(reached: &Reached, how: &str) {
    let world = &reached.world;
    for (table, column) in WRITTEN {
        reached.execute(&how.replace("{table}", table).replace("{column}", column)).await;
    }
    let refused: Vec<_> = sing(world).await.into_iter().filter(|answer| answer.status >= 500).collect();
    assert!(refused.len() >= 3, "{how}: {refused:#?}");
    assert!(!refused.iter().any(|answer| sings(&answer.text)), "{how}: {refused:#?}");
    unheard(world);
}

#[tokio::test]
async fn what_sqlite_says_of_a_row_that_it_refuses_is_in_no_log_metric_or_answer() {
    let trigger = "CREATE TRIGGER refuse_{table} BEFORE INSERT ON {table} \
         BEGIN SELECT RAISE(ABORT, 'refused: ' || NEW.{column}); END";
    refuse(&Reached::sqlite().await, trigger).await;
}

#[tokio::test]
async fn what_postgresql_says_of_a_row_that_it_refuses_is_in_no_log_metric_or_answer() {
    let check = "ALTER TABLE {table} ADD CONSTRAINT refuse CHECK ({column} <> {column}) NOT VALID";
    refuse(&Reached::postgres().await, check).await;
    let reached = Reached::postgres().await;
    let tell = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN RAISE EXCEPTION 'refused: %', NEW; END $$";
    reached.execute(tell).await;
    let trigger = "CREATE TRIGGER refuse BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION refuse()";
    refuse(&reached, trigger).await;
}

/// Texts of another shape, whole and well framed, where a worker's were.
async fn damage(reached: &Reached) {
    let world = &reached.world;
    let channels = json!({ "set": { "a": { "json": 1 } } });
    let first = json!({ "commitId": Uuid::from_u128(1), "channels": channels });
    world.post("turns/1", first.to_string()).await.ok();
    let call = json!({ "id": "pay", "policy": "ask", "key": "k", "arguments": 1 });
    let put = json!({ "put": { "space": "s", "key": "k", "value": { "json": 1 } } });
    let plan = json!({ "commitId": Uuid::from_u128(2), "events": [1], "records": [put],
                       "calls": [call] });
    world.post("turns/2/plan", plan.to_string()).await.ok();

    let boundary = world.store.boundaries(world.run, 1, 1).await.unwrap().remove(0);
    let text = json!({ "a": { CANARY: 1 } }).to_string();
    for sql in forged::snapshot(world.run, &boundary, &text, reached.is_postgres()) {
        reached.execute(&sql).await;
    }
    world.get("state").await.ok();
    let said = "a snapshot was not used";
    let of_this_run =
        |line: &Value| line["fields"]["message"] == said && line["span"]["run"] == world.run.to_string();
    assert!(logged().lines().any(|line| of_this_run(&serde_json::from_str(line).unwrap())));

    let bytes = |text: &str| {
        let hex: String = format!("\0{text}").bytes().map(|byte| format!("{byte:02x}")).collect();
        if reached.is_postgres() { format!("'\\x{hex}'") } else { format!("x'{hex}'") }
    };
    let no_payload = json!({ CANARY: 1 }).to_string();
    reached.execute(&format!("UPDATE records SET value = {}", bytes(&no_payload))).await;
    reached.execute(&format!("UPDATE boundaries SET events = {}", bytes(CANARY))).await;
    reached.execute(&format!("UPDATE calls SET arguments = {}", bytes(CANARY))).await;
    let claim = json!({ "claimId": Uuid::from_u128(3), "policy": "ask" }).to_string();
    for answer in [
        world.get("records?space=s").await,
        world.get("events").await,
        world.post("calls/pay/claim", claim).await,
    ] {
        assert_eq!(answer.code(), "CHECKPOINT_CORRUPT", "{answer:?}");
        assert!(!sings(&answer.text), "{answer:?}");
    }
    unheard(world);
}

#[tokio::test]
async fn what_stands_in_damaged_rows_of_sqlite_is_in_no_log_metric_or_answer() {
    damage(&Reached::sqlite().await).await;
}

#[tokio::test]
async fn what_stands_in_damaged_rows_of_postgresql_is_in_no_log_metric_or_answer() {
    damage(&Reached::postgres().await).await;
}
