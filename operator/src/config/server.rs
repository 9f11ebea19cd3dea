//! Arguments of the commands that run until they are stopped: operator, gateway, `dalsegno dev`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use dalsegno_gateway::{Config, StateReadBudget};
use dalsegno_model::NotificationKind;
use dalsegno_protocol::Limits;

use super::https_url::HttpsUrl;
use super::people_api::PeopleApiArgs;
use super::values::{
    AnchorSinkKind, ExpectedPolicies, LimitValue, bytes, duration, expected_policies, limit, run_name,
};

/// The key that signs bundles and anchors.
#[derive(Clone, Debug, Args)]
pub struct KeyArgs {
    /// File of the key that signs bundles and anchors: Ed25519 in PEM (PKCS#8). Unset: the store's own key, created when
    /// it is first needed.
    #[arg(long, env = "DALSEGNO_SIGNING_KEY", value_name = "FILE")]
    pub signing_key: Option<PathBuf>,
}

/// Where the gateway listens, how many connections it takes, and how much memory. docs/guides/in-production.md has the sum.
#[derive(Clone, Debug, Args)]
pub struct GatewayArgs {
    /// Address of the worker contract.
    #[arg(long, env = "DALSEGNO_GATEWAY_LISTEN", default_value = "[::]:8080")]
    pub gateway_listen: SocketAddr,
    /// Address at which the API server reaches the gateway, over TLS with its front proxy's certificate. Unset: it does not.
    #[arg(long, env = "DALSEGNO_AGGREGATED_LISTEN", value_name = "ADDRESS")]
    pub aggregated_listen: Option<SocketAddr>,
    /// Most connections at once. A worker has up to two.
    #[arg(long, env = "DALSEGNO_GATEWAY_MAX_CONNECTIONS", default_value_t = 4096, value_name = "NUMBER",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub gateway_max_connections: u32,
    /// Most connections at once from one IPv4 address, or from one /64 network of IPv6.
    #[arg(long, env = "DALSEGNO_GATEWAY_MAX_CONNECTIONS_PER_PEER", default_value_t = 1024, value_name = "NUMBER",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub gateway_max_connections_per_peer: u32,
    /// Most bytes of request bodies in memory. One run may hold a quarter, or one body of at most 16Mi.
    #[arg(long, env = "DALSEGNO_GATEWAY_REQUEST_BYTES", default_value = "64Mi", value_name = "BYTES",
          value_parser = bytes::<{ Limits::BODY_BYTES }>)]
    pub gateway_request_bytes: usize,
    /// Most bytes of responses in memory. One run or user may hold a quarter, or one response. The largest response to an
    /// attach needs the default.
    #[arg(long, env = "DALSEGNO_GATEWAY_RESPONSE_BYTES", default_value = "160Mi", value_name = "BYTES",
          value_parser = bytes::<{ Limits::ANSWERS_BYTES }>)]
    pub gateway_response_bytes: usize,
    /// Most bytes of states that are read at once for workers that resume. With an operator in the same process, both
    /// share them.
    #[arg(long, env = "DALSEGNO_GATEWAY_RESUME_BYTES", default_value = "96Mi", value_name = "BYTES",
          value_parser = bytes::<{ StateReadBudget::MIN_BYTES }>)]
    pub gateway_resume_bytes: usize,
    /// Most bytes of states that are read at once for people, for workers that look back, and for snapshots.
    #[arg(long, env = "DALSEGNO_GATEWAY_INSPECTION_BYTES", default_value = "96Mi", value_name = "BYTES",
          value_parser = bytes::<{ StateReadBudget::MIN_BYTES }>)]
    pub gateway_inspection_bytes: usize,
    /// Most bytes of pages of events and records that are read at once. A page has 4Mi.
    #[arg(long, env = "DALSEGNO_GATEWAY_PAGE_BYTES", default_value = "16Mi", value_name = "BYTES",
          value_parser = bytes::<{ Limits::PAGE_BYTES }>)]
    pub gateway_page_bytes: usize,
    /// Most bytes of states that are remembered, so that the next full state of a run is stored as a difference.
    #[arg(long, env = "DALSEGNO_GATEWAY_DELTA_BASE_BYTES", default_value = "32Mi", value_name = "BYTES",
          value_parser = bytes::<0>)]
    pub gateway_delta_base_bytes: usize,
}

impl GatewayArgs {
    /// The configuration of the gateway.
    pub fn config(&self, key: &KeyArgs) -> Config {
        Config {
            signing_key: key.signing_key.clone(),
            max_connections: self.gateway_max_connections as usize,
            max_connections_per_peer: self.gateway_max_connections_per_peer as usize,
            max_request_bytes: self.gateway_request_bytes,
            max_response_bytes: self.gateway_response_bytes,
            max_resume_bytes: self.gateway_resume_bytes,
            max_inspection_bytes: self.gateway_inspection_bytes,
            max_page_bytes: self.gateway_page_bytes,
            max_delta_base_bytes: self.gateway_delta_base_bytes,
            ..Config::default()
        }
    }
}

