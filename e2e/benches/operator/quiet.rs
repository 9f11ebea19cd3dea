//! The writes of quiet runs: their workers are attached and send heartbeats, but commit nothing.

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

/// The number of quiet runs.
const RUNS: usize = 50;
/// How long writes are counted.
const WINDOW: Duration = Duration::from_secs(60);
/// The period of a worker's heartbeats: a third of the timeout.
const HEARTBEAT_PERIOD: Duration = Duration::from_secs(5);
/// The wait after the runs' start. By then all writes of the start are done, the status of the progress included.
const SETTLE: Duration = Duration::from_secs(25);

/// Prints the operator's writes, and fails if there is any.
pub async fn measure() -> Result {
    let server = tokio::task::spawn_blocking(start_logging_server).await?;
    let [operator, gateway] = database_for_each(&server).await?;
    let port = free_port()?;
    let role = |command, database| Role { command, user: command, database, gateway: port };
    let _programs = (
        Program::start(&role("gateway", &gateway)).await?,
        Program::start(&role("operator", &operator)).await?,
    );

    let mut fleet = Fleet::new("quiet").await?;
    fleet.start((0..RUNS).map(|i| format!("quiet-{i}"))).await?;
    send_heartbeats(&fleet.workers, SETTLE).await?;
    let (audit, log) = (AuditLog::from_now(&fleet.namespace)?, StatementLog::from_now(&operator)?);
    let heartbeats = send_heartbeats(&fleet.workers, WINDOW).await?;
    let api_writes = audit.entries()?.into_iter().filter(|entry| entry.user == "operator").count();
    let (reads, writes) = log.statements("operator")?;

    print_table(
        &format!("{RUNS} quiet runs, {} seconds, PostgreSQL", WINDOW.as_secs()),
        ["heartbeats accepted", "API writes of the operator", "its SQL reads", "its SQL writes"],
        &[[heartbeats, api_writes, reads, writes.len()].map(|count| count.to_string())],
    );
    fleet.end().await?;
    anyhow::ensure!(api_writes == 0, "the operator wrote to the API server");
    anyhow::ensure!(writes.is_empty(), "the operator wrote to the store: {writes:#?}");
    Ok(())
}

/// A server that logs every statement with the user that sent it.
pub fn start_logging_server() -> pg::Server {
    pg::Server::start(&["-c", "log_statement=all", "-c", "log_line_prefix=%u "])
}

/// Creates a migrated database, and returns its URL as the users `operator` and `gateway`.
pub async fn database_for_each(server: &pg::Server) -> Result<[String; 2]> {
    let database = server.database().await;
    let mut conn = PgConnection::connect(&database).await?;
    let users = ["operator", "gateway"];
    for user in users {
        conn.execute(AssertSqlSafe(format!("CREATE ROLE {user} SUPERUSER LOGIN"))).await?;
    }
    Ok(users.map(|user| database.replacen("//postgres@", &format!("//{user}@"), 1)))
}

/// Sends the heartbeats of all workers for this time. Returns how many were accepted.
async fn send_heartbeats(workers: &[Worker], time: Duration) -> Result<usize> {
    let (end, mut accepted) = (Instant::now() + time, 0);
    while Instant::now() < end {
        let next = Instant::now() + HEARTBEAT_PERIOD;
        for answer in try_join_all(workers.iter().map(Worker::heartbeat)).await? {
            anyhow::ensure!(answer.status == 200, "a heartbeat was refused: {answer:?}");
            accepted += 1;
        }
        sleep(next - Instant::now()).await;
    }
    Ok(accepted)
}

/// The lines of PostgreSQL's log from some time on.
pub struct StatementLog {
    path: PathBuf,
    from: usize,
}

impl StatementLog {
    /// The log of the server at this URL, from now on.
    pub fn from_now(url: &str) -> Result<Self> {
        let (_, directory) = url.split_once("host=").context("a URL without a socket")?;
        let path = PathBuf::from(directory).join("log");
        let from = std::fs::read(&path).context("reading PostgreSQL's log")?.len();
        Ok(Self { path, from })
    }

    /// The number of this user's statements that only read, and its other statements.
    pub fn statements(&self, user: &str) -> Result<(usize, Vec<String>)> {
        let text = String::from_utf8_lossy(&std::fs::read(&self.path)?[self.from..]).into_owned();
        let (mut statements, mut is_users) = (Vec::<String>::new(), false);
        for line in text.lines() {
            // The further lines of a statement begin with a tab.
            if let Some(rest) = line.strip_prefix('\t') {
                if let Some(statement) = statements.last_mut().filter(|_| is_users)
                    && !rest.trim_start().starts_with("--")
                {
                    statement.push('\n');
                    statement.push_str(rest);
                }
                continue;
            }
            let executed = line.strip_prefix(user).and_then(|rest| rest.strip_prefix(" LOG:  "));
            is_users = executed.is_some();
            statements.extend(executed.map(str::to_owned));
        }
        let (writes, reads): (Vec<_>, Vec<_>) =
            statements.into_iter().partition(|statement| may_write(statement));
        Ok((reads.len(), writes))
    }
}

/// Functions of the store that write nothing while nothing is due. Once a minute `ds_expire` looks for runs past their
/// retention, and `ds_drop_revisions` for templates that no run needs.
const READ_FUNCTIONS: [&str; 4] = ["ds_now_", "ds_run_record_", "ds_expire_", "ds_drop_revisions_"];

/// Whether a statement may write: it has a keyword that writes, or it calls another function of the store.
fn may_write(statement: &str) -> bool {
    let has_keyword =
        ["INSERT", "UPDATE", "DELETE", "CREATE", "ALTER"].iter().any(|word| statement.contains(word));
    let words = statement.split(|sign: char| !sign.is_ascii_alphanumeric() && sign != '_');
    let mut functions = words.filter(|word| word.starts_with("ds_"));
    has_keyword || functions.any(|name| !READ_FUNCTIONS.iter().any(|read| name.starts_with(read)))
}
