//! `dalsegno` as a process on this machine.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context;
use dalsegno_e2e::Result;
use dalsegno_e2e::http::Request;
use dalsegno_e2e::wait::{eventually, secs};

/// The kernel counts a process's CPU time in ticks of this length.
const TICK: Duration = Duration::from_millis(10);

/// Limit for a process to become ready. An operator first reads every run and pod.
const READY_LIMIT: Duration = secs(120);

/// One process of `dalsegno`. Dropping the value kills the process.
pub struct Program {
    process: Child,
    /// The base URL of its health and metrics.
    health: String,
}

/// The role of a process.
pub struct Role<'a> {
    /// `all`, `operator` or `gateway`.
    pub command: &'a str,
    /// Its user at the API server.
    pub user: &'a str,
    /// The URL of its store.
    pub database: &'a str,
    /// The port of the gateway.
    pub gateway: u16,
}

/// The directory of `with-control-plane.sh`.
pub fn directory() -> Result<PathBuf> {
    let directory = std::env::var_os("DALSEGNO_BENCH_DIR");
    Ok(directory.context("DALSEGNO_BENCH_DIR is not set: with-control-plane.sh sets it")?.into())
}

/// An unused port.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

impl Program {
    /// Starts the process and waits up to two minutes until it is ready.
    pub async fn start(role: &Role<'_>) -> Result<Self> {
        let program = std::env::var_os("DALSEGNO_PROGRAM").context("DALSEGNO_PROGRAM is not set")?;
        let (health, directory) = (free_port()?, directory()?);
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(directory.join(format!("dalsegno-{}.log", role.command)))?;
        let process = Command::new(program)
            .arg(role.command)
            .env("KUBECONFIG", directory.join(format!("{}.kubeconfig", role.user)))
            .env("DALSEGNO_DATABASE_URL", role.database)
            .env("DALSEGNO_GATEWAY_LISTEN", format!("127.0.0.1:{}", role.gateway))
            .env("DALSEGNO_GATEWAY_URL", format!("http://127.0.0.1:{}", role.gateway))
            .env("DALSEGNO_HEALTH_LISTEN", format!("127.0.0.1:{health}"))
            // The anchors of the runs' starts are written before the measurement begins.
            .env("DALSEGNO_ANCHOR_EVERY", "10s")
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .context("starting DALSEGNO_PROGRAM")?;
        let program = Self { process, health: format!("http://127.0.0.1:{health}") };
        eventually(format!("{} to be ready", role.command), READY_LIMIT, async || {
            let answer = Request::get(format!("{}/readyz", program.health)).send().await?;
            Ok((answer.status == 200).then_some(()))
        })
        .await?;
        Ok(program)
    }

    /// Kills the process and starts it again.
    pub async fn restart(before: &mut Self, role: &Role<'_>) -> Result<Self> {
        before.process.kill()?;
        before.process.wait()?;
        Self::start(role).await
    }

    /// The process's anonymous memory in bytes. The pages of the program's file do not count, because the kernel can
    /// drop them.
    pub fn anonymous_memory(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kilobytes = line.and_then(|rest| rest.trim().strip_suffix(" kB")).context("no RssAnon")?;
        Ok(kilobytes.parse::<u64>()? * 1024)
    }

    /// The CPU time of the process so far, of user and kernel together.
    pub fn cpu_time(&self) -> Result<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.id()))?;
        let (_, fields) = stat.rsplit_once(") ").context("a stat without a name")?;
        let mut fields = fields.split(' ').skip(11);
        let mut ticks = || fields.next().context("a stat without times")?.parse::<u32>().context("ticks");
        Ok(TICK * (ticks()? + ticks()?))
    }

    /// The largest value of a metric over its labels.
    pub async fn metric(&self, name: &str) -> Result<f64> {
        let page = Request::get(format!("{}/metrics", self.health)).send().await?.body;
        let values = page.lines().filter_map(|line| line.strip_prefix(name)?.split_whitespace().last());
        let largest = values.filter_map(|value| value.parse().ok()).reduce(f64::max);
        largest.with_context(|| format!("the process does not export {name}"))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // If the process has already ended, its log says why.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
