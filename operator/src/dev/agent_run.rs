//! The AgentRun of `dalsegno dev`, which a user would apply in a cluster, and its input.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context as _, bail};
use dalsegno_crds::{AgentRun, AgentRunSpec, LimitName, OnPriorRun, Recovery, RunLimits};
use dalsegno_model::{Lifecycle, RunRecord, Store};
use dalsegno_protocol::RawValue;
use serde::Deserialize;
use serde_json::Value;

use crate::config::{DevArgs, LimitValue};

/// The only namespace.
pub const NAMESPACE: &str = "dev";

/// Crashes in a row without progress after which the run is held.
const MAX_ATTEMPTS_WITHOUT_PROGRESS: i32 = 3;

/// Finds the run to continue: the latest one of this name that was not abandoned.
///
/// # Errors
///
/// The store is unavailable.
pub async fn find(store: &dyn Store, name: &str) -> anyhow::Result<Option<RunRecord>> {
    let runs = store.find(NAMESPACE, name).await.context("looking for the run")?;
    Ok(runs.into_iter().find(|it| matches!(it.lifecycle, Lifecycle::Live | Lifecycle::Finished)))
}

/// The AgentRun, for the row that was found or for a new run. Running the command again is a user's request for a fresh
/// budget, like a higher `recovery.resetGeneration`.
pub fn object(args: &DevArgs, uid: String, input: &Input, found: Option<&RunRecord>) -> AgentRun {
    let reset_generation = found.map(|row| row.observed_reset_generation + 1);
    let limits = Some(limits(&args.limits));
    let spec = AgentRunSpec { input: Some(input.value.clone()), limits, ..spec(reset_generation) };
    let mut run = AgentRun::new(&args.name, spec);
    run.metadata.namespace = Some(NAMESPACE.to_owned());
    run.metadata.uid = Some(uid);
    run.metadata.generation = Some(1);
    run
}

/// The limits of the command line. Of one that is given twice, the last counts.
fn limits(given: &[LimitValue]) -> RunLimits {
    let mut limits = RunLimits::default();
    for LimitValue { limit, max } in given {
        let field = match limit {
            LimitName::Turns => &mut limits.turns,
            LimitName::Tokens => &mut limits.tokens,
            LimitName::CostMicroUsd => &mut limits.cost_micro_usd,
            LimitName::ActiveSeconds => &mut limits.active_seconds,
        };
        *field = Some(*max);
    }
    limits
}

/// The spec of every run, without an input and limits.
pub fn spec(reset_generation: Option<i64>) -> AgentRunSpec {
    let recovery = Recovery {
        reset_generation,
        // A person is watching, and can start the command again.
        max_attempts_without_progress: Some(MAX_ATTEMPTS_WITHOUT_PROGRESS),
        ..Recovery::default()
    };
    AgentRunSpec {
        recovery: Some(recovery),
        // An earlier run of the name was found before, unless it is to be abandoned (`--fresh`).
        on_prior_run: Some(OnPriorRun::Ignore),
        ..AgentRunSpec::default()
    }
}

/// The input of the run.
#[derive(Debug)]
pub struct Input {
    /// The text, as it was written. The worker gets this.
    pub text: String,
    /// The parsed text.
    value: Value,
}

impl Input {
    /// The input of the run with this UID: for a new run the given file, for a run that continues its saved input. It is
    /// saved before the run is in the store, in a file with the run's UID: an earlier run, which may still continue, keeps its
    /// own.
    ///
    /// # Errors
    ///
    /// The file cannot be read or is not JSON, or the run was started with another input.
    pub fn of(args: &DevArgs, uid: &str, continues: bool) -> anyhow::Result<Self> {
        let saved = args.dir.join(format!("{}.{uid}.input.json", args.name));
        let given = args.input.as_deref().map(Self::read).transpose()?;
        if !continues {
            let input = given.unwrap_or_else(|| Self { text: "null".to_owned(), value: Value::Null });
            input.save(&saved).context("saving the input")?;
            return Ok(input);
        }
        let original = Self::read(&saved)?;
        if given.is_some_and(|it| !is_same_json(&it.text, &original.text)) {
            bail!(
                "the run {NAMESPACE}/{} was started with another input, and an input never changes: --fresh starts a new \
                 run of this name, --name another run",
                args.name
            );
        }
        Ok(original)
    }

    fn read(file: &Path) -> anyhow::Result<Self> {
        let text =
            fs::read_to_string(file).with_context(|| format!("reading the input {}", file.display()))?;
        let value = serde_json::from_str(&text)
            .with_context(|| format!("the input {} is not JSON", file.display()))?;
        Ok(Self { text, value })
    }

    /// Saves the input durably, since the row of the run is durable too.
    fn save(&self, file: &Path) -> io::Result<()> {
        let mut options = fs::OpenOptions::new();
        let mut file = options.create(true).truncate(true).write(true).mode(0o600).open(file)?;
        file.write_all(self.text.as_bytes())?;
        file.sync_all()
    }
}

/// Whether two JSON texts are equal, apart from formatting and the order of members. Integers are compared digit by digit: a
/// [`Value`] rounds an integer beyond 64 bits.
fn is_same_json(one: &str, other: &str) -> bool {
    type Object<'a> = BTreeMap<String, &'a RawValue>;
    type List<'a> = Vec<&'a RawValue>;
    fn both<'a, T: Deserialize<'a>>(one: &'a str, other: &'a str) -> Option<(T, T)> {
        serde_json::from_str(one).ok().zip(serde_json::from_str(other).ok())
    }
    if let Some((one, other)) = both::<Object<'_>>(one, other) {
        let mut members = one.values().zip(other.values());
        return one.keys().eq(other.keys())
            && members.all(|(one, other)| is_same_json(one.get(), other.get()));
    }
    if let Some((one, other)) = both::<List<'_>>(one, other) {
        let mut items = one.iter().zip(&other);
        return one.len() == other.len() && items.all(|(one, other)| is_same_json(one.get(), other.get()));
    }
    let is_integer = one.bytes().all(|it| it == b'-' || it.is_ascii_digit());
    both::<Value>(one, other).is_some_and(|(one, other)| one == other) && (!is_integer || one == other)
}