/// Settings of the operator.
#[derive(Clone, Debug, Args)]
pub struct OperatorArgs {
    /// Base URL at which workers reach the gateway.
    #[arg(long, env = "DALSEGNO_GATEWAY_URL")]
    pub gateway_url: String,
    /// Watch only these namespaces, separated by commas. Unset: all namespaces.
    #[arg(long, env = "DALSEGNO_WATCH_NAMESPACES", value_name = "NAME", value_delimiter = ',')]
    pub watch_namespaces: Vec<String>,
    /// Let only one of several operators work at a time. This saves work; correctness does not depend on it.
    #[arg(long, env = "DALSEGNO_LEADER_ELECTION", default_value_t = false, action = clap::ArgAction::Set)]
    pub leader_election: bool,
    /// Namespace of this program's own pod, for its Lease and for the commands that messages show.
    #[arg(long, env = "DALSEGNO_NAMESPACE", default_value = "default")]
    pub namespace: String,
    /// Name of this program's own pod.
    #[arg(long, env = "DALSEGNO_POD_NAME", default_value = "dalsegno")]
    pub pod_name: String,
    /// Number of runs that are reconciled at the same time. One namespace gets at most half of them.
    #[arg(long, env = "DALSEGNO_CONCURRENCY", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..))]
    pub concurrency: u16,
    /// Most bytes of states that are read at once, to check the checkpoints of runs that recover. With a gateway in the same
    /// process, --gateway-resume-bytes counts instead.
    #[arg(long, env = "DALSEGNO_STATE_READ_BYTES", default_value = "96Mi", value_name = "BYTES",
          value_parser = bytes::<{ StateReadBudget::MIN_BYTES }>)]
    pub state_read_bytes: usize,
    /// Interval between anchors. An anchor is a signed line of at most 300 bytes that proves where all changed runs are.
    /// It is stored, and given to the sink for `audit verify`.
    #[arg(long, env = "DALSEGNO_ANCHOR_EVERY", default_value = "60s", value_name = "DURATION", value_parser = duration)]
    pub anchor_every: Duration,
    /// Where each anchor is kept besides the store, so that nobody who can write to the store can change it.
    #[arg(long, env = "DALSEGNO_ANCHOR_SINK", default_value = "none", value_name = "SINK")]
    pub anchor_sink: AnchorSinkKind,
    /// File of the sink `file`: each anchor is appended to it.
    #[arg(long, env = "DALSEGNO_ANCHOR_FILE", value_name = "FILE", required_if_eq("anchor_sink", "file"))]
    pub anchor_file: Option<PathBuf>,
    /// Delete runs from the store that ended more than this many days ago, whose AgentRun is deleted, and whose payloads
    /// are past their retention. Unset: none. PostgreSQL: needs the role that owns the tables.
    #[arg(long, env = "DALSEGNO_PURGE_DAYS", value_name = "DAYS", value_parser = clap::value_parser!(u16).range(1..))]
    pub purge_days: Option<u16>,
    /// After how many boundaries a snapshot of a run's state is due, if neither the run nor its definition says so (1 to 50).
    /// Unset: 10.
    #[arg(long, env = "DALSEGNO_SNAPSHOT_EVERY", value_name = "BOUNDARIES", value_parser = clap::value_parser!(i32).range(1..=50))]
    pub snapshot_every: Option<i32>,
    /// The admission policies that must be in place before a decision about an approval counts, as JSON. The chart sets
    /// it. Unset: no decision counts.
    #[arg(long, env = "DALSEGNO_POLICIES", value_name = "JSON", default_value = "[]", value_parser = expected_policies)]
    pub policies: ExpectedPolicies,
    #[command(flatten)]
    pub notifications: NotificationArgs,
    #[command(flatten)]
    pub people_api: PeopleApiArgs,
    /// For tests of this program: abort once at each of these steps of a recovery, given as before:EFFECT or after:EFFECT.
    #[arg(long, env = "DALSEGNO_CRASH_AT", hide = true)]
    pub crash_at: Option<String>,
}

/// Where notifications are sent (docs/guides/notifications.md).
#[derive(Clone, Debug, Default, Args)]
pub struct NotificationArgs {
    /// https URL that notifications are sent to. Unset: nobody is notified.
    #[arg(
        long,
        env = "DALSEGNO_NOTIFICATIONS_URL",
        value_name = "URL",
        requires = "notifications_secret_file"
    )]
    pub notifications_url: Option<HttpsUrl>,
    /// File with the secret that signs notifications, as Standard Webhooks writes it: `whsec_` and base64. While the secret is
    /// replaced: both, one a line. The file is read for each notification.
    #[arg(long, env = "DALSEGNO_NOTIFICATIONS_SECRET_FILE", value_name = "FILE")]
    pub notifications_secret_file: Option<PathBuf>,
    /// Which notifications are sent, separated by commas: ApprovalRequested, RunHeld, RunFailed, LimitNear. Unset: all.
    #[arg(long, env = "DALSEGNO_NOTIFICATIONS_KINDS", value_name = "KIND", value_delimiter = ',')]
    pub notifications_kinds: Vec<NotificationKind>,
}

