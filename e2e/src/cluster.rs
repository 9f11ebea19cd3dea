//! The machines under the cluster: power, network cables, components and processes, by the `cluster` program of
//! `e2e/cluster`.

use std::path::PathBuf;

use anyhow::Context;

use crate::Result;
use crate::process::{self, UndoGuard};

/// Name of the environment variable with the path of the `cluster` program.
pub const PROGRAM: &str = "DALSEGNO_CLUSTER_BIN";

/// The node on which the operator, the ledger and their volumes live. No story breaks it.
pub const SAFE_NODE: &str = "n1";

/// The node that the stories break.
pub const FAULTY_NODE: &str = "n2";

/// A handle on the machines.
#[derive(Clone, Debug)]
pub struct Cluster {
    program: PathBuf,
}

impl Cluster {
    /// The cluster whose `cluster` program [`PROGRAM`] names.
    ///
    /// # Errors
    ///
    /// The variable is not set: the stories were not started by `make`.
    pub fn from_env() -> Result<Self> {
        let program = std::env::var_os(PROGRAM).with_context(|| {
            format!("{PROGRAM} is not set: it names the program of e2e/cluster, as `make` does")
        })?;
        Ok(Self { program: program.into() })
    }

    /// Runs one command of the `cluster` program.
    ///
    /// # Errors
    ///
    /// The command fails.
    pub async fn command(&self, args: &[&str]) -> Result<String> {
        process::run(&self.program, args).await
    }

    /// Breaks something by `args`; `repair` undoes it, and waits until it works again.
    async fn broken(&self, args: &[&str], repair: &[&str]) -> Result<UndoGuard> {
        let program = self.program.display().to_string();
        let undo = UndoGuard::by([program.as_str()].iter().chain(repair).copied());
        self.command(args).await?;
        Ok(undo)
    }

    /// Power loss of a node.
    ///
    /// # Errors
    ///
    /// The command fails.
    pub async fn kill_node(&self, node: &str) -> Result<UndoGuard> {
        self.broken(&["node", "kill", node], &["node", "start", node]).await
    }

    /// Pulls the network cable of a node; its containers go on.
    ///
    /// # Errors
    ///
    /// The command fails.
    pub async fn cut_link(&self, node: &str) -> Result<UndoGuard> {
        self.broken(&["link", "down", node], &["link", "up", node]).await
    }

    /// Kills a component: `apiserver`, `etcd`, `scheduler`, `controller-manager`, `registry`, `coredns`.
    ///
    /// # Errors
    ///
    /// The command fails.
    pub async fn stop(&self, component: &str) -> Result<UndoGuard> {
        self.broken(&["stop", component], &["start", component]).await
    }

    /// Kills the kubelet of a node and starts it again; its containers go on.
    ///
    /// # Errors
    ///
    /// The command fails.
    pub async fn restart_kubelet(&self, node: &str) -> Result {
        self.command(&["node", "restart-kubelet", node]).await.map(drop)
    }

    /// The machine's processes of a container.
    ///
    /// # Errors
    ///
    /// The container does not run.
    pub async fn processes(
        &self,
        node: &str,
        namespace: &str,
        pod: &str,
        container: &str,
    ) -> Result<Processes> {
        let printed = self.command(&["container-pids", node, namespace, pod, container]).await?;
        Ok(Processes { pids: printed.split_whitespace().map(str::to_owned).collect() })
    }
}

/// The processes of one container.
#[derive(Clone, Debug)]
pub struct Processes {
    pids: Vec<String>,
}

impl Processes {
    fn signal(&self, signal: &str) -> Vec<String> {
        let mut command = vec!["kill".to_owned(), signal.to_owned(), "--".to_owned()];
        command.extend(self.pids.iter().cloned());
        command
    }

    /// Stops them where they are: they hold their sockets and their memory, and do nothing. Undone, they go on.
    ///
    /// # Errors
    ///
    /// They are gone.
    pub async fn freeze(&self) -> Result<UndoGuard> {
        let undo = UndoGuard::by(self.signal("-CONT"));
        UndoGuard::by(self.signal("-STOP")).now().await?;
        Ok(undo)
    }

    /// Kills them at once.
    ///
    /// # Errors
    ///
    /// They are gone.
    pub async fn kill(&self) -> Result {
        UndoGuard::by(self.signal("-KILL")).now().await
    }

    /// Whether any of them is still there (a zombie that nobody has waited for counts as gone).
    pub fn any_alive(&self) -> bool {
        self.pids.iter().any(|pid| {
            std::fs::read_to_string(format!("/proc/{pid}/stat"))
                .is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| !rest.starts_with(" Z")))
        })
    }
}
