//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::output::Format;

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

/// A run.
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    /// Name of the AgentRun.
    pub run: String,
}

/// Which runs.
#[derive(Clone, Debug, Args)]
pub struct ListArgs {
    /// Runs of all namespaces.
    #[arg(long, short = 'A')]
    pub all_namespaces: bool,
    /// Only runs with these labels.
    #[arg(long, short = 'l', value_name = "LABELS")]
    pub selector: Option<String>,
    /// Only runs that need a person.
    #[arg(long)]
    pub needs_you: bool,
}

/// Which turns.
#[derive(Clone, Debug, Args)]
pub struct TurnsArgs {
    /// Name of the AgentRun.
    pub run: String,
    /// How many of the latest turns.
    #[arg(long, value_name = "NUMBER", default_value_t = 20, value_parser = clap::value_parser!(i32).range(1..))]
    pub last: i32,
}

/// Which state.
#[derive(Clone, Debug, Args)]
pub struct StateArgs {
    /// Name of the AgentRun.
    pub run: String,
    /// The state after this turn. Unset: after the latest one.
    #[arg(long, value_parser = clap::value_parser!(i32).range(1..))]
    pub turn: Option<i32>,
    /// Only this channel.
    #[arg(long)]
    pub channel: Option<String>,
}

/// Which events.
#[derive(Clone, Debug, Args)]
pub struct EventsArgs {
    /// Name of the AgentRun.
    pub run: String,
    /// Go on until the run is over.
    #[arg(long, short)]
    pub follow: bool,
    /// From this turn on. Unset: the last events.
    #[arg(long, value_parser = clap::value_parser!(i32).range(1..))]
    pub turn: Option<i32>,
    /// How many of the latest events; 0: all.
    #[arg(long, value_name = "NUMBER", default_value_t = 50, conflicts_with = "turn")]
    pub last: i64,
}

/// Which logs.
#[derive(Clone, Debug, Args)]
pub struct LogsArgs {
    /// Name of the AgentRun.
    pub run: String,
    /// Go on, from attempt to attempt, until the run is over.
    #[arg(long, short)]
    pub follow: bool,
    /// The logs of all pods that still exist, the earliest first.
    #[arg(long, conflicts_with = "attempt")]
    pub all_attempts: bool,
    /// The log of this attempt. Unset: of the latest pod.
    #[arg(long, value_parser = clap::value_parser!(i32).range(1..))]
    pub attempt: Option<i32>,
    /// Only the last lines of each pod.
    #[arg(long, value_name = "LINES")]
    pub tail: Option<i64>,
    /// The container. Unset: the worker's.
    #[arg(long, short)]
    pub container: Option<String>,
}

/// Which calls.
#[derive(Clone, Debug, Args)]
pub struct CallsArgs {
    /// Name of the AgentRun.
    pub run: String,
    /// Only calls whose outcome is unknown.
    #[arg(long)]
    pub open: bool,
}

/// A change of a run, with its reason.
#[derive(Clone, Debug, Args)]
pub struct ChangeArgs {
    /// Name of the AgentRun.
    pub run: String,
    /// Why. It is written to the annotation dalsegno.dev/reason, and the audit keeps it.
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
}

/// Lifts a suspend.
#[derive(Clone, Debug, Args)]
pub struct ResumeArgs {
    /// The run, and why.
    #[command(flatten)]
    pub change: ChangeArgs,
    /// Send this message first, with the topic `resume`.
    #[arg(long, value_name = "TEXT")]
    pub message: Option<String>,
}

/// A message.
#[derive(Clone, Debug, Args)]
pub struct SendArgs {
    /// Name of the AgentRun.
    pub run: String,
    /// The message. Unset: the standard input.
    pub text: Option<String>,
    /// What it is about.
    #[arg(long)]
    pub topic: Option<String>,
    /// The message is JSON. Otherwise it is sent as a JSON string.
    #[arg(long)]
    pub json: bool,
    /// Id of the message: a message that was sent before under this id is not sent again. Unset: a new one.
    #[arg(long)]
    pub id: Option<String>,
}

/// Which approvals.
#[derive(Clone, Debug, Args)]
pub struct ApprovalsArgs {
    /// Only those of this run.
    pub run: Option<String>,
    /// Approvals of all namespaces.
    #[arg(long, short = 'A', conflicts_with = "run")]
    pub all_namespaces: bool,
    /// Also those that are decided or over.
    #[arg(long)]
    pub all: bool,
}

/// An approval.
#[derive(Clone, Debug, Args)]
pub struct ApproveArgs {
    /// Name of the AgentApproval, or of a run that waits for one decision.
    pub approval: String,
    /// Why. The agent reads it.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub reason: String,
    /// Approve with these changes: JSON, or @FILE. The agent reads them.
    #[arg(long, value_name = "JSON")]
    pub changes: Option<String>,
    /// Do not ask. The proposal is shown and checked all the same.
    #[arg(long, short)]
    pub yes: bool,
}

/// A denial.
#[derive(Clone, Debug, Args)]
pub struct DenyArgs {
    /// Name of the AgentApproval, or of a run that waits for one decision.
    pub approval: String,
    /// Why. The agent reads it.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub reason: String,
    /// Do not ask.
    #[arg(long, short)]
    pub yes: bool,
}

