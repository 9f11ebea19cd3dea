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
use kube::api::ListParams;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::bystanders::{BYSTANDERS, Bystanders, creations, creations_so_far, waits_for_pods};
use crate::figures::{Samples, print_table, times};
use crate::fleet::Fleet;
use crate::pg;
use crate::program::{Program, Role, free_port};
use crate::quiet::{StatementLog, database_for_each, start_logging_server};

/// The environment variable with the number of parked runs.
const RUNS: &str = "DALSEGNO_BENCH_PARKED_RUNS";
/// The environment variable with the time in which nothing may be written, in seconds.
const QUIET: &str = "DALSEGNO_BENCH_PARKED_SECONDS";
/// The runs that are parked or attached at one time.
const AT_ONCE: usize = 16;
/// The time for the runs to park, for their pods to be deleted, for the bystanders' first loss, and for the last
/// statuses to be written: this, and as long as the runs took to start.
const SETTLE: Duration = secs(90);
/// The limit for a look that must find no pod of a parked run.
const LOOK: Duration = secs(10);
/// The time for the three restarts.
const RESTARTS: Duration = secs(90);
/// The limit for every run to go on.
const LIMIT: Duration = secs(600);
/// The id of the wait.
const WAIT: &str = "morning";
/// The aims: what a bystander waits for its next pod while the others wake up is at most this many times what it waits
/// while nothing else happens, at p50, and at most this share of what the slowest of the others waits.
const MOST_TIMES_THE_FLOOR: f64 = 10.0;
const MOST_OF_THE_WAKES: f64 = 0.25;

/// Prints what the parked runs cost and how fast they go on. Fails if one is lost, goes on twice or costs a write, or if
/// the bystanders wait behind them.
pub async fn measure() -> Result {
    let number = |name, default| std::env::var(name).map_or(Ok(default), |text| text.parse::<u32>());
    let (runs, quiet) = (number(RUNS, 1_000)?, secs(number(QUIET, 60)?.into()));
    let mut server = tokio::task::spawn_blocking(start_logging_server).await?;
    let [operator_url, gateway_url] = database_for_each(&server).await?;
    let port = free_port()?;
    let operator = Role { command: "operator", user: "operator", database: &operator_url, gateway: port };
    let gateway = Role { command: "gateway", user: "gateway", database: &gateway_url, gateway: port };
    let mut programs = [Program::start(&gateway).await?, Program::start(&operator).await?];

    let mut fleet = Fleet::new("parked").await?;
    let bystanders = Bystanders::start(&mut fleet).await?;
    let began = Instant::now();
    fleet.start((0..runs).map(|i| format!("parked-{i}"))).await?;
    let settle = SETTLE + began.elapsed();
    let quiet_from = Timestamp::now() + settle;
    let wake = quiet_from + quiet + RESTARTS;
    park(
        &fleet.workers,
        Park { turn: 1, id: WAIT, wait: json!({ "kind": "until", "time": wake.to_string() }) },
    )
    .await?;
    no_pods(&fleet, BYSTANDERS, settle).await?;
    let (bystanders, floor) = bystanders.recover(&fleet).await?;
    anyhow::ensure!(Timestamp::now() < quiet_from, "the runs did not park in time");
    sleep_until(quiet_from).await;

    let (audit, log) = (AuditLog::from_now(&fleet.namespace)?, StatementLog::from_now(&operator_url)?);
    sleep(quiet).await;
    let api_writes = audit.entries()?.into_iter().filter(|entry| entry.user == "operator").count();
    let (reads, writes) = log.statements("operator")?;
    no_pods(&fleet, BYSTANDERS, LOOK).await?;
    print_table(
        &format!("{runs} parked runs for {} s, PostgreSQL", quiet.as_secs()),
        ["pods", "API writes of the operator", "its SQL reads", "its SQL writes"],
        &[[0, api_writes, reads, writes.len()].map(|count| count.to_string())],
    );
    anyhow::ensure!(api_writes == 0, "the operator wrote to the API server");
    anyhow::ensure!(writes.is_empty(), "the operator wrote to the store: {writes:#?}");

    for (program, role) in programs.iter_mut().zip([&gateway, &operator]) {
        *program = Program::restart(program, role).await?;
    }
    server = tokio::task::spawn_blocking(move || crash(server)).await?;
    anyhow::ensure!(Timestamp::now() < wake, "the restarts took longer than {RESTARTS:?}");
    no_pods(&fleet, BYSTANDERS, LOOK).await?;

    sleep_until(wake).await;
    let early = creations_so_far(&audit)?;
    anyhow::ensure!(early.values().all(|at| *at >= wake), "runs went on too early: {early:?}");
    let losses = bystanders.lose_pods(&fleet).await?;
    let created = creations(&audit, runs as usize + BYSTANDERS, LIMIT).await?;
    drop(bystanders);
    go_on(&fleet, runs).await?;
    anyhow::ensure!(creations_so_far(&audit)?.len() == created.len(), "a run went on more than once");
    fleet.end().await?;
    drop(server);
    Wakes { wakes: since(wake, &created), lost: waits_for_pods(&losses, &created)?, floor }.check(runs)
}

