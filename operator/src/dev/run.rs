//! The run of a laptop: the AgentRun that a person would have applied, and its input, which is kept.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context as _, bail};
use dalsegno_crds::{AgentRun, AgentRunSpec, OnPriorRun, Recovery};
use dalsegno_protocol::RawValue;
use dalsegno_store::{Lifecycle, RunRecord, Store};
use serde::Deserialize;
use serde_json::Value;

use crate::config::DevArgs;

/// The only namespace.
pub const NAMESPACE: &str = "dev";

/// The run that goes on: the latest of this name that was not given up.
///
/// # Errors
///
/// The store does not answer.
pub async fn find(store: &dyn Store, name: &str) -> anyhow::Result<Option<RunRecord>> {
    let runs = store.find(NAMESPACE, name).await.context("looking for the run")?;
    Ok(runs.into_iter().find(|it| matches!(it.lifecycle, Lifecycle::Live | Lifecycle::Finished)))
}

/// The AgentRun, for the row that was found or as a new one. To run it again is a person's word, and as good as a
/// higher `recovery.resetGeneration`: one fresh budget.
pub fn object(args: &DevArgs, uid: String, input: &Input, found: Option<&RunRecord>) -> AgentRun {
    let spec = AgentRunSpec {
        input: Some(input.value.clone()),
        recovery: found.map(|row| Recovery {
            reset_generation: Some(row.observed_reset_generation + 1),
            ..Recovery::default()
        }),
        // What stands in the way was found above, unless it is to be given up.
        on_prior_run: Some(OnPriorRun::Ignore),
        ..AgentRunSpec::default()
    };
    let mut run = AgentRun::new(&args.name, spec);
    run.metadata.namespace = Some(NAMESPACE.to_owned());
    run.metadata.uid = Some(uid);
    run.metadata.generation = Some(1);
    run
}

/// What the agent is to do.
#[derive(Debug)]
pub struct Input {
    /// As it was written: what the worker gets.
    pub text: String,
    /// What it says.
    value: Value,
}

impl Input {
    /// Of the run with this UID: of a new one, the file that is named; of one that goes on, what it was begun with. It is
    /// kept before the run is in the store, under the run's own UID: an earlier run, which may yet go on, loses nothing.
    ///
    /// # Errors
    ///
    /// The file cannot be read or is no JSON, or the run was begun with another input.
    pub fn of(args: &DevArgs, uid: &str, goes_on: bool) -> anyhow::Result<Self> {
        let kept = args.dir.join(format!("{}.{uid}.input.json", args.name));
        let given = args.input.as_deref().map(Self::read).transpose()?;
        if !goes_on {
            let input = given.unwrap_or_else(|| Self { text: "null".to_owned(), value: Value::Null });
            input.keep(&kept).context("keeping the input")?;
            return Ok(input);
        }
        let begun_with = Self::read(&kept)?;
        if given.is_some_and(|it| !say_the_same(&it.text, &begun_with.text)) {
            bail!(
                "the run {NAMESPACE}/{} was begun with another input, and an input never changes: --fresh begins a new \
                 run, --name another one",
                args.name
            );
        }
        Ok(begun_with)
    }

    fn read(file: &Path) -> anyhow::Result<Self> {
        let text =
            fs::read_to_string(file).with_context(|| format!("reading the input {}", file.display()))?;
        let value = serde_json::from_str(&text)
            .with_context(|| format!("the input {} is no JSON", file.display()))?;
        Ok(Self { text, value })
    }

    /// On the disk: the row that tells of the run will be, too.
    fn keep(&self, file: &Path) -> io::Result<()> {
        let mut options = fs::OpenOptions::new();
        let mut file = options.create(true).truncate(true).write(true).mode(0o600).open(file)?;
        file.write_all(self.text.as_bytes())?;
        file.sync_all()
    }
}

/// Whether two JSON texts say the same, in whatever spelling and order. An integer is held to each of its digits: of one
/// beyond 64 bits a [`Value`] keeps the first ones alone.
fn say_the_same(one: &str, other: &str) -> bool {
    type Object<'a> = BTreeMap<String, &'a RawValue>;
    type List<'a> = Vec<&'a RawValue>;
    fn both<'a, T: Deserialize<'a>>(one: &'a str, other: &'a str) -> Option<(T, T)> {
        serde_json::from_str(one).ok().zip(serde_json::from_str(other).ok())
    }
    if let Some((one, other)) = both::<Object<'_>>(one, other) {
        let mut members = one.values().zip(other.values());
        return one.keys().eq(other.keys())
            && members.all(|(one, other)| say_the_same(one.get(), other.get()));
    }
    if let Some((one, other)) = both::<List<'_>>(one, other) {
        let mut items = one.iter().zip(&other);
        return one.len() == other.len() && items.all(|(one, other)| say_the_same(one.get(), other.get()));
    }
    let is_integer = one.bytes().all(|it| it == b'-' || it.is_ascii_digit());
    both::<Value>(one, other).is_some_and(|(one, other)| one == other) && (!is_integer || one == other)
}