/// A rewind.
#[derive(Clone, Debug, Args)]
pub struct RewindArgs {
    /// Name of the AgentRun.
    pub run: String,
    /// The turn to go back to. The later ones are undone.
    #[arg(long = "to", value_name = "TURN", value_parser = clap::value_parser!(i32).range(0..))]
    pub to_turn: i32,
    /// Accept that this call of an undone turn may take effect again; may be repeated.
    #[arg(long = "accept-effect", value_name = "CALL")]
    pub accept_effects: Vec<String>,
    /// Why.
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Do not ask.
    #[arg(long, short)]
    pub yes: bool,
}

/// A fork.
#[derive(Clone, Debug, Args)]
pub struct ForkArgs {
    /// Name of the AgentRun to start from.
    pub run: String,
    /// Name of the new AgentRun.
    pub new_name: String,
    /// The turn to start from. Unset: the latest one.
    #[arg(long, value_parser = clap::value_parser!(i32).range(1..))]
    pub turn: Option<i32>,
    /// Accept that this call of a later turn may take effect again; may be repeated.
    #[arg(long = "accept-effect", value_name = "CALL")]
    pub accept_effects: Vec<String>,
    /// Why.
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
}

/// A cancel.
#[derive(Clone, Debug, Args)]
pub struct CancelArgs {
    /// The run, and why.
    #[command(flatten)]
    pub change: ChangeArgs,
    /// Do not ask.
    #[arg(long, short)]
    pub yes: bool,
}

/// The outcome of a call.
#[derive(Clone, Debug, Args)]
pub struct SettleArgs {
    /// Name of the AgentRun.
    pub run: String,
    /// Id of the call.
    pub call: String,
    /// How it ended.
    #[arg(long, value_enum)]
    pub outcome: Outcome,
    /// How you found out. The audit keeps it.
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    /// What the tool answered: JSON, or @FILE. The agent gets it as the result of the call.
    #[arg(long, value_name = "JSON")]
    pub result: Option<String>,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Outcome {
    /// The tool did its work.
    Completed,
    /// The tool refused, and nothing took effect.
    Failed,
}

/// A fresh budget.
#[derive(Clone, Debug, Args)]
pub struct ResetArgs {
    /// Name of the AgentRun.
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pub run: Option<String>,
    /// All held runs that a fresh budget lifts. Without --yes they are only listed.
    #[arg(long)]
    pub all: bool,
    /// With --all: runs of all namespaces.
    #[arg(long, short = 'A', requires = "all")]
    pub all_namespaces: bool,
    /// With --all: only runs with these labels.
    #[arg(long, short = 'l', value_name = "LABELS", requires = "all")]
    pub selector: Option<String>,
    /// With --all: only runs that are held for this reason, such as CannotStart. If --reason is the name of a hold, that is
    /// meant too.
    #[arg(long, value_name = "HOLD", requires = "all")]
    pub held_for: Option<String>,
    /// Why. It is written to the annotation dalsegno.dev/reason, and the audit keeps it.
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// With --all: reset this many runs first; if they are no longer held, twice as many, and so on. Stops when one of
    /// them is held again.
    #[arg(long, value_name = "NUMBER", requires = "all", value_parser = clap::value_parser!(u32).range(1..))]
    pub ramp: Option<u32>,
    /// With --ramp: how long to wait for the runs of one step.
    #[arg(long, value_name = "DURATION", default_value = "5m", requires = "ramp")]
    pub ramp_timeout: String,
    /// With --all: do it.
    #[arg(long, short)]
    pub yes: bool,
}

/// An export.
#[derive(Clone, Debug, Args)]
pub struct ExportArgs {
    /// Name of the AgentRun.
    pub run: String,
    /// File to write; it must not exist. Unset: the standard output.
    #[arg(long, short, value_name = "FILE")]
    pub file: Option<PathBuf>,
}

/// A bundle.
#[derive(Clone, Debug, Args)]
pub struct VerifyArgs {
    /// The bundle's file.
    pub file: PathBuf,
    /// Public key that must have signed it, in base64. Unset: the key that the bundle names.
    #[arg(long, value_name = "KEY")]
    pub public_key: Option<String>,
}

/// What to wait for.
#[derive(Clone, Debug, Args)]
pub struct WaitArgs {
    /// Name of the AgentRun.
    pub run: String,
    /// A summary (Succeeded, Held …), `ended`, `needs-you`, `turn=NUMBER`, `condition=TYPE[=STATUS]` or `deleted`.
    #[arg(long = "for", value_name = "STATE")]
    pub awaited: String,
    /// How long. 0: for ever.
    #[arg(long, value_name = "DURATION", default_value = "30m")]
    pub timeout: String,
}

/// A shell.
#[derive(Clone, Debug, Args)]
pub struct CompletionArgs {
    /// `bash` or `zsh` for kubectl-dalsegno; `kubectl` for the file kubectl_complete-dalsegno, with which kubectl's own
    /// completion also completes `kubectl dalsegno`.
    #[arg(value_enum)]
    pub shell: CompletionShell,
}

/// Who completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CompletionShell {
    /// bash.
    Bash,
    /// zsh.
    Zsh,
    /// kubectl.
    Kubectl,
}

impl CompletionShell {
    /// The shell, if it is one.
    pub fn shell(self) -> Option<Shell> {
        match self {
            Self::Bash => Some(Shell::Bash),
            Self::Zsh => Some(Shell::Zsh),
            Self::Kubectl => None,
        }
    }
}

/// The words of a command line that is being typed.
#[derive(Clone, Debug, Args)]
pub struct CompleteArgs {
    /// The words after `kubectl dalsegno`; the last one is being typed.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<String>,
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
