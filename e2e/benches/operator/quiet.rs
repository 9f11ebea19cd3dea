//! What runs cost in which nothing happens: their workers are attached, beat, and commit nothing.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use dalsegno_e2e::{AuditLog, Result, Worker};
use futures::future::try_join_all;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use tokio::time::{Instant, sleep};

use crate::figures::print_table;
use crate::fleet::Fleet;
use crate::pg;
use crate::program::{Program, Role, free_port};

/// Runs that are quiet.
const RUNS: usize = 50;
/// How long the writes are counted.
const WINDOW: Duration = Duration::from_secs(60);
/// Between two heartbeats of a worker: a third of the timeout.
const BEAT: Duration = Duration::from_secs(5);
/// What follows the start of a run is over by then, the mirror of its progress included.
const SETTLE: Duration = Duration::from_secs(25);

/// Prints what the operator wrote, and fails if it wrote anything.
pub async fn measure() -> Result {
    let server = tokio::task::spawn_blocking(|| {
        pg::Server::start(&["-c", "log_statement=all", "-c", "log_line_prefix=%u "])
    })
    .await?;
    let database = server.database().await;
    let mut conn = PgConnection::connect(&database).await?;
    for user in ["operator", "gateway"] {
        conn.execute(AssertSqlSafe(format!("CREATE ROLE {user} SUPERUSER LOGIN"))).await?;
    }
    let as_user = |user: &str| database.replacen("//postgres@", &format!("//{user}@"), 1);
    let (gateway, operator) = (as_user("gateway"), as_user("operator"));
    let port = free_port()?;
    let role = |command, database| Role { command, user: command, database, gateway: port };
    let _programs = (
        Program::start(&role("gateway", &gateway)).await?,
        Program::start(&role("operator", &operator)).await?,
    );

    let mut fleet = Fleet::new("quiet").await?;
    fleet.start((0..RUNS).map(|i| format!("quiet-{i}"))).await?;
    beat_for(&fleet.workers, SETTLE).await?;
    let (audit, log) = (AuditLog::from_now(&fleet.namespace)?, Log::from_now(&database)?);
    let beats = beat_for(&fleet.workers, WINDOW).await?;
    let api_writes = audit.entries()?.into_iter().filter(|entry| entry.user == "operator").count();
    let (reads, writes) = log.statements("operator")?;

    print_table(
        &format!("{RUNS} quiet runs, {} seconds, PostgreSQL", WINDOW.as_secs()),
        ["heartbeats heard", "API writes of the operator", "its SQL reads", "its SQL writes"],
        &[[beats, api_writes, reads, writes.len()].map(|count| count.to_string())],
    );
    fleet.end().await?;
    anyhow::ensure!(api_writes == 0, "the operator wrote to the API server");
    anyhow::ensure!(writes.is_empty(), "the operator wrote to the store: {writes:#?}");
    Ok(())
}

/// Has all workers beat for so long; how often they were heard.
async fn beat_for(workers: &[Worker], time: Duration) -> Result<usize> {
    let (end, mut heard) = (Instant::now() + time, 0);
    while Instant::now() < end {
        let next = Instant::now() + BEAT;
        for answer in try_join_all(workers.iter().map(Worker::beat)).await? {
            anyhow::ensure!(answer.status == 200, "a heartbeat was refused: {answer:?}");
            heard += 1;
        }
        sleep(next - Instant::now()).await;
    }
    Ok(heard)
}

/// The server's log from some point on.
struct Log {
    path: PathBuf,
    from: usize,
}

impl Log {
    fn from_now(url: &str) -> Result<Self> {
        let (_, directory) = url.split_once("host=").context("a URL without a socket")?;
        let path = PathBuf::from(directory).join("log");
        let from = std::fs::read(&path).context("reading PostgreSQL's log")?.len();
        Ok(Self { path, from })
    }

    /// How many statements of this user only read, and those that do more.
    fn statements(&self, user: &str) -> Result<(usize, Vec<String>)> {
        let text = String::from_utf8_lossy(&std::fs::read(&self.path)?[self.from..]).into_owned();
        let (mut statements, mut ours) = (Vec::<String>::new(), false);
        for line in text.lines() {
            // A statement's further lines begin with a tab.
            if let Some(rest) = line.strip_prefix('\t') {
                if let Some(statement) = statements.last_mut().filter(|_| ours)
                    && !rest.trim_start().starts_with("--")
                {
                    statement.push('\n');
                    statement.push_str(rest);
                }
                continue;
            }
            let executed = line.strip_prefix(user).and_then(|rest| rest.strip_prefix(" LOG:  "));
            ours = executed.is_some();
            statements.extend(executed.map(str::to_owned));
        }
        let (writes, reads): (Vec<_>, Vec<_>) =
            statements.into_iter().partition(|statement| writes(statement));
        Ok((reads.len(), writes))
    }
}

/// Functions of the store that only read; `ds_expire`, once a minute for all runs, writes where a run is past its retention.
const READ: [&str; 3] = ["ds_now_", "ds_run_record_", "ds_expire_"];

/// Whether a statement may write: it says so, or calls another function of the store.
fn writes(statement: &str) -> bool {
    let says_so =
        ["INSERT", "UPDATE", "DELETE", "CREATE", "ALTER"].iter().any(|word| statement.contains(word));
    let calls = READ.iter().fold(statement.to_owned(), |rest, read| rest.replace(read, ""));
    says_so || calls.contains("ds_")
}
