//! The flags of what goes on working: operator, gateway, and both on a laptop.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

/// What signs bundles and anchors.
#[derive(Clone, Debug, Args)]
pub struct KeyArgs {
    /// File of the key that signs bundles and anchors, Ed25519 in PEM (PKCS#8); unset: the store's own, made when first
    /// needed.
    #[arg(long, env = "DALSEGNO_SIGNING_KEY", value_name = "FILE")]
    pub signing_key: Option<PathBuf>,
}

/// Where the gateway listens.
#[derive(Clone, Debug, Args)]
pub struct GatewayArgs {
    /// Address on which workers are served.
    #[arg(long, env = "DALSEGNO_GATEWAY_LISTEN", default_value = "0.0.0.0:8080")]
    pub gateway_listen: SocketAddr,
}

/// What the operator needs to know.
#[derive(Clone, Debug, Args)]
pub struct OperatorArgs {
    /// Base URL by which workers reach the gateway.
    #[arg(long, env = "DALSEGNO_GATEWAY_URL")]
    pub gateway_url: String,
    /// Watch this namespace only; unset: all.
    #[arg(long, env = "DALSEGNO_WATCH_NAMESPACE")]
    pub watch_namespace: Option<String>,
    /// Let one of several operators work at a time. Saves work; safety does not rest on it.
    #[arg(long, env = "DALSEGNO_LEADER_ELECTION", default_value_t = false, action = clap::ArgAction::Set)]
    pub leader_election: bool,
    /// Namespace of this program's own pod, for its Lease.
    #[arg(long, env = "DALSEGNO_NAMESPACE", default_value = "default")]
    pub namespace: String,
    /// Name of this program's own pod.
    #[arg(long, env = "DALSEGNO_POD_NAME", default_value = "dalsegno")]
    pub pod_name: String,
    /// Runs reconciled at once.
    #[arg(long, env = "DALSEGNO_CONCURRENCY", default_value_t = 16)]
    pub concurrency: u16,
    /// How often where the runs stand is anchored: kept, signed, and told on standard output, for `audit verify`.
    #[arg(long, env = "DALSEGNO_ANCHOR_EVERY", default_value = "60s", value_name = "DURATION", value_parser = duration)]
    pub anchor_every: Duration,
    /// For tests of this program: die at a step of a recovery, as BEFORE_OR_AFTER:EFFECT.
    #[arg(long, env = "DALSEGNO_CRASH_AT", hide = true)]
    pub crash_at: Option<String>,
}

/// Where health and metrics are served.
#[derive(Clone, Debug, Args)]
pub struct HealthArgs {
    /// Address of /healthz, /readyz and /metrics.
    #[arg(long, env = "DALSEGNO_HEALTH_LISTEN", default_value = "0.0.0.0:8081")]
    pub health_listen: SocketAddr,
}

/// What is run on this machine.
#[derive(Clone, Debug, Args)]
pub struct DevArgs {
    /// File with the run's input: any JSON of at most 32 KiB and 64 levels. A run that goes on keeps the input it was begun
    /// with.
    #[arg(long, value_name = "FILE")]
    pub input: Option<PathBuf>,
    /// Kill the worker without warning each time this long has passed, as `10s`: a disruption, which is not charged.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub kill_every: Option<Duration>,
    /// Folder of the store. One `dalsegno dev` works in it at a time.
    #[arg(long, default_value = ".dalsegno")]
    pub dir: PathBuf,
    /// Name of the run: lower case letters, digits and dashes.
    #[arg(long, default_value = "agent", value_parser = run_name)]
    pub name: String,
    /// Begin a new run of this name; what is kept of the old one stays in the store.
    #[arg(long)]
    pub fresh: bool,
    /// The worker: a program and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// A time that has a length, as `10s`, `500ms` or `1m`.
fn duration(text: &str) -> Result<Duration, String> {
    let length: jiff::SignedDuration = text.parse().map_err(|_| "write a duration as 10s, 500ms or 1m")?;
    Duration::try_from(length)
        .ok()
        .filter(|it| !it.is_zero())
        .ok_or_else(|| "it must be more than 0".to_owned())
}

/// A DNS label that has room for the number of an attempt.
fn run_name(text: &str) -> Result<String, String> {
    let is_inner = |it: u8| it.is_ascii_lowercase() || it.is_ascii_digit() || it == b'-';
    let is_label = text.bytes().all(is_inner) && !text.starts_with('-') && !text.ends_with('-');
    if is_label && (1..=52).contains(&text.len()) {
        return Ok(text.to_owned());
    }
    Err("use lower case letters, digits and dashes inside; at most 52 characters".to_owned())
}
