//! Arguments of the commands that a user runs on a store.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use dalsegno_proof::PublicKey;

use super::server::KeyArgs;
use super::store::{EncryptionArgs, StoreArgs};
use super::values::{
    Justification, OutputFormat, RunRef, SettleOutcome, VerifyTarget, public_key, time, time_or_age,
};

/// Arguments of `dalsegno show`.
#[derive(Clone, Debug, Args)]
pub struct ShowArgs {
    #[command(flatten)]
    pub store: StoreArgs,
    /// The run: NAMESPACE/NAME (the last run of that name), or its id.
    pub run: RunRef,
    /// Also show the state after this turn.
    #[arg(long)]
    pub turn: Option<i32>,
    /// Also show what changed in the state between this turn and `--turn`; 0: since the start.
    #[arg(long, requires = "turn")]
    pub since: Option<i32>,
    /// How many of the latest turns to show.
    #[arg(long, value_name = "NUMBER", default_value_t = 20, value_parser = clap::value_parser!(i32).range(0..))]
    pub turns: i32,
    /// Show every turn.
    #[arg(long, conflicts_with = "turns")]
    pub all: bool,
    /// Only turns before this one: with `--turns`, the page before it.
    #[arg(long, value_name = "TURN", conflicts_with = "follow", value_parser = clap::value_parser!(i32).range(1..))]
    pub before: Option<i32>,
    /// Also show the calls and their keys, and who settled a call, and why.
    #[arg(long)]
    pub calls: bool,
    /// Keep showing turns as they are committed, until the run is over.
    #[arg(long)]
    pub follow: bool,
}

/// Arguments of `dalsegno export`.
#[derive(Clone, Debug, Args)]
pub struct ExportArgs {
    #[command(flatten)]
    pub store: StoreArgs,
    /// The run: NAMESPACE/NAME (the last run of that name), or its id.
    pub run: RunRef,
    /// File to write; it must not exist. Unset: standard output.
    #[arg(long)]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub key: KeyArgs,
}

/// Arguments of `dalsegno verify`.
#[derive(Clone, Debug, Args)]
pub struct VerifyArgs {
    /// The file of a bundle; or a run: NAMESPACE/NAME (the last run of that name), or its id.
    pub target: VerifyTarget,
    /// The store of the run: `postgres://…` or `sqlite:///path/to/file.db`.
    #[arg(long, env = "DALSEGNO_DATABASE_URL", hide_env_values = true)]
    pub database_url: Option<String>,
    #[command(flatten)]
    pub encryption: EncryptionArgs,
    /// Also show the state after this turn, from the bundle alone.
    #[arg(long)]
    pub turn: Option<i32>,
    /// Public key that must have signed the bundle, in base64. Unset: the key that the bundle names.
    #[arg(long, value_parser = public_key)]
    pub public_key: Option<PublicKey>,
}

/// Commands on the audit.
#[derive(Debug, Subcommand)]
pub enum AuditCommand {
    /// Shows what was done to a run: when, by whom, and why.
    Show(ShowAuditArgs),
    /// Verifies the audit and the boundaries of all runs, and prints every row that was edited, deleted or reordered.
    /// Fails if there is one.
    Verify(VerifyAuditArgs),
    /// Deletes the start of each run's audit, up to the last row that an anchor named before a given time. The rest still
    /// verifies with that anchor. Also deletes anchors that the copy announces as no longer needed, and requests that
    /// those before the given time become so.
    ///
    /// Verifies first, and deletes nothing if there is any problem. PostgreSQL: needs the role that owns the tables (the
    /// one that ran `migrate`); the role of operator and gateway may not prune.
    Prune(PruneArgs),
}

/// Arguments of `dalsegno audit show`.
#[derive(Clone, Debug, Args)]
pub struct ShowAuditArgs {
    #[command(flatten)]
    pub store: StoreArgs,
    /// The run: NAMESPACE/NAME (the last run of that name), or its id.
    pub run: RunRef,
    /// A table for people, or one JSON object a line with every detail.
    #[arg(long, default_value = "table")]
    pub output: OutputFormat,
}

/// Arguments of `dalsegno audit verify`.
#[derive(Clone, Debug, Args)]
pub struct VerifyAuditArgs {
    #[command(flatten)]
    pub store: StoreArgs,
    /// Copy of the anchors from outside the store: the lines of the sink (`-`: standard input). With it, also finds
    /// a chain whose end was cut off, a run that was removed, and a chain that was rebuilt.
    #[arg(long, value_name = "FILE")]
    pub anchors: Option<PathBuf>,
    /// Public key that must have signed the anchors, in base64; repeat it if the key was changed. Unset: any key that the
    /// anchors name.
    #[arg(long, value_parser = public_key, requires = "anchors")]
    pub public_key: Vec<PublicKey>,
}

