//! How the program is told what to do: flags, each with an environment variable.

mod working;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Parser, Subcommand, ValueEnum};
use dalsegno_store::RunId;
use dalsegno_store::proof::PublicKey;

use crate::asked::REASON;
use crate::people::verify::{Target, public_key};
pub use crate::store_args::{DatabaseArgs, EncryptionArgs, StoreArgs};
pub use working::{DevArgs, GatewayArgs, HealthArgs, KeyArgs, OperatorArgs};

/// Makes an AI agent's run outlive its pods.
#[derive(Debug, Parser)]
#[command(name = "dalsegno", version, max_term_width = 110)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What the program can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Operator and gateway in one process: the default with the embedded store.
    All {
        #[command(flatten)]
        store: StoreArgs,
        #[command(flatten)]
        gateway: GatewayArgs,
        #[command(flatten)]
        operator: OperatorArgs,
        #[command(flatten)]
        health: HealthArgs,
        #[command(flatten)]
        key: KeyArgs,
    },
    /// Runs an agent on this machine, without any cluster: gateway, store and recovery, with processes for pods.
    ///
    /// The run outlives its process and this program: the same command again goes on after the last committed turn, with
    /// a fresh budget of crashes. An agent that has changed since (the program, or a file that the command names) goes on
    /// too, with a warning: `versionPolicy.onMismatch` is `Allow` here, since the old program cannot be brought back.
    ///
    /// Exit code: 0 if the run succeeded, 1 if it failed or is held, 130 on Ctrl-C.
    Dev(DevArgs),
    /// Watches AgentRuns and their pods; recovers what is lost.
    Operator {
        #[command(flatten)]
        store: StoreArgs,
        #[command(flatten)]
        operator: OperatorArgs,
        #[command(flatten)]
        health: HealthArgs,
        #[command(flatten)]
        key: KeyArgs,
    },
    /// Serves the worker's contract over HTTP. Any number may serve the same store.
    Gateway {
        #[command(flatten)]
        store: StoreArgs,
        #[command(flatten)]
        gateway: GatewayArgs,
        #[command(flatten)]
        health: HealthArgs,
        #[command(flatten)]
        key: KeyArgs,
    },
    /// Brings the store's schema up to this program's, and ends.
    Migrate {
        #[command(flatten)]
        store: DatabaseArgs,
        /// PostgreSQL role that operator and gateway connect as, another than the one that migrates: gets the least
        /// rights that they need, so that it can only add to the audit.
        #[arg(long, env = "DALSEGNO_GRANT_TO")]
        grant_to: Option<String>,
    },
    /// Prints the CustomResourceDefinitions as YAML.
    Crds,
    /// Shows a run as the store knows it, also when its pod and its AgentRun are gone.
    Show {
        #[command(flatten)]
        store: StoreArgs,
        /// Which run, as NAMESPACE/NAME (of several of one name the last), or by its id.
        run: RunRef,
        /// Also the state after this turn.
        #[arg(long)]
        turn: Option<i32>,
        /// Also what changed in the state between this turn and `--turn`; 0: since the start.
        #[arg(long, requires = "turn")]
        since: Option<i32>,
        /// Also its calls, with their keys.
        #[arg(long)]
        calls: bool,
        /// Go on showing turns as they are committed, until the run is over.
        #[arg(long)]
        follow: bool,
    },
    /// Writes a run as a signed bundle of JSON lines: boundaries with their payloads, calls, audit. It holds the calls'
    /// idempotency keys and arguments: whoever has it can act under them, so keep it as you would keep those.
    Export {
        #[command(flatten)]
        store: StoreArgs,
        /// Which run, as NAMESPACE/NAME (of several of one name the last), or by its id.
        run: RunRef,
        /// File to write, which must not exist; unset: standard output.
        #[arg(long)]
        output: Option<PathBuf>,
        #[command(flatten)]
        key: KeyArgs,
    },
    /// Proves a run: in the store, or as a bundle that `export` wrote, which needs nothing but the file.
    ///
    /// Holds every boundary, payload and audit row to the hashes; a bundle to its signature and its counts too. Fails if
    /// anything is not as it was written.
    Verify {
        /// A bundle's file; or a run, as NAMESPACE/NAME (of several of one name the last), or by its id.
        target: Target,
        /// The store of the run: `postgres://…` or `sqlite:///path/to/file.db`.
        #[arg(long, env = "DALSEGNO_DATABASE_URL", hide_env_values = true)]
        database_url: Option<String>,
        #[command(flatten)]
        encryption: EncryptionArgs,
        /// Also the state after this turn, from the bundle alone.
        #[arg(long)]
        turn: Option<i32>,
        /// Public key that must have signed the bundle, in base64; unset: the one that it names.
        #[arg(long, value_parser = public_key)]
        public_key: Option<PublicKey>,
    },
    /// What everybody did, and whether the record of it is whole.
    Audit {
        #[command(subcommand)]
        what: AuditCommand,
    },
    /// The keys by which the payloads of runs are encrypted.
    Keys {
        #[command(subcommand)]
        what: KeysCommand,
    },
    /// Makes the runs of a namespace that was deleted and created again adoptable by `onPriorRun: Adopt`.
    AdoptNamespace {
        #[command(flatten)]
        store: StoreArgs,
        /// UID that the namespace had.
        old_uid: String,
        /// UID that it has now.
        new_uid: String,
        /// Why; kept in the audit.
        #[arg(long, value_parser = reason)]
        reason: String,
        /// Who you are, for the audit.
        #[arg(long, env = "USER", default_value = "somebody")]
        by: String,
    },
    /// Says how a call ended whose outcome nobody knows; a run that was held for it then goes on.
    Settle {
        #[command(flatten)]
        store: StoreArgs,
        /// Which run, as NAMESPACE/NAME (of several of one name the last), or by its id.
        run: RunRef,
        /// Name of the call, as `dalsegno show --calls` lists it.
        call: String,
        /// How it ended.
        #[arg(long)]
        outcome: SettleOutcome,
        /// File with the tool's answer, JSON of at most 16 MiB and 127 levels, as a worker's; it gets it as the call's result.
        #[arg(long)]
        result: Option<PathBuf>,
        /// How you found out; kept in the audit.
        #[arg(long, value_parser = reason)]
        reason: String,
        /// Who you are, for the audit.
        #[arg(long, env = "USER", default_value = "somebody")]
        by: String,
    },
}

