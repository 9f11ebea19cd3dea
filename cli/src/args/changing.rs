//! Arguments of the verbs that change something, decide, or prove.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

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
    #[arg(long = "to", value_name = "TURN", value_parser = clap::value_parser!(i32).range(1..))]
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
