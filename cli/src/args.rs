//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::output::Format;

mod changing;
mod reading;
mod scripts;

pub use changing::*;
pub use reading::*;
pub use scripts::*;

/// Find, understand, stop, answer and repair the runs of agents.
///
/// Changes go to Kubernetes objects, so that RBAC, admission and the audit see them. What a run has committed comes through
/// one of two doors: the aggregated API, if it is registered, or a port-forward to the gateway.
#[derive(Debug, Parser)]
#[command(name = "kubectl-dalsegno", bin_name = "kubectl dalsegno", version, max_term_width = 100)]
pub struct Cli {
    /// The cluster, the namespace, the doors and the output.
    #[command(flatten)]
    pub global: GlobalArgs,
    /// The verb.
    #[command(subcommand)]
    pub verb: Verb,
}

/// Options of every verb.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Options of every verb")]
pub struct GlobalArgs {
    /// Namespace. Unset: that of the kubeconfig's context.
    #[arg(long, short, global = true)]
    pub namespace: Option<String>,
    /// Output: `text`, `wide`, `name`, `json` or `yaml`.
    #[arg(long, short, global = true, value_enum, default_value = "text", hide_possible_values = true)]
    pub output: Format,
    /// Context of the kubeconfig.
    #[arg(long, global = true)]
    pub context: Option<String>,
    /// The kubeconfig. Unset: $KUBECONFIG, or ~/.kube/config.
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// User to impersonate.
    #[arg(long = "as", global = true, value_name = "USER")]
    pub impersonate: Option<String>,
    /// Group to impersonate; may be repeated.
    #[arg(long = "as-group", global = true, value_name = "GROUP", requires = "impersonate")]
    pub impersonate_groups: Vec<String>,
    /// The door to what a run has committed.
    #[arg(long, global = true, value_enum, default_value = "auto", env = "DALSEGNO_DOOR")]
    pub door: DoorChoice,
    /// ServiceAccount, as [NAMESPACE/]NAME, whose token opens the gateway. Unset: your own, if you are one.
    #[arg(long, global = true, value_name = "ACCOUNT", env = "DALSEGNO_SERVICE_ACCOUNT")]
    pub service_account: Option<String>,
    /// The gateway's Service, as NAMESPACE/NAME.
    #[arg(
        long,
        global = true,
        value_name = "SERVICE",
        env = "DALSEGNO_GATEWAY",
        default_value = "dalsegno-system/dalsegno-gateway"
    )]
    pub gateway: String,
    /// File with the CA of the gateway's certificate, in PEM. Unset: the ConfigMap dalsegno-ca beside the gateway, if there
    /// is one.
    #[arg(long, global = true, value_name = "FILE", env = "DALSEGNO_GATEWAY_CA")]
    pub gateway_ca: Option<PathBuf>,
}

/// Which door is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DoorChoice {
    /// The aggregated API if it is registered, or else the gateway.
    #[default]
    Auto,
    /// The aggregated API of the API server.
    Aggregated,
    /// A port-forward to the gateway, with a token of a ServiceAccount.
    Gateway,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// List runs: those that need you first
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Show what a run is, where it stands, why, what happens next, and the command that lifts it
    Status(RunArgs),
    /// List the turns that a run has committed
    Turns(TurnsArgs),
    /// Show the state of a run
    State(StateArgs),
    /// Show the events of a run
    Events(EventsArgs),
    /// Show the logs of a run's pods
    Logs(LogsArgs),
    /// List the attempts of a run
    Attempts(RunArgs),
    /// List the tool calls of a run
    Calls(CallsArgs),
    /// Stop a run without losing it
    Suspend(ChangeArgs),
    /// Lift the suspend of a run
    Resume(ResumeArgs),
    /// Send a message to a run
    Send(SendArgs),
    /// List what agents ask people to decide
    Approvals(ApprovalsArgs),
    /// Approve what an agent proposes
    Approve(ApproveArgs),
    /// Deny what an agent proposes
    Deny(DenyArgs),
    /// Go back to an earlier turn
    Rewind(RewindArgs),
    /// Start a new run from a turn of another one
    Fork(ForkArgs),
    /// End a run for ever
    Cancel(CancelArgs),
    /// Say how a call ended whose outcome is unknown
    Settle(SettleArgs),
    /// Grant a held run a fresh recovery budget, or many of them
    Reset(ResetArgs),
    /// Write a run as a signed bundle
    Export(ExportArgs),
    /// Verify a bundle
    Verify(VerifyArgs),
    /// Show the facts and the rule of the operator's next decision about a run
    Explain(RunArgs),
    /// Wait until a run is in a state
    Wait(WaitArgs),
    /// Print a script that completes commands
    Completion(CompletionArgs),
    /// Candidates for kubectl's own completion.
    #[command(name = "__complete", hide = true)]
    Complete(CompleteArgs),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::Cli;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