/// What to do with the audit.
#[derive(Debug, Subcommand)]
pub enum AuditCommand {
    /// Walks the audit and the boundaries of all runs, and tells every row that was edited, deleted or reordered. Fails
    /// if there is any.
    Verify {
        #[command(flatten)]
        store: StoreArgs,
        /// Copy of the anchors that was kept outside, such as the operator's log (`-`: standard input): with it a chain's
        /// end that was cut, a run that was taken away and a chain that was built anew are found too.
        #[arg(long, value_name = "FILE")]
        anchors: Option<PathBuf>,
        /// Public key that must have signed them, in base64; several where it was changed; unset: whichever they name.
        #[arg(long, value_parser = public_key, requires = "anchors")]
        public_key: Vec<PublicKey>,
    },
    /// Drops the start of each run's audit, up to the last row that an anchor named before a time; what is left still
    /// proves itself with that anchor. Verifies first, and drops nothing if there is any problem. PostgreSQL: the role that
    /// owns the tables (`migrate` ran as it) may, and the one of operator and gateway may not.
    Prune {
        #[command(flatten)]
        store: StoreArgs,
        /// Anchors from before this day count (2027-01-31, UTC), or from before this time (2027-01-31T12:00:00Z).
        #[arg(long, value_name = "TIME", value_parser = time)]
        before: jiff::Timestamp,
        /// Copy of the anchors that was kept outside, such as the operator's log; `-`: standard input.
        #[arg(long, value_name = "FILE")]
        anchors: PathBuf,
        /// Public key that must have signed them, in base64; several where it was changed; unset: whichever they name.
        #[arg(long, value_parser = public_key)]
        public_key: Vec<PublicKey>,
        /// Why; kept in the audit.
        #[arg(long, value_parser = reason)]
        reason: String,
        /// Who you are, for the audit.
        #[arg(long, env = "USER", default_value = "somebody")]
        by: String,
    },
}

/// What to do with the keys.
#[derive(Debug, Subcommand)]
pub enum KeysCommand {
    /// Wraps the data keys of all runs by the current key; no payload is touched. After it an older key can go.
    Rewrap {
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Deletes the data key of a run that is over: what is sealed of it can be read by nobody any more, but from a backup of
    /// the database that was made before.
    Shred {
        #[command(flatten)]
        store: StoreArgs,
        /// Which run, as NAMESPACE/NAME, or by its id: of several of one name only so.
        run: RunRef,
        /// Why; kept in the audit.
        #[arg(long, value_parser = reason)]
        reason: String,
        /// Who you are, for the audit.
        #[arg(long, env = "USER", default_value = "somebody")]
        by: String,
    },
}

/// How a call ended.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum SettleOutcome {
    /// The tool did it.
    Completed,
    /// Nothing took effect.
    Failed,
}

/// What a person gives as a reason, as long as one that an AgentRun's annotation gives.
fn reason(text: &str) -> Result<String, String> {
    let text = text.trim();
    match text.chars().count() {
        1..=REASON => Ok(text.to_owned()),
        _ => Err(format!("say why, in 1 to {REASON} characters")),
    }
}

/// A day's beginning, or a time.
fn time(text: &str) -> Result<jiff::Timestamp, String> {
    let day = text.parse::<jiff::civil::Date>().and_then(|day| day.to_zoned(jiff::tz::TimeZone::UTC));
    let time = day.map(|day| day.timestamp()).or_else(|_| text.parse());
    time.map_err(|_| "write a day as 2027-01-31, or a time as 2027-01-31T12:00:00Z".to_owned())
}

/// A run, as a person names it.
#[derive(Clone, Debug)]
pub enum RunRef {
    /// By its own id.
    Id(RunId),
    /// As `NAMESPACE/NAME`, which several may have had.
    Name {
        /// The namespace.
        namespace: String,
        /// The name.
        name: String,
    },
}

impl FromStr for RunRef {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(id) = text.parse() {
            return Ok(Self::Id(id));
        }
        match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
                Ok(Self::Name { namespace: namespace.to_owned(), name: name.to_owned() })
            }
            _ => Err("name the run as NAMESPACE/NAME, or by its id".to_owned()),
        }
    }
}

impl fmt::Display for RunRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => write!(f, "with the id {id}"),
            Self::Name { namespace, name } => write!(f, "{namespace}/{name}"),
        }
    }
}