/// Arguments of `dalsegno audit prune`.
#[derive(Clone, Debug, Args)]
pub struct PruneArgs {
    #[command(flatten)]
    pub store: StoreArgs,
    /// Use anchors from before this day (2027-01-31, UTC) or before this time (2027-01-31T12:00:00Z).
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub before: jiff::Timestamp,
    /// Copy of the anchors from outside the store: the lines of the sink (`-`: standard input).
    #[arg(long, value_name = "FILE")]
    pub anchors: PathBuf,
    /// Public key that must have signed the anchors, in base64; repeat it if the key was changed. Unset: any key that the
    /// anchors name.
    #[arg(long, value_parser = public_key)]
    pub public_key: Vec<PublicKey>,
    #[command(flatten)]
    pub justification: Justification,
}

/// Commands on many runs.
#[derive(Debug, Subcommand)]
pub enum RunsCommand {
    /// Deletes runs that ended before a given time from the store, with all their rows. A run must be over, its AgentRun
    /// deleted, and its payloads past their `retentionDays`. Of each run one row is left: the proof that it was purged.
    ///
    /// A run is deleted by the second call: the first one records the purge in the run's audit, and an anchor must name
    /// that row. PostgreSQL: needs the role that owns the tables (the one that ran `migrate`).
    Purge(PurgeArgs),
}

/// Arguments of `dalsegno runs purge`.
#[derive(Clone, Debug, Args)]
pub struct PurgeArgs {
    #[command(flatten)]
    pub store: StoreArgs,
    /// Purge runs that ended before this day (2027-01-31, UTC), before this time (2027-01-31T12:00:00Z), or longer ago
    /// than this (90d, 12h).
    #[arg(long, value_name = "TIME", value_parser = time_or_age)]
    pub before: jiff::Timestamp,
    /// Only runs of this namespace. Unset: all.
    #[arg(long)]
    pub namespace: Option<String>,
    /// Only say how many runs would be purged.
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub justification: Justification,
}

/// Commands on the encryption keys.
#[derive(Debug, Subcommand)]
pub enum KeysCommand {
    /// Wraps the data keys of all runs with the current key. Payloads are not rewritten. Afterwards an older key can be
    /// removed.
    Rewrap {
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Deletes the data key of a run that is over. Its encrypted payloads become unreadable, except from an earlier backup
    /// of the database.
    Shred(ShredArgs),
}

/// Arguments of `dalsegno keys shred`.
#[derive(Clone, Debug, Args)]
pub struct ShredArgs {
    #[command(flatten)]
    pub store: StoreArgs,
    /// The run: NAMESPACE/NAME, or its id. Needs the id if several runs had this name.
    pub run: RunRef,
    #[command(flatten)]
    pub justification: Justification,
}

/// Arguments of `dalsegno adopt-namespace`.
#[derive(Clone, Debug, Args)]
pub struct AdoptNamespaceArgs {
    #[command(flatten)]
    pub store: StoreArgs,
    /// UID that the namespace had before.
    pub old_uid: String,
    /// UID that the namespace has now.
    pub new_uid: String,
    #[command(flatten)]
    pub justification: Justification,
}

/// Arguments of `dalsegno backup`.
#[derive(Clone, Debug, Args)]
pub struct BackupArgs {
    #[command(flatten)]
    pub store: StoreArgs,
    /// File to write; it must not exist. While the copy is not verified, its name ends in `.incomplete`.
    #[arg(long, value_name = "FILE")]
    pub to: PathBuf,
}

/// Arguments of `dalsegno settle`.
#[derive(Clone, Debug, Args)]
pub struct SettleArgs {
    #[command(flatten)]
    pub store: StoreArgs,
    /// The run: NAMESPACE/NAME (the last run of that name), or its id.
    pub run: RunRef,
    /// Id of the call, as `dalsegno show --calls` lists it.
    pub call: String,
    /// How the call ended.
    #[arg(long)]
    pub outcome: SettleOutcome,
    /// File with the tool's result: JSON of at most 16 MiB and 127 levels. The worker gets it as the result of the call.
    #[arg(long)]
    pub result: Option<PathBuf>,
    #[command(flatten)]
    pub justification: Justification,
}
