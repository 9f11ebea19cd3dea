//! The machines of the cluster: power, network cables, components and processes. It runs the `cluster` program of
//! `e2e/cluster`.

use std::path::PathBuf;

use anyhow::Context;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use crate::Result;
use crate::process::{self, UndoGuard};

/// The environment variable with the path of the `cluster` program.
pub const PROGRAM: &str = "DALSEGNO_CLUSTER_BIN";

/// The node of the operator, the ledger and their volumes. No test breaks it.
pub const SAFE_NODE: &str = "n1";

/// The node that the tests break.
pub const FAULTY_NODE: &str = "n2";

/// A script that puts a program in the place of a node's runc. It creates every container, and starts only those of the
/// pods' sandboxes. What it makes is gone with the node's power.
const HOLD_STARTS: &str = r#"
set -eu
runc=$(command -v runc)
cp "$runc" /run/containerd/runc-real
cat > /run/containerd/runc-hold <<'END'
#!/bin/sh
for argument; do
    case $argument in
    start) starts=yes ;;
    */log.json) bundle=${argument%/log.json} ;;
    esac
done
if [ -n "${starts-}" ] && ! grep -q '"io.kubernetes.cri.container-type":"sandbox"' "$bundle/config.json"; then
    exec sleep 600
fi
exec /run/containerd/runc-real "$@"
END
chmod +x /run/containerd/runc-hold
mount --bind /run/containerd/runc-hold "$runc"
"#;

/// A script that undoes [`HOLD_STARTS`], if the node has had power all the time.
const RELEASE_STARTS: &str = r#"! mountpoint -q "$(command -v runc)" || umount "$(command -v runc)""#;

/// A handle on the machines.
#[derive(Clone, Debug)]
pub struct Cluster {
    program: PathBuf,
}

impl Cluster {
    /// The cluster whose `cluster` program [`PROGRAM`] names. Fails if the variable is not set.
    pub fn from_env() -> Result<Self> {
        let program = std::env::var_os(PROGRAM).with_context(|| {
            format!("{PROGRAM} is not set: it names the program of e2e/cluster, as `make` does")
        })?;
        Ok(Self { program: program.into() })
    }

    /// Runs one command of the `cluster` program.
    pub async fn command(&self, args: &[&str]) -> Result<String> {
        process::run(&self.program, args).await
    }

    /// Runs `args`, which break something. The guard runs `repair`, which also waits until it works again.
    async fn break_with(&self, args: &[&str], repair: &[&str]) -> Result<UndoGuard> {
        let program = self.program.display().to_string();
        let undo = UndoGuard::new([program.as_str()].iter().chain(repair).copied());
        self.command(args).await?;
        Ok(undo)
    }

    /// Cuts the power of a node.
    pub async fn kill_node(&self, node: &str) -> Result<UndoGuard> {
        self.break_with(&["node", "kill", node], &["node", "start", node]).await
    }

    /// Lets a node create the containers of pods, and start none of them.
    pub async fn hold_starts(&self, node: &str) -> Result<UndoGuard> {
        let in_node = ["node", "exec", node, "--", "sh", "-c"];
        let with = |script| [&in_node[..], &[script]].concat();
        self.break_with(&with(HOLD_STARTS), &with(RELEASE_STARTS)).await
    }

    /// Pulls the network cable of a node. Its containers keep running.
    pub async fn cut_link(&self, node: &str) -> Result<UndoGuard> {
        self.break_with(&["link", "down", node], &["link", "up", node]).await
    }

    /// Kills a component: `apiserver`, `etcd`, `scheduler`, `controller-manager`, `registry`, `coredns`.
    pub async fn stop(&self, component: &str) -> Result<UndoGuard> {
        self.break_with(&["stop", component], &["start", component]).await
    }

    /// Kills the kubelet of a node and starts it again. The node's containers keep running.
    pub async fn restart_kubelet(&self, node: &str) -> Result {
        self.command(&["node", "restart-kubelet", node]).await.map(drop)
    }

    /// The processes of this container of a running pod, as the machine numbers them.
    pub async fn processes(&self, pod: &Pod, container: &str) -> Result<Processes> {
        let spec = pod.spec.as_ref().context("a pod without a spec")?;
        let node = spec.node_name.as_deref().context("a pod without a node")?;
        let namespace = pod.namespace().context("a pod without a namespace")?;
        let printed = self.command(&["container-pids", node, &namespace, &pod.name_any(), container]).await?;
        Ok(Processes { pids: printed.split_whitespace().map(str::to_owned).collect() })
    }
}

/// The processes of one container.
#[derive(Clone, Debug)]
pub struct Processes {
    pids: Vec<String>,
}

impl Processes {
    fn kill_command(&self, signal: &str) -> Vec<String> {
        let mut command = vec!["kill".to_owned(), signal.to_owned(), "--".to_owned()];
        command.extend(self.pids.iter().cloned());
        command
    }

    /// Stops the processes (SIGSTOP): they keep their sockets and memory. The guard resumes them.
    pub async fn freeze(&self) -> Result<UndoGuard> {
        let undo = UndoGuard::new(self.kill_command("-CONT"));
        process::run_command(&self.kill_command("-STOP")).await?;
        Ok(undo)
    }

    /// Kills the processes (SIGKILL).
    pub async fn kill(&self) -> Result {
        process::run_command(&self.kill_command("-KILL")).await.map(drop)
    }

    /// Whether any of the processes exists. A process in state Z, which has ended, does not count.
    pub fn any_alive(&self) -> bool {
        self.pids.iter().any(|pid| {
            std::fs::read_to_string(format!("/proc/{pid}/stat"))
                .is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| !rest.starts_with(" Z")))
        })
    }
}
