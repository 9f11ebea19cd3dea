//! Arguments of the verbs that read a run.

use clap::Args;

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
    /// Only turns before this one: the page before it.
    #[arg(long, value_name = "TURN", value_parser = clap::value_parser!(i32).range(1..))]
    pub before: Option<i32>,
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