impl NotificationArgs {
    /// The kinds that are sent.
    pub fn kinds(&self) -> Vec<NotificationKind> {
        match &self.notifications_kinds[..] {
            [] => NotificationKind::ALL.to_vec(),
            some => some.to_vec(),
        }
    }
}

/// Where health and metrics are served.
#[derive(Clone, Debug, Args)]
pub struct HealthArgs {
    /// Address of /healthz, /readyz and /metrics.
    #[arg(long, env = "DALSEGNO_HEALTH_LISTEN", default_value = "[::]:8081")]
    pub health_listen: SocketAddr,
}

/// `dalsegno dev`: a run, or a verb on one.
#[derive(Clone, Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct DevCommand {
    #[command(subcommand)]
    pub verb: Option<DevVerb>,
    #[command(flatten)]
    pub run: DevArgs,
}

/// What a person does with a run of `dalsegno dev`, also while it runs.
#[derive(Clone, Debug, Subcommand)]
pub enum DevVerb {
    /// Send the run a message. Its worker reads it, also after a crash, until a turn takes it.
    Send(DevSendArgs),
    /// Approve what the run's agent has asked for, and show it. Without an id, only show what is open.
    Approve(DevApproveArgs),
    /// Deny what the run's agent has asked for, and show it. Without an id, only show what is open.
    Deny(DevDecisionArgs),
    /// Suspend the run: its worker parks, and no other starts until `dalsegno dev resume`.
    Suspend(DevRunArgs),
    /// Lift the suspend of the run.
    Resume(DevRunArgs),
}

/// A run of `dalsegno dev`.
#[derive(Clone, Debug, Args)]
pub struct DevRunArgs {
    /// Folder of the store.
    #[arg(long, default_value = ".dalsegno")]
    pub dir: PathBuf,
    /// Name of the run.
    #[arg(long, default_value = "agent", value_parser = run_name)]
    pub name: String,
}

/// Arguments of `dalsegno dev deny`.
#[derive(Clone, Debug, Args)]
pub struct DevDecisionArgs {
    #[command(flatten)]
    pub run: DevRunArgs,
    /// Why. The agent reads it.
    #[arg(long)]
    pub reason: Option<String>,
    /// Id of the approval, as the agent chose it.
    pub id: Option<String>,
}

/// Arguments of `dalsegno dev approve`.
#[derive(Clone, Debug, Args)]
pub struct DevApproveArgs {
    #[command(flatten)]
    pub decision: DevDecisionArgs,
    /// How the proposal is changed, as JSON. The agent reads it.
    #[arg(long, value_name = "JSON")]
    pub changes: Option<String>,
}

/// Arguments of `dalsegno dev send`.
#[derive(Clone, Debug, Args)]
pub struct DevSendArgs {
    #[command(flatten)]
    pub run: DevRunArgs,
    /// What the message is about, for the agent to choose by.
    #[arg(long)]
    pub topic: Option<String>,
    /// Id of the message. With the id of an earlier one, the same message is not sent twice. Random unless set.
    #[arg(long)]
    pub id: Option<String>,
    /// The message: JSON. What is not JSON is sent as a string.
    pub value: String,
}

/// Arguments of `dalsegno dev`.
#[derive(Clone, Debug, Args)]
pub struct DevArgs {
    /// File with the run's input: any JSON of at most 32 KiB and 64 levels. A run that continues keeps the input that it was started with.
    #[arg(long, value_name = "FILE")]
    pub input: Option<PathBuf>,
    /// Kill the worker without warning at this interval, such as `10s`. Each kill is a disruption and is not charged. The
    /// interval must be longer than the agent needs to start.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub kill_every: Option<Duration>,
    /// A limit over all attempts, such as `turns=20`, `tokens=100000`, `costMicroUSD=500000` or `activeSeconds=600`. Repeat it
    /// for several. A run that reaches one is held; to let it go on, run the command again with a higher limit.
    #[arg(long = "limit", value_name = "NAME=NUMBER", value_parser = limit)]
    pub limits: Vec<LimitValue>,
    /// Folder of the store. Only one `dalsegno dev` can use it at a time.
    #[arg(long, default_value = ".dalsegno")]
    pub dir: PathBuf,
    /// Name of the run: lower case letters, digits and dashes.
    #[arg(long, default_value = "agent", value_parser = run_name)]
    pub name: String,
    /// Start a new run of this name. The old run stays in the store.
    #[arg(long)]
    pub fresh: bool,
    /// The worker: a program and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}