/// How long the runs and the bystanders waited for their next pods.
struct Wakes {
    wakes: Samples,
    lost: Samples,
    /// The bystanders while nothing else happened.
    floor: Samples,
}

impl Wakes {
    fn check(&self, runs: u32) -> Result {
        let Self { wakes, lost, floor } = self;
        let row = |what: &str, samples: &Samples, ratio: String| {
            let [p50, p99, slowest] =
                [0.5, 0.99, 1.0].map(|share| format!("{:.2} s", samples.quantile(share).as_secs_f64()));
            [what.to_owned(), p50, p99, slowest, ratio]
        };
        let over_floor = lost.over(floor, 0.5);
        print_table(
            &format!(
                "{runs} runs wake up in one second, and {BYSTANDERS} others lose their pods: until the next pod"
            ),
            ["what", "p50", "p99", "slowest", "p50 ÷ floor"],
            &[
                row("loses its pod while nothing else happens: the floor", floor, times(1.0)),
                row("loses its pod in that second", lost, times(over_floor)),
                row("wakes up", wakes, String::new()),
            ],
        );
        let of_wakes = lost.over(wakes, 1.0);
        anyhow::ensure!(
            over_floor <= MOST_TIMES_THE_FLOOR,
            "recoveries wait {} their floor",
            times(over_floor)
        );
        anyhow::ensure!(
            of_wakes <= MOST_OF_THE_WAKES,
            "recoveries wait behind the wakes: {}",
            times(of_wakes)
        );
        Ok(())
    }
}

/// From a time to the creation of each pod of a run that was parked.
fn since(wake: Timestamp, created: &BTreeMap<String, Timestamp>) -> Samples {
    let mut samples = Samples::default();
    for (_, at) in created.iter().filter(|(pod, _)| pod.starts_with("parked-")) {
        samples.push(Duration::try_from(at.duration_since(wake)).unwrap_or_default());
    }
    samples
}

/// How a worker parks.
#[derive(Clone)]
pub struct Park {
    /// The turn that it commits before.
    pub turn: u32,
    /// The id of the wait.
    pub id: &'static str,
    /// The wait.
    pub wait: Value,
}

/// Each worker commits a turn, opens a wait and parks. Returns the answers to the waits.
pub async fn park(workers: &[Worker], park: Park) -> Result<Vec<Value>> {
    stream::iter(workers.to_vec())
        .map(|worker| {
            let Park { turn, id, wait } = park.clone();
            async move {
                let commit = json!({ "commitId": Uuid::new_v4(), "state": { "turn": turn } });
                accepted(&worker, &format!("turns/{turn}"), commit).await?;
                let opened = accepted(&worker, &format!("waits/{id}"), wait).await?;
                accepted(&worker, "park", json!({ "parkId": Uuid::new_v4(), "on": [id] })).await?;
                Ok(opened)
            }
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

/// Sends a POST that must be accepted.
pub async fn accepted(worker: &Worker, path: &str, body: Value) -> Result<Value> {
    let answer = worker.post(path, body).await?;
    anyhow::ensure!(answer.status == 200, "{path} was refused: {answer:?}");
    answer.json()
}

/// Waits until at most this number of pods is left.
pub async fn no_pods(fleet: &Fleet, others: usize, limit: Duration) -> Result {
    let pods = fleet.pods();
    let what = format!("the pods of the parked runs of {} to be gone", fleet.namespace);
    eventually(what, limit, async || {
        let left = pods.list_metadata(&ListParams::default()).await?.items.len();
        Ok((left <= others).then_some(()))
    })
    .await
}

fn crash(mut server: pg::Server) -> pg::Server {
    server.crash();
    server
}

/// Sleeps until this time.
pub async fn sleep_until(time: Timestamp) {
    sleep(Duration::try_from(time.duration_since(Timestamp::now())).unwrap_or_default()).await;
}

/// The next worker of each run attaches, reads that the time has passed, and ends the run.
async fn go_on(fleet: &Fleet, runs: u32) -> Result {
    stream::iter(0..runs)
        .map(|i| async move {
            let worker = fleet.worker(&format!("parked-{i}-2")).await?;
            attach_after(&worker, WAIT).await?;
            finish(&worker, 2).await
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

/// The worker attaches, and reads that the time of this wait has come.
pub async fn attach_after(worker: &Worker, id: &str) -> Result {
    let attached = serde_json::to_value(worker.attach_when_ready().await?)?;
    let waits = attached["waits"].as_array().context("an attach without waits")?;
    let is_elapsed = |wait: &Value| {
        wait["id"] == id && wait["state"] == "answered" && wait["answer"]["outcome"] == "elapsed"
    };
    anyhow::ensure!(waits.iter().filter(|wait| is_elapsed(wait)).count() == 1, "unexpected waits: {waits:?}");
    Ok(())
}

/// The worker commits the last turn.
pub async fn finish(worker: &Worker, turn: u32) -> Result {
    let finish = json!({ "commitId": Uuid::new_v4(), "state": { "turn": turn },
                         "outcome": { "finish": { "outcome": "succeeded" } } });
    accepted(worker, &format!("turns/{turn}"), finish).await.map(drop)
}
