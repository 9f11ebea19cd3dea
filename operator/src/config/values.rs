//! Values on the command line, and their parsers.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::{Args, ValueEnum};
use dalsegno_model::{LimitName, RunId};
use dalsegno_proof::PublicKey;

use dalsegno_core::approvals::policies::ExpectedPolicy;
use dalsegno_core::attribution::MAX_REASON_CHARS;

/// A run as a user names it.
#[derive(Clone, Debug)]
pub enum RunRef {
    /// By its id.
    Id(RunId),
    /// By `NAMESPACE/NAME`. Several runs may have had this name.
    Name {
        /// Namespace of the AgentRun.
        namespace: String,
        /// Name of the AgentRun.
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

/// The admission policies that must be in place.
#[derive(Clone, Debug, Default)]
pub struct ExpectedPolicies(pub Vec<ExpectedPolicy>);

/// Parses the admission policies that must be in place.
pub fn expected_policies(text: &str) -> Result<ExpectedPolicies, String> {
    serde_json::from_str(text).map(ExpectedPolicies).map_err(|error| error.to_string())
}

/// What `dalsegno verify` checks.
#[derive(Clone, Debug)]
pub enum VerifyTarget {
    /// A bundle in a file.
    Bundle(PathBuf),
    /// A run in the store.
    Run(RunRef),
}

impl FromStr for VerifyTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if Path::new(text).is_file() {
            return Ok(Self::Bundle(text.into()));
        }
        let run = text.parse().map(Self::Run);
        run.map_err(|error: String| format!("there is no file {text}; or {error}"))
    }
}

/// The outcome of a settled call.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum SettleOutcome {
    /// The call took effect.
    Completed,
    /// The call had no effect.
    Failed,
}

/// How a command prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// Columns, for people.
    Table,
    /// One JSON object a line.
    Json,
}

/// Where anchors are kept besides the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "camelCase")]
pub enum AnchorSinkKind {
    /// Nowhere.
    None,
    /// Standard output, between the lines of the log.
    Stdout,
    /// The file of `--anchor-file`.
    File,
    /// The ConfigMap `dalsegno-anchors` in this program's own namespace: the last 60 anchors.
    ConfigMap,
}

impl AnchorSinkKind {
    /// Its name, as in the arguments.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Stdout => "stdout",
            Self::File => "file",
            Self::ConfigMap => "configMap",
        }
    }
}

/// Who acts and why, for the audit.
#[derive(Clone, Debug, Args)]
pub struct Justification {
    /// Why; recorded in the audit.
    #[arg(long, value_parser = reason)]
    pub reason: String,
    /// Who you are; recorded in the audit.
    #[arg(long, env = "USER", default_value = "somebody")]
    pub by: String,
}

/// Parses a reason: not empty, and at most as long as the reason in an AgentRun's annotation.
fn reason(text: &str) -> Result<String, String> {
    let text = text.trim();
    match text.chars().count() {
        1..=MAX_REASON_CHARS => Ok(text.to_owned()),
        _ => Err(format!("say why, in 1 to {MAX_REASON_CHARS} characters")),
    }
}

/// Parses a day (its start in UTC) or a time.
pub(super) fn time(text: &str) -> Result<jiff::Timestamp, String> {
    let day = text.parse::<jiff::civil::Date>().and_then(|day| day.to_zoned(jiff::tz::TimeZone::UTC));
    let time = day.map(|day| day.timestamp()).or_else(|_| text.parse());
    time.map_err(|_| "write a day as 2027-01-31, or a time as 2027-01-31T12:00:00Z".to_owned())
}

/// Parses a day, a time, or an age (`90d`, `12h`) as the time that long ago.
pub(super) fn time_or_age(text: &str) -> Result<jiff::Timestamp, String> {
    let ago = |age: jiff::Span| {
        let now = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC);
        (age.is_positive() || age.is_zero()).then(|| now.checked_sub(age).ok()).flatten()
    };
    let age = text.parse().ok().and_then(ago).map(|at| at.timestamp());
    age.map_or_else(|| time(text), Ok).map_err(|error| format!("{error}, or an age as 90d or 12h"))
}

/// Parses a duration above 0: `10s`, `500ms` or `1m`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let length: jiff::SignedDuration = text.parse().map_err(|_| "write a duration as 10s, 500ms or 1m")?;
    Duration::try_from(length)
        .ok()
        .filter(|it| !it.is_zero())
        .ok_or_else(|| "it must be more than 0".to_owned())
}

/// A limit of the run on a laptop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitValue {
    /// Which limit.
    pub limit: LimitName,
    /// Its value.
    pub max: i64,
}

/// Parses a limit: `NAME=NUMBER`.
pub(super) fn limit(text: &str) -> Result<LimitValue, String> {
    let parsed = text.split_once('=').and_then(|(name, max)| {
        let limit = LimitName::ALL.iter().copied().find(|it| it.as_str() == name)?;
        let max = max.parse().ok().filter(|max| (0..=MAX_LIMIT).contains(max))?;
        Some(LimitValue { limit, max })
    });
    let names = LimitName::ALL.iter().map(|it| it.as_str()).collect::<Vec<_>>().join(", ");
    parsed.ok_or_else(|| format!("write NAME=NUMBER, where NAME is one of {names}"))
}

/// The highest value of a limit.
const MAX_LIMIT: i64 = 9_007_199_254_740_991;

/// Parses a number of bytes of at least `MIN`, which are whole mebibytes: `64Mi`, `1Gi`, `512Ki` or a number without a unit.
pub(super) fn bytes<const MIN: usize>(text: &str) -> Result<usize, String> {
    let units = [("Ki", 1 << 10), ("Mi", 1 << 20), ("Gi", 1 << 30), ("", 1)];
    let parsed = units.iter().find_map(|(suffix, unit)| {
        let number: usize = text.strip_suffix(suffix)?.parse().ok()?;
        number.checked_mul(*unit)
    });
    match parsed {
        Some(bytes) if bytes >= MIN => Ok(bytes),
        Some(_) => Err(format!("it must be at least {}Mi", MIN >> 20)),
        None => Err("write a number of bytes as 64Mi, 1Gi or 67108864".to_owned()),
    }
}

/// Parses a public key: 32 bytes in base64, as `export` and `verify` print it.
pub(super) fn public_key(text: &str) -> Result<PublicKey, String> {
    let bytes = STANDARD.decode(text).map_err(|error| format!("not base64: {error}"))?;
    bytes.try_into().map_err(|_| "a public key is 32 bytes".to_owned())
}

/// Parses the name of a run: a DNS label that leaves room for the attempt's number in a pod's name.
pub(super) fn run_name(text: &str) -> Result<String, String> {
    let is_inner = |it: u8| it.is_ascii_lowercase() || it.is_ascii_digit() || it == b'-';
    let is_label = text.bytes().all(is_inner) && !text.starts_with('-') && !text.ends_with('-');
    if is_label && (1..=52).contains(&text.len()) {
        return Ok(text.to_owned());
    }
    Err("use lower case letters, digits and dashes inside; at most 52 characters".to_owned())
}
