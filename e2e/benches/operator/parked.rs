//! A thousand parked runs, all waiting for the same second. While they wait, they have no pod and cost the operator no
//! write, and operator, gateway and PostgreSQL are each restarted. When the second comes, each run goes on once, and
//! runs that lose their pods in that second do not wait behind them.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use dalsegno_e2e::wait::{eventually, secs};
use dalsegno_e2e::{AuditLog, Result, Worker};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use kube::api::{DeleteParams, ListParams};
use serde_json::json;
use tokio::time::sleep;
use uuid::Uuid;

use crate::figures::{Samples, print_table};
use crate::fleet::Fleet;
use crate::pg;
use crate::program::{Program, Role, free_port};
use crate::quiet::{StatementLog, database_for_each, start_logging_server};

/// The environment variable with the number of parked runs.
const RUNS: &str = "DALSEGNO_BENCH_PARKED_RUNS";
/// The environment variable with the time in which nothing may be written, in seconds.
const QUIET: &str = "DALSEGNO_BENCH_PARKED_SECONDS";
/// The runs that have a worker all the time, and lose it when the others wake up.
const BYSTANDERS: usize = 20;
/// The runs that are started, parked or attached at one time.
const AT_ONCE: usize = 16;
/// The time for all runs to park, for their pods to be deleted, and for the last statuses to be written.
const SETTLE: Duration = secs(120);
/// The time for the three restarts.
const RESTARTS: Duration = secs(90);
/// The limit for every run to go on.
const LIMIT: Duration = secs(300);
/// The id of the wait.
const WAIT: &str = "morning";

/// Prints what the parked runs cost and how fast they go on, and fails if one is lost, goes on twice, or costs a write.
pub async fn measure() -> Result {
    let number = |name, default| std::env::var(name).map_or(Ok(default), |text| text.parse::<usize>());
    let (runs, quiet) = (number(RUNS, 1_000)?, secs(number(QUIET, 60)? as u64));
    let mut server = tokio::task::spawn_blocking(start_logging_server).await?;
    let [operator_url, gateway_url] = database_for_each(&server).await?;
    let port = free_port()?;
    let operator = Role { command: "operator", user: "operator", database: &operator_url, gateway: port };
    let gateway = Role { command: "gateway", user: "gateway", database: &gateway_url, gateway: port };
    let mut programs = [Program::start(&gateway).await?, Program::start(&operator).await?];

    let mut fleet = Fleet::new("parked").await?;
    fleet.start((0..BYSTANDERS).map(|i| format!("bystander-{i}"))).await?;
    let bystanders = std::mem::take(&mut fleet.workers);
    fleet.start((0..runs).map(|i| format!("parked-{i}"))).await?;
    let keep_alive = tokio::spawn(send_heartbeats(bystanders));
    let wake = Timestamp::now() + SETTLE + quiet + RESTARTS;
    park(&fleet.workers, wake).await?;
    no_pods(&fleet, runs).await?;
    sleep_until(wake - RESTARTS - quiet).await;

    let (audit, log) = (AuditLog::from_now(&fleet.namespace)?, StatementLog::from_now(&operator_url)?);
    sleep(quiet).await;
    let api_writes = audit.entries()?.into_iter().filter(|entry| entry.user == "operator").count();
    let (reads, writes) = log.statements("operator")?;
    no_pods(&fleet, runs).await?;

    for (program, role) in programs.iter_mut().zip([&gateway, &operator]) {
        *program = Program::restart(program, role).await?;
    }
    server = tokio::task::spawn_blocking(move || crash(server)).await?;
    anyhow::ensure!(Timestamp::now() < wake, "the restarts took longer than {RESTARTS:?}");
    no_pods(&fleet, runs).await?;

    sleep_until(wake).await;
    let pods = fleet.pods();
    for i in 0..BYSTANDERS {
        pods.delete(&format!("bystander-{i}-1"), &DeleteParams::default().grace_period(0)).await?;
    }
    let lost = Timestamp::now();
    let created = creations(&audit, runs).await?;
    keep_alive.abort();
    go_on(&fleet, runs).await?;

    let since = |from: Timestamp, prefix: &str| {
        let mut samples = Samples::default();
        created
            .iter()
            .filter(|(name, _)| name.starts_with(prefix))
            .for_each(|(_, at)| samples.push(at.duration_since(from).unsigned_abs()));
        [0.5, 0.99, 1.0].map(|share| format!("{:.1} s", samples.quantile(share).as_secs_f64()))
    };
    print_table(
        &format!("{runs} parked runs for {} s, PostgreSQL", quiet.as_secs()),
        ["pods", "API writes of the operator", "its SQL reads", "its SQL writes"],
        &[[0, api_writes, reads, writes.len()].map(|count| count.to_string())],
    );
    let row = |what: &str, [p50, p99, slowest]: [String; 3]| [what.to_owned(), p50, p99, slowest];
    print_table(
        &format!(
            "{runs} runs wake up in one second, and {BYSTANDERS} others lose their pods: until the next pod"
        ),
        ["what", "p50", "p99", "slowest"],
        &[row("wakes up", since(wake, "parked-")), row("lost its pod", since(lost, "bystander-"))],
    );
    fleet.end().await?;
    drop(server);
    anyhow::ensure!(api_writes == 0, "the operator wrote to the API server");
    anyhow::ensure!(writes.is_empty(), "the operator wrote to the store: {writes:#?}");
    Ok(())
}

