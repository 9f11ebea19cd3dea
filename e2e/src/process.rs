//! Programs that the stories start: `cluster`, `kubectl`, `helm`, `kill`.

use std::ffi::OsStr;
use std::process::{Output, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};

use crate::Result;

/// Longer than any command of the harness takes, a node's start included.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs a program to its end and returns what it printed.
///
/// # Errors
///
/// It cannot be started, takes longer than two minutes (it is then killed) or fails; what it said is in the error.
pub async fn run<S: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    args: impl IntoIterator<Item = S>,
) -> Result<String> {
    let mut command = tokio::process::Command::new(program);
    command.args(args).stdin(Stdio::null()).kill_on_drop(true);
    let shown = format!("{:?}", command.as_std());
    let output = tokio::time::timeout(LIMIT, command.output())
        .await
        .with_context(|| format!("{shown}: not done within {LIMIT:?}"))?
        .with_context(|| format!("{shown}: cannot be started"))?;
    judge(&shown, &output)
}

/// The same where nothing can be awaited: in a `Drop`.
///
/// # Errors
///
/// It cannot be started or fails.
pub fn run_blocking<S: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    args: impl IntoIterator<Item = S>,
) -> Result<String> {
    let mut command = std::process::Command::new(program);
    command.args(args).stdin(Stdio::null());
    let shown = format!("{command:?}");
    let output = command.output().with_context(|| format!("{shown}: cannot be started"))?;
    judge(&shown, &output)
}

/// `kubectl` with the KUBECONFIG of the story.
///
/// # Errors
///
/// As [`run`].
pub async fn kubectl<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Result<String> {
    run("kubectl", args).await
}

/// Something that a story has broken, stopped or changed, with the command that undoes it. Dropped, it is undone, so
/// that no story leaves it to the next.
#[derive(Debug)]
#[must_use = "dropping it undoes at once what was done"]
pub struct UndoGuard {
    command: Option<Vec<String>>,
}

impl UndoGuard {
    /// Undone by this program with these arguments.
    pub fn by(command: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { command: Some(command.into_iter().map(Into::into).collect()) }
    }

    /// Undoes it.
    ///
    /// # Errors
    ///
    /// The command fails.
    pub async fn now(mut self) -> Result {
        match self.command.take().as_deref() {
            Some([program, args @ ..]) => run(program, args).await.map(drop),
            _ => Ok(()),
        }
    }
}

impl UndoGuard {
    /// Leaves it as it is: somebody else undoes it.
    pub fn keep(mut self) {
        self.command = None;
    }
}

impl Drop for UndoGuard {
    fn drop(&mut self) {
        if let Some([program, args @ ..]) = self.command.take().as_deref()
            && let Err(error) = run_blocking(program, args)
        {
            println!("cannot undo what the story did: {error:#}");
        }
    }
}

fn judge(shown: &str, output: &Output) -> Result<String> {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        bail!("{shown}: {}: {said}{complaint}", output.status);
    }
    Ok(said)
}
