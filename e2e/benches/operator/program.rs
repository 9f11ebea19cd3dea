//! `dalsegno` as a process on this machine.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::Context;
use dalsegno_e2e::Result;
use dalsegno_e2e::http::Request;
use dalsegno_e2e::wait::{eventually, secs};

/// One process of `dalsegno`. Dropping the value kills the process.
pub struct Program {
    process: Child,
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
    /// Starts the process and waits up to 30 s until it is ready.
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
        let program = Self { process, health: format!("http://127.0.0.1:{health}/readyz") };
        eventually(format!("{} to be ready", role.command), secs(30), async || {
            let answer = Request::get(&program.health).send().await?;
            Ok((answer.status == 200).then_some(()))
        })
        .await?;
        Ok(program)
    }

    /// The process's anonymous memory in bytes. The pages of the program's file do not count, because the kernel can
    /// drop them.
    pub fn anonymous_memory(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kilobytes = line.and_then(|rest| rest.trim().strip_suffix(" kB")).context("no RssAnon")?;
        Ok(kilobytes.parse::<u64>()? * 1024)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // If the process has already ended, its log says why.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
