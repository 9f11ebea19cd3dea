//! `kubectl dalsegno`, as a person types it, in a terminal of 80 columns.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::RoleBinding;
use serde_json::json;
use tokio::process::Command;

use crate::{Result, TestContext, objects};

/// Limit for one command.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Columns of the terminal.
pub const COLUMNS: usize = 80;

/// The plugin, for one namespace.
#[derive(Clone, Debug)]
pub struct Plugin {
    namespace: String,
    account: Option<String>,
}

/// What a command has printed, and its exit code.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The command line.
    pub command: String,
    /// The exit code.
    pub code: i32,
    /// The standard output.
    pub stdout: String,
    /// The standard error.
    pub stderr: String,
}

impl TestContext {
    /// The plugin, with a ServiceAccount that may do what the built-in role edit may.
    pub async fn plugin(&self) -> Result<Plugin> {
        let account = json!({ "metadata": { "name": "me" } });
        objects::create::<ServiceAccount>(&self.client, &self.namespace, account).await?;
        let binding = json!({
            "metadata": { "name": "me" },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit" },
            "subjects": [{ "kind": "ServiceAccount", "name": "me", "namespace": self.namespace }],
        });
        objects::create::<RoleBinding>(&self.client, &self.namespace, binding).await?;
        Ok(Plugin { namespace: self.namespace.clone(), account: Some("me".to_owned()) })
    }

    /// The plugin of a person who has named no ServiceAccount.
    pub fn plugin_without_account(&self) -> Plugin {
        Plugin { namespace: self.namespace.clone(), account: None }
    }
}

impl Plugin {
    /// Runs a command, whatever its exit code is.
    pub async fn try_run(&self, words: &[&str]) -> Result<Answer> {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("kubectl");
        command.arg("dalsegno").args(words).args(["-n", &self.namespace]);
        command.env("PATH", format!("{}:{path}", programs()?.display()));
        command.env("COLUMNS", COLUMNS.to_string()).stdin(Stdio::null()).kill_on_drop(true);
        if let Some(account) = &self.account {
            command.env("DALSEGNO_SERVICE_ACCOUNT", account);
        }
        let shown = format!("kubectl dalsegno {}", words.join(" "));
        let output = tokio::time::timeout(TIMEOUT, command.output())
            .await
            .with_context(|| format!("{shown}: not done within {TIMEOUT:?}"))?
            .with_context(|| format!("{shown}: cannot be started"))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Answer {
            command: shown,
            code: output.status.code().unwrap_or(-1),
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
        })
    }

    /// Runs a command that must succeed, and returns its standard output.
    pub async fn run(&self, words: &[&str]) -> Result<String> {
        let answer = self.try_run(words).await?;
        anyhow::ensure!(answer.code == 0, "{answer}");
        Ok(answer.stdout)
    }

    /// Runs a command that must fail with this code, and say what to do next. Returns what it says.
    pub async fn fail(&self, code: i32, words: &[&str]) -> Result<String> {
        let answer = self.try_run(words).await?;
        anyhow::ensure!(answer.code == code, "expected exit code {code}: {answer}");
        // clap's own errors end with how to get help.
        let has_next = answer.stderr.contains("\nnext:  ") || answer.stderr.contains("try '--help'");
        anyhow::ensure!(has_next, "the error does not say what to do next: {answer}");
        Ok(answer.stderr)
    }
}

impl std::fmt::Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { command, code, stdout, stderr } = self;
        write!(f, "{command}: exit code {code}\n{stdout}{stderr}")
    }
}

/// The directory of the programs: tests are in its subdirectory `deps`.
fn programs() -> Result<PathBuf> {
    let test = std::env::current_exe()?;
    let programs = test.parent().and_then(std::path::Path::parent).context("the test has no directory")?;
    let plugin = programs.join("kubectl-dalsegno");
    anyhow::ensure!(
        plugin.exists(),
        "{} is not built: use `cargo build --workspace --bins`",
        plugin.display()
    );
    Ok(programs.to_owned())
}

/// Checks that text fits into the terminal and holds nothing that controls it. Lines with a command that is to be copied
/// are not wrapped.
pub fn expect_harmless(text: &str) -> Result {
    for line in text.lines() {
        let is_command = line.contains("kubectl ");
        let width = line.chars().count();
        anyhow::ensure!(is_command || width <= COLUMNS, "{width} columns: {line}\n\n{text}");
        let is_unsafe = |it: char| {
            it.is_control()
                || ('\u{202a}'..='\u{202e}').contains(&it)
                || ('\u{2066}'..='\u{2069}').contains(&it)
        };
        anyhow::ensure!(!line.contains(is_unsafe), "{line:?} can control a terminal");
    }
    Ok(())
}
