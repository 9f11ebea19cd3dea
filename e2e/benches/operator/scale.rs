//! One operator and one gateway on PostgreSQL with up to 10,000 runs: what a run costs as their number grows, and what
//! happens when a thousand of them need something at the same moment.

use std::time::Duration;

use anyhow::Context;
use dalsegno_e2e::{Result, Worker};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::figures::{print_table, times};
use crate::fleet::Fleet;
use crate::pg;
use crate::program::{Program, Role, free_port};
use crate::storms::{self, Storm};

/// The environment variable with the largest number of runs.
const RUNS: &str = "DALSEGNO_BENCH_SCALE_RUNS";
/// The largest number of runs without [`RUNS`].
const MOST_RUNS: usize = 10_000;
/// The number of runs of the first measurement, and of each storm.
pub const THOUSAND: usize = 1_000;
/// Limit for all starts. When it passes, the largest number is the one that was reached.
const FILL_LIMIT: Duration = Duration::from_secs(1_500);
/// The number of runs that are started between two looks at the limit.
const BATCH: usize = 250;
/// The wait after the last start, for the last statuses and anchors.
const SETTLE: Duration = Duration::from_secs(30);
/// How long the CPU time of a fleet in which nothing happens is measured.
const QUIET: Duration = Duration::from_secs(30);
/// How long the lag of the anchors is watched after every run has moved.
const ANCHOR_WATCH: Duration = Duration::from_secs(60);
/// Commits on their way at one time, while every run moves.
const COMMITS_AT_ONCE: usize = 16;
/// The metric of the anchors. `time()` minus this is their lag.
const ANCHORED_UNTIL: &str = "dalsegno_operator_anchored_until_timestamp_seconds";

/// The two processes, which share nothing but the store and the API server.
pub struct Processes {
    /// The operator.
    pub operator: Option<Program>,
    _gateway: Program,
    database: String,
    port: u16,
}

impl Processes {
    async fn start(database: String) -> Result<Self> {
        let port = free_port()?;
        let role = Role { command: "gateway", user: "gateway", database: &database, gateway: port };
        let gateway = Program::start(&role).await?;
        let mut this = Self { operator: None, _gateway: gateway, database, port };
        this.start_operator().await?;
        Ok(this)
    }

    /// Starts the operator, and waits until it is ready.
    pub async fn start_operator(&mut self) -> Result {
        let role =
            Role { command: "operator", user: "operator", database: &self.database, gateway: self.port };
        self.operator = Some(Program::start(&role).await?);
        Ok(())
    }

    fn operator(&self) -> Result<&Program> {
        self.operator.as_ref().context("the operator is not running")
    }
}

/// What the operator has used at one number of runs.
struct Usage {
    runs: usize,
    memory: u64,
    /// Memory beyond the base, per run.
    memory_per_run: f64,
    /// CPU time of one start since the last measurement.
    cpu_per_start: f64,
    /// CPU time of each second in which nothing happens.
    cpu_when_quiet: f64,
    /// The largest lag of the anchors after every run has moved.
    anchor_lag: Duration,
}

/// Prints the costs of a run, and the storms with the largest number of runs.
pub async fn measure() -> Result {
    let most = std::env::var(RUNS).map_or(Ok(MOST_RUNS), |text| text.parse())?;
    anyhow::ensure!(most > THOUSAND, "{RUNS} must be over {THOUSAND}");
    let server = tokio::task::spawn_blocking(|| pg::Server::start(&["-c", "max_connections=200"])).await?;
    let mut processes = Processes::start(server.database().await).await?;
    let mut fleet = Fleet::new("scale").await?;

    sleep(SETTLE).await;
    let base = processes.operator()?.anonymous_memory()?;
    let limit = Instant::now() + FILL_LIMIT;
    let mut usages = Vec::new();
    for runs in [THOUSAND, most] {
        usages.push(measure_at(&processes, &mut fleet, Step { runs, base, limit }).await?);
    }
    print_usages(base, &usages);

    let storms = storms::measure(&mut processes, &fleet).await?;
    print_table(
        &format!("{THOUSAND} runs at the same moment, of {} runs in one namespace", fleet.workers.len()),
        ["what", "per second", "p50", "p99", "slowest", "p99 of commits before", "p99 of commits meanwhile"],
        &storms.iter().map(Storm::row).collect::<Vec<_>>(),
    );
    fleet.end().await
}

