//! The command line: every flag also has an environment variable where a deployment needs it.

#[cfg(test)]
mod documentation;
mod https_url;
mod people_api;
mod server;
mod store;
mod tls;
mod user;
mod values;

use clap::{Parser, Subcommand};

pub use https_url::HttpsUrl;
#[cfg(test)]
pub use people_api::PeopleApiArgs;
pub use server::{
    DevApproveArgs, DevArgs, DevCommand, DevDecisionArgs, DevRunArgs, DevSendArgs, DevVerb, GatewayArgs,
    HealthArgs, KeyArgs, NotificationArgs, OperatorArgs,
};
pub use store::{ConnectionArgs, DatabaseArgs, StoreArgs};
pub use tls::{TlsArgs, TlsMode};
pub use user::{
    AdoptNamespaceArgs, AuditCommand, BackupArgs, ExportArgs, KeysCommand, PruneArgs, PurgeArgs, RunsCommand,
    SettleArgs, ShowArgs, ShowAuditArgs, ShredArgs, VerifyArgs, VerifyAuditArgs,
};
pub use values::{
    AnchorSinkKind, Justification, LimitValue, OutputFormat, RunRef, SettleOutcome, VerifyTarget,
};

/// Makes an AI agent's run outlive its pods.
#[derive(Debug, Parser)]
#[command(name = "dalsegno", version, max_term_width = 110)]
pub struct Cli {
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands of the program.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs operator and gateway in one process. This is the default with the embedded store.
    All {
        #[command(flatten)]
        store: StoreArgs,
        #[command(flatten)]
        connections: ConnectionArgs,
        #[command(flatten)]
        gateway: GatewayArgs,
        #[command(flatten)]
        operator: OperatorArgs,
        #[command(flatten)]
        tls: TlsArgs,
        #[command(flatten)]
        health: HealthArgs,
        #[command(flatten)]
        key: KeyArgs,
    },
    /// Runs an agent on this machine, without a cluster: gateway, store and recovery, with processes instead of pods.
    ///
    /// The run survives its process and this program: the same command continues after the last committed turn, with a
    /// fresh crash budget. If the agent has changed since (the program, or a file that the command names), the run
    /// continues with a warning: `versionPolicy.onMismatch` is `Allow` here, since the old program cannot be restored.
    ///
    /// Exit code: 0 if the run succeeded, 1 if it failed or is held, 130 on Ctrl-C.
    Dev(DevCommand),
    /// Watches AgentRuns and their pods, and recovers runs whose pod is lost.
    Operator {
        #[command(flatten)]
        store: StoreArgs,
        #[command(flatten)]
        connections: ConnectionArgs,
        #[command(flatten)]
        operator: OperatorArgs,
        #[command(flatten)]
        tls: TlsArgs,
        #[command(flatten)]
        health: HealthArgs,
        #[command(flatten)]
        key: KeyArgs,
    },
    /// Serves the worker contract over HTTP. Any number of gateways may share one store.
    Gateway {
        #[command(flatten)]
        store: StoreArgs,
        #[command(flatten)]
        connections: ConnectionArgs,
        #[command(flatten)]
        gateway: GatewayArgs,
        #[command(flatten)]
        tls: TlsArgs,
        #[command(flatten)]
        health: HealthArgs,
        #[command(flatten)]
        key: KeyArgs,
    },
    /// Migrates the store's schema to the version of this program, then exits.
    Migrate {
        #[command(flatten)]
        store: DatabaseArgs,
        /// PostgreSQL role of operator and gateway, different from the role that migrates. It is granted the least
        /// privileges that they need: to the audit it can only append.
        #[arg(long, env = "DALSEGNO_GRANT_TO")]
        grant_to: Option<String>,
    },
    /// Prints the CustomResourceDefinitions as YAML.
    Crds,
    /// Shows a run from the store, even if its pod and its AgentRun are gone.
    Show(ShowArgs),
    /// Writes a run as a signed bundle of JSON lines: boundaries with their payloads, calls, audit.
    ///
    /// The bundle contains the idempotency keys and arguments of the calls. Whoever has it can act with them: store it as
    /// safely as you would store those.
    Export(ExportArgs),
    /// Verifies a run in the store, or a bundle that `export` wrote. For a bundle, only the file is needed.
    ///
    /// Checks every boundary, payload and audit row against the hashes; for a bundle also its signature and its counts.
    /// Fails if anything differs from what was written.
    Verify(VerifyArgs),
    /// Shows, verifies or prunes the audit: the record of what was done to each run, and by whom.
    Audit {
        #[command(subcommand)]
        command: AuditCommand,
    },
    /// Purges runs that ended long ago.
    Runs {
        #[command(subcommand)]
        command: RunsCommand,
    },
    /// Manages the keys that encrypt the payloads of runs.
    Keys {
        #[command(subcommand)]
        command: KeysCommand,
    },
    /// Moves the runs of a namespace that was deleted and created again, so that `onPriorRun: Adopt` finds them.
    AdoptNamespace(AdoptNamespaceArgs),
    /// Copies the embedded store to a file while the operator uses it, and verifies the copy.
    ///
    /// The file is readable by its owner only. It contains every run, but not the encryption keys. For PostgreSQL, use
    /// `pg_dump` or the point-in-time recovery of your database.
    Backup(BackupArgs),
    /// Records the outcome of a call whose outcome is unknown. A run that was held for this call then continues.
    Settle(SettleArgs),
}

#[cfg(test)]
mod tests;
