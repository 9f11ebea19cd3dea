//! Programs that the tests run: `cluster`, `kubectl`, `helm`, `kill`.

use std::ffi::OsStr;
use std::process::{Output, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};

use crate::Result;

/// Timeout of a program. The slowest one, the start of a node, needs less.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Runs a program and returns its stdout. It fails if the program exits with an error, or does not end within 120 s and
/// is killed; the error contains what the program printed.
pub async fn run<S: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    args: impl IntoIterator<Item = S>,
) -> Result<String> {
    let mut command = tokio::process::Command::new(program);
    command.args(args).stdin(Stdio::null()).kill_on_drop(true);
    let shown = format!("{:?}", command.as_std());
    let output = tokio::time::timeout(TIMEOUT, command.output())
        .await
        .with_context(|| format!("{shown}: not done within {TIMEOUT:?}"))?
        .with_context(|| format!("{shown}: cannot be started"))?;
    stdout_of(&shown, &output)
}

/// Runs a command line: a program with its arguments.
pub async fn run_command(command: &[String]) -> Result<String> {
    let [program, args @ ..] = command else { bail!("an empty command") };
    run(program, args).await
}

/// Like [`run`], without a timeout, for code that cannot be async, such as a `Drop`.
pub fn run_blocking<S: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    args: impl IntoIterator<Item = S>,
) -> Result<String> {
    let mut command = std::process::Command::new(program);
    command.args(args).stdin(Stdio::null());
    let shown = format!("{command:?}");
    let output = command.output().with_context(|| format!("{shown}: cannot be started"))?;
    stdout_of(&shown, &output)
}

/// Runs `kubectl` with the `KUBECONFIG` of the tests.
pub async fn kubectl<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Result<String> {
    run("kubectl", args).await
}

fn stdout_of(shown: &str, output: &Output) -> Result<String> {
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("{shown}: {}: {stdout}{stderr}", output.status);
    }
    Ok(stdout)
}

/// A command that undoes what a test has broken, stopped or changed. It runs when the guard is dropped, so that a test
/// that fails leaves nothing broken for the next one.
#[derive(Debug)]
#[must_use = "dropping the guard undoes the change at once"]
pub struct UndoGuard {
    command: Option<Vec<String>>,
}

impl UndoGuard {
    /// A guard that runs this command line.
    pub fn new(command: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { command: Some(command.into_iter().map(Into::into).collect()) }
    }

    /// Runs the command now.
    pub async fn undo(mut self) -> Result {
        let Some(command) = self.command.clone() else { return Ok(()) };
        let result = run_command(&command).await.map(drop);
        // If this future is dropped before, dropping the guard runs the command.
        self.command = None;
        result
    }

    /// Drops the guard without running the command, because another guard undoes the change.
    pub fn disarm(mut self) {
        self.command = None;
    }
}

impl Drop for UndoGuard {
    fn drop(&mut self) {
        if let Some([program, args @ ..]) = self.command.take().as_deref()
            && let Err(error) = run_blocking(program, args)
        {
            println!("cannot undo the test's change: {error:#}");
        }
    }
}