/// Heartbeats of workers that have no other work.
async fn send_heartbeats(workers: Vec<Worker>) {
    loop {
        // A restart of the gateway or of the store loses some of them.
        futures::future::join_all(workers.iter().map(Worker::heartbeat)).await;
        sleep(secs(5)).await;
    }
}

/// Each worker commits a turn, waits for this time and parks.
async fn park(workers: &[Worker], wake: Timestamp) -> Result {
    stream::iter(workers.to_vec())
        .map(|worker| async move {
            let calls = [
                ("turns/1".to_owned(), json!({ "commitId": Uuid::new_v4(), "state": { "turn": 1 } })),
                (format!("waits/{WAIT}"), json!({ "kind": "until", "time": wake.to_string() })),
                ("park".to_owned(), json!({ "parkId": Uuid::new_v4(), "on": [WAIT] })),
            ];
            for (path, body) in calls {
                let answer = worker.post(&path, body).await?;
                anyhow::ensure!(answer.status == 200, "{path} was refused: {answer:?}");
            }
            Ok(())
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

/// Waits until only the bystanders have pods.
async fn no_pods(fleet: &Fleet, runs: usize) -> Result {
    let pods = fleet.pods();
    eventually(format!("the pods of {runs} parked runs to be gone"), SETTLE, async || {
        let left = pods.list_metadata(&ListParams::default()).await?.items.len();
        Ok((left <= BYSTANDERS).then_some(()))
    })
    .await
}

fn crash(mut server: pg::Server) -> pg::Server {
    server.crash();
    server
}

async fn sleep_until(time: Timestamp) {
    sleep(Duration::try_from(time.duration_since(Timestamp::now())).unwrap_or_default()).await;
}

/// Waits until each run has its second pod. Returns when each pod was created.
async fn creations(audit: &AuditLog, runs: usize) -> Result<BTreeMap<String, Timestamp>> {
    eventually(format!("the second pods of {} runs", runs + BYSTANDERS), LIMIT, async || {
        let mut entries = audit.entries()?;
        entries.retain(|entry| entry.verb == "create" && entry.is_pod() && entry.succeeded());
        let created: BTreeMap<_, _> = entries.into_iter().map(|entry| (entry.name, entry.at)).collect();
        Ok((created.len() >= runs + BYSTANDERS).then_some(created))
    })
    .await
}

/// The next worker of each run attaches, reads that the time has passed, and ends the run.
async fn go_on(fleet: &Fleet, runs: usize) -> Result {
    stream::iter(0..runs)
        .map(|i| async move {
            let worker = fleet.worker(&format!("parked-{i}-2")).await?;
            let attached = serde_json::to_value(worker.attach_when_ready().await?)?;
            let waits = attached["waits"].as_array().context("an attach without waits")?;
            let is_elapsed = |wait: &serde_json::Value| {
                wait["id"] == WAIT && wait["state"] == "answered" && wait["answer"]["outcome"] == "elapsed"
            };
            anyhow::ensure!(waits.len() == 1 && is_elapsed(&waits[0]), "unexpected waits: {waits:?}");
            let finish = json!({ "commitId": Uuid::new_v4(), "state": { "turn": 2 },
                                 "outcome": { "finish": { "outcome": "succeeded" } } });
            let answer = worker.post("turns/2", finish).await?;
            anyhow::ensure!(answer.status == 200, "turn 2 was refused: {answer:?}");
            Ok(())
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}