/// One measurement of [`Usage`].
struct Step {
    runs: usize,
    /// The operator's memory without runs.
    base: u64,
    limit: Instant,
}

/// Starts runs up to a number, and measures what they cost.
async fn measure_at(processes: &Processes, fleet: &mut Fleet, step: Step) -> Result<Usage> {
    let operator = processes.operator()?;
    let (before, began) = (fleet.workers.len(), operator.cpu_time()?);
    while fleet.workers.len() < step.runs && Instant::now() < step.limit {
        let from = fleet.workers.len();
        fleet.start((from..step.runs.min(from + BATCH)).map(|i| format!("run-{i}"))).await?;
    }
    sleep(SETTLE).await;
    let runs = fleet.workers.len();
    let started = operator.cpu_time()?;
    sleep(QUIET).await;
    let (quiet, memory) = (operator.cpu_time()?, operator.anonymous_memory()?);
    Ok(Usage {
        runs,
        memory,
        memory_per_run: memory.saturating_sub(step.base) as f64 / runs as f64,
        cpu_per_start: (started - began).as_secs_f64() / (runs - before).max(1) as f64,
        cpu_when_quiet: (quiet - started).as_secs_f64() / QUIET.as_secs_f64(),
        anchor_lag: anchor_lag(operator, &fleet.workers, before).await?,
    })
}

/// Commits a turn of every run, and returns the largest lag of the anchors meanwhile and in the minute after it. The
/// first `moved` runs have committed one turn, the others none.
async fn anchor_lag(operator: &Program, workers: &[Worker], moved: usize) -> Result<Duration> {
    let commits = stream::iter(workers.iter().cloned().enumerate())
        .map(|(index, worker)| async move {
            let answer = worker.commit(if index < moved { 2 } else { 1 }, json!({})).await?;
            anyhow::ensure!(answer.status == 200, "a commit was refused: {answer:?}");
            Ok(())
        })
        .buffer_unordered(COMMITS_AT_ONCE)
        .try_collect::<()>();
    let watch = async {
        let (mut largest, mut end) = (0.0_f64, None);
        tokio::pin!(commits);
        while end.is_none_or(|end| Instant::now() < end) {
            tokio::select! {
                done = &mut commits, if end.is_none() => {
                    done?;
                    end = Some(Instant::now() + ANCHOR_WATCH);
                }
                () = sleep(Duration::from_secs(1)) => {
                    let now = Timestamp::now().as_millisecond() as f64 / 1e3;
                    largest = largest.max(now - operator.metric(ANCHORED_UNTIL).await?);
                }
            }
        }
        anyhow::Ok(Duration::from_secs_f64(largest))
    };
    watch.await
}

fn print_usages(base: u64, usages: &[Usage]) {
    let first = &usages[0];
    let rows: Vec<_> = usages
        .iter()
        .map(|it| {
            [
                it.runs.to_string(),
                format!("{:.1} MB", it.memory as f64 / 1e6),
                format!("{:.1} kB", it.memory_per_run / 1e3),
                times(it.memory_per_run / first.memory_per_run),
                format!("{:.1} ms", it.cpu_per_start * 1e3),
                times(it.cpu_per_start / first.cpu_per_start),
                format!("{:.1} %", it.cpu_when_quiet * 1e2),
                format!("{:.0} s", it.anchor_lag.as_secs_f64()),
            ]
        })
        .collect();
    print_table(
        &format!("The operator on PostgreSQL, every run attached; {:.1} MB without runs", base as f64 / 1e6),
        [
            "runs",
            "memory",
            "per run",
            "÷ first",
            "CPU per start",
            "÷ first",
            "CPU when quiet",
            "anchors' lag",
        ],
        &rows,
    );
}
